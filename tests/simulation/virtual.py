"""Compiles virtual.c, starts processes with it, and calls it: the clock and the crash points of the simulation."""

import ctypes
import os
import subprocess
import sys
from pathlib import Path

from model.compiling import compiler

PRELOAD = "CYPRODUCER_SIMULATION_LIBRARY"
SOURCE = Path(__file__).with_name("virtual.c")


class _State(ctypes.Structure):
    _fields_ = (
        ("now_ns", ctypes.c_int64),
        ("until_ns", ctypes.c_int64),
        ("calls", ctypes.c_int64),
        ("crash_at", ctypes.c_int64),
        ("random", ctypes.c_uint64),
        ("event_fd", ctypes.c_int32),
        ("blocks", ctypes.c_int32),
        ("splits", ctypes.c_int32),
        ("interrupts", ctypes.c_int32),
        ("in_sender", ctypes.c_int32),
        ("wrote", ctypes.c_int32),
        ("frozen", ctypes.c_int32),
        ("turns", ctypes.c_int32),
    )


def compile_library(directory: Path) -> Path:
    """Compile the library into a directory. Raise RuntimeError with the compiler's messages."""
    library = directory / "virtual.so"
    command = [*compiler(), "-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-o", str(library), str(SOURCE), "-ldl"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    if done.returncode:
        raise RuntimeError(f"{SOURCE.name} cannot be compiled: {done.stderr}")
    return library


def environment(library: Path) -> dict[str, str]:
    """Return the environment of a process that simulates: the library is loaded, and hashes do not vary."""
    return {
        **os.environ,
        "LD_PRELOAD": str(library),
        PRELOAD: str(library),
        "PYTHONHASHSEED": "0",
        "CYPRODUCER_CRASH_ROLE": "sender",
    }


def load() -> tuple[ctypes.CDLL, _State]:
    """Return the library of this process and its state. Raise RuntimeError if it was not started with it."""
    path = os.environ.get(PRELOAD)
    if path is None:
        raise RuntimeError(f"this process was not started with {SOURCE.name}: run {sys.executable} -m tests.simulation")
    library = ctypes.CDLL(path)
    library.virtual_get.restype = ctypes.POINTER(_State)
    library.virtual_start.argtypes = [ctypes.c_int64]
    library.virtual_start.restype = None
    library.virtual_finish.restype = None
    return library, library.virtual_get().contents
