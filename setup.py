"""Builds one extension module per ``.pyx`` file.

CYPRODUCER_DEBUG=1        invariants checked and counted, bounds checks on, no optimisation
CYPRODUCER_BUILD_ONLY=a,b build only the rooms (directories) named
"""

import os
from pathlib import Path

from Cython.Build import cythonize
from setuptools import Extension, setup

DEBUG = os.environ.get("CYPRODUCER_DEBUG", "") not in ("", "0")
# Neither setuptools nor Cython notices that flags or directives changed: each kind of build has its own place.
BUILD = f"build/{'debug' if DEBUG else 'release'}"
ONLY = {room for room in os.environ.get("CYPRODUCER_BUILD_ONLY", "").split(",") if room}
HEADERS = sorted(str(path) for path in Path("cyproducer").rglob("*.h"))

COMPILE_ARGS = ["-std=gnu11", "-Wall", "-Wno-unused-function", "-fno-strict-aliasing"]
if DEBUG:
    COMPILE_ARGS += ["-O1", "-g", "-DCYPRODUCER_DEBUG=1"]
else:
    COMPILE_ARGS += ["-O3", "-g1", "-DCYPRODUCER_DEBUG=0"]


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
            )
        )
    return found


setup(
    options={"build": {"build_base": BUILD}},
    ext_modules=cythonize(
        extensions(),
        build_dir=f"{BUILD}/cython",
        nthreads=int(os.environ.get("CYPRODUCER_BUILD_JOBS", "0")),
        compiler_directives={
            "language_level": 3,
            "boundscheck": DEBUG,
            "wraparound": False,
            "cdivision": True,
            "initializedcheck": DEBUG,
            "embedsignature": True,
        },
    )
    if list(Path("cyproducer").rglob("*.pyx"))
    else []
)
