"""Reports how the package under test was built, and whether all of its extension modules were built."""

import importlib.machinery
import importlib.util
import os
import re
import shutil
import sys
from pathlib import Path

INCLUDED = re.compile(r'^include "(.+)"', re.MULTILINE)
SOURCE = Path(__file__).resolve().parents[2] / "cyproducer"
# Located, not imported: the package cannot be imported without its extension modules, which this file must report.
PACKAGE = Path(importlib.util.find_spec("cyproducer").origin).resolve().parent


def extension_names() -> list[str]:
    """Return the dotted names of all extension modules: of the ``.pyx`` files that no other one includes."""
    return [
        ".".join(("cyproducer", *path.relative_to(SOURCE).with_suffix("").parts)) for path in extension_sources(SOURCE)
    ]


def extension_sources(root: Path) -> list[Path]:
    """Return the ``.pyx`` files under `root` that no other one includes, like setup.py."""
    paths = sorted(root.rglob("*.pyx"))
    included = {
        Path(os.path.normpath(path.parent / name)) for path in paths for name in INCLUDED.findall(path.read_text())
    }
    return [path for path in paths if path not in included]


def missing_extensions() -> list[str]:
    """Return the ``extension_names`` for which the package under test has no shared object."""
    missing = []
    for name in extension_names():
        stem = PACKAGE.joinpath(*name.split(".")[1:])
        if not any(stem.with_name(stem.name + end).is_file() for end in importlib.machinery.EXTENSION_SUFFIXES):
            missing.append(name)
    return missing


def make_bench_importable(directory: Path) -> None:
    """Copy ``bench`` to `directory` and put that on the import path, if ``bench`` cannot be imported.

    ``bench`` is not installed. The source tree itself must not be on the path: its ``cyproducer`` is not built.
    Processes of the bench find the native functions of the tests, and the development node, beside it.
    """
    found = importlib.util.find_spec("bench")
    if found is None or found.origin is None:  # a folder of tests has the same name
        shutil.copytree(SOURCE.parent / "bench", directory / "bench", ignore=shutil.ignore_patterns("__pycache__"))
        for name in ("tests", "tools"):
            (directory / name).symlink_to(SOURCE.parent / name)
        sys.path.insert(0, str(directory))


def is_debug() -> bool | None:
    """Return True for a CYPRODUCER_DEBUG=1 build, False for a release build, None if nothing was compiled."""
    try:
        from cyproducer.shm.native import DEBUG
    except ImportError:
        return None
    return bool(DEBUG)


def describe() -> str:
    """Return one line for the header of a test run."""
    kind = {True: "debug", False: "release", None: "unknown"}[is_debug()]
    return f"cyproducer from {PACKAGE}, {kind} build, Python {sys.version.split()[0]}"
