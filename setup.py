"""Builds one extension module per ``.pyx`` file; a release build fails on Cython's performance hints.

CYPRODUCER_DEBUG=1        invariants checked and counted, bounds checks on, no optimisation
CYPRODUCER_SANITIZE=a,b   with the compiler's sanitizers (address,undefined); tests/support/sanitized.py runs it
CYPRODUCER_BUILD_ONLY=a,b build only the rooms (directories) named
CYPRODUCER_BUILD_JOBS=n   compile so many files at a time
"""

import os
import sys
import tempfile
import time
from pathlib import Path

from Cython.Build import cythonize
from setuptools import Extension, setup

DEBUG = os.environ.get("CYPRODUCER_DEBUG", "") not in ("", "0")
# Neither setuptools nor Cython notices that flags or directives changed: each kind of build has its own place.
SANITIZE = os.environ.get("CYPRODUCER_SANITIZE", "")
BUILD = f"build/{'debug' if DEBUG else 'release'}{'-' if SANITIZE else ''}{SANITIZE.replace(',', '-')}"
ONLY = {room for room in os.environ.get("CYPRODUCER_BUILD_ONLY", "").split(",") if room}
JOBS = int(os.environ.get("CYPRODUCER_BUILD_JOBS") or 0)
DIRECTIVES = {
    "language_level": 3,
    "boundscheck": DEBUG,
    "wraparound": False,
    "cdivision": True,
    "initializedcheck": DEBUG,
    "embedsignature": True,
}
HEADERS = sorted(str(path) for path in Path("cyproducer").rglob("*.h"))

COMPILE_ARGS = ["-std=gnu11", "-Wall", "-Wno-unused-function", "-fno-strict-aliasing"]
if DEBUG:
    COMPILE_ARGS += ["-O1", "-g", "-DCYPRODUCER_DEBUG=1"]
else:
    COMPILE_ARGS += ["-O3", "-g1", "-DCYPRODUCER_DEBUG=0"]
LINK_ARGS = []
if SANITIZE:
    LINK_ARGS += [f"-fsanitize={SANITIZE}"]
    COMPILE_ARGS += [*LINK_ARGS, "-O1", "-g", "-fno-omit-frame-pointer", "-DCYPRODUCER_SANITIZED=1"]


def extensions() -> list[Extension]:
    """One extension per ``.pyx``; every one sees the headers through the project's root."""
    found = []
    for path in sorted(Path("cyproducer").rglob("*.pyx")):
        if ONLY and path.parent.name not in ONLY:
            continue
        found.append(
            Extension(
                ".".join(path.with_suffix("").parts),
                [str(path)],
                include_dirs=["."],
                depends=HEADERS,
                extra_compile_args=COMPILE_ARGS,
                extra_link_args=LINK_ARGS,
            )
        )
    return found


def compiled(modules: list[Extension]) -> list[Extension]:
    """The modules with their C, written by Cython where it is older than its sources.

    Ends the build, and takes back the C, if Cython hints at a call that takes the GIL to look for an exception
    (about 55 ns each) or at an index that is checked. Its messages come from child processes too: they are read
    from descriptor 2.
    """
    if not modules:
        return []
    began = time.time_ns()
    sys.stderr.flush()
    terminal = os.dup(2)
    with tempfile.TemporaryFile() as messages:
        os.dup2(messages.fileno(), 2)
        try:
            modules = cythonize(
                modules, build_dir=f"{BUILD}/cython", nthreads=JOBS, compiler_directives=DIRECTIVES
            )
        finally:
            sys.stderr.flush()
            os.dup2(terminal, 2)
            os.close(terminal)
            messages.seek(0)
            said = messages.read().decode(errors="replace")
            sys.stderr.write(said)
    hints = [line for line in said.splitlines() if line.startswith("performance hint")]
    if hints and not DEBUG:
        for module in modules:
            for path in map(Path, module.sources):
                if path.stat().st_mtime_ns >= began:
                    path.unlink()
        sys.exit(f"{len(hints)} performance hints from Cython (above): give each function its error contract")
    return modules


setup(
    options={"build": {"build_base": BUILD}, "build_ext": {"parallel": JOBS or None}},
    ext_modules=compiled(extensions()),
)
