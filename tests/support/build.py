"""What the package under test was built as, and whether all of it was built."""

import importlib.machinery
import importlib.util
import os
import shutil
import sys
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[2] / "cyproducer"
# Found, not imported: without its extension modules the package cannot be imported, and this is to say so.
PACKAGE = Path(importlib.util.find_spec("cyproducer").origin).resolve().parent


def extension_names() -> list[str]:
    """Dotted names of all extension modules that the source tree declares (one per ``.pyx``)."""
    return [
        ".".join(("cyproducer", *path.relative_to(SOURCE).with_suffix("").parts))
        for path in sorted(SOURCE.rglob("*.pyx"))
    ]


def missing_extensions() -> list[str]:
    """Those of ``extension_names`` that the package under test does not have as a shared object.

    With CYPRODUCER_BUILD_ONLY, as in ``setup.py``, only the rooms that it names are looked at.
    """
    rooms = {room for room in os.environ.get("CYPRODUCER_BUILD_ONLY", "").split(",") if room}
    missing = []
    for name in extension_names():
        if rooms and name.split(".")[1] not in rooms:
            continue
        stem = PACKAGE.joinpath(*name.split(".")[1:])
        if not any(
            stem.with_name(stem.name + end).is_file() for end in importlib.machinery.EXTENSION_SUFFIXES
        ):
            missing.append(name)
    return missing


def make_bench_importable(directory: Path) -> None:
    """``bench`` is not installed, and with the source tree on the path its unbuilt ``cyproducer`` would be found."""
    if importlib.util.find_spec("bench") is None:
        shutil.copytree(SOURCE.parent / "bench", directory / "bench", ignore=shutil.ignore_patterns("__pycache__"))
        sys.path.append(str(directory))


def is_debug() -> bool | None:
    """True for a CYPRODUCER_DEBUG=1 build, False for a release build, None if nothing was compiled."""
    try:
        from cyproducer.shm.build import DEBUG
    except ImportError:
        return None
    return bool(DEBUG)


def describe() -> str:
    """One line for the header of a test run."""
    kind = {True: "debug", False: "release", None: "unknown"}[is_debug()]
    return f"cyproducer from {PACKAGE}, {kind} build, Python {sys.version.split()[0]}"
