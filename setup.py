"""Builds an extension module of each ``.pyx`` file that no other file includes.

A release build fails if Cython prints performance hints.

CYPRODUCER_DEBUG=1        check and count invariants, check bounds, do not optimise
CYPRODUCER_SANITIZE=a,b   use the compiler's sanitizers (address,undefined); tests/support/sanitized.py runs the result
CYPRODUCER_BUILD_JOBS=n   compile n files at the same time
CFLAGS=-O1                optimise at this level instead of -O3
"""

import os
import re
import sys
import tempfile
import time
from pathlib import Path

from Cython.Build import cythonize
from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

if "t" in sys.abiflags:
    sys.exit("cyproducer needs the GIL: use another Python than this free-threaded build to build and to import it")

DEBUG = os.environ.get("CYPRODUCER_DEBUG", "") not in ("", "0")
# Each kind of build has its own directory, because neither setuptools nor Cython detects changed flags or directives.
SANITIZE = os.environ.get("CYPRODUCER_SANITIZE", "")
BUILD = f"build/{'debug' if DEBUG else 'release'}{'-' if SANITIZE else ''}{SANITIZE.replace(',', '-')}"
JOBS = int(os.environ.get("CYPRODUCER_BUILD_JOBS") or 0)
DIRECTIVES = {
    "language_level": 3,
    "boundscheck": DEBUG,
    "wraparound": False,
    "cdivision": True,
    "initializedcheck": DEBUG,
    "embedsignature": True,
}
INCLUDED = re.compile(r'^include "(.+)"', re.MULTILINE)
HEADERS = sorted(str(path) for path in Path("cyproducer").rglob("*.h"))

COMPILE_ARGS = ["-std=gnu11", "-Wall", "-Wno-unused-function", "-fno-strict-aliasing"]
if DEBUG:
    COMPILE_ARGS += ["-O1", "-g", "-DCYPRODUCER_DEBUG=1"]
else:
    COMPILE_ARGS += ["-g1", "-DCYPRODUCER_DEBUG=0"]
    # The last level on the command line counts, and CFLAGS come before these arguments.
    if not any(flag.startswith("-O") for flag in os.environ.get("CFLAGS", "").split()):
        COMPILE_ARGS += ["-O3"]
LINK_ARGS = []
if SANITIZE:
    LINK_ARGS += [f"-fsanitize={SANITIZE}"]
    COMPILE_ARGS += [*LINK_ARGS, "-O1", "-g", "-fno-omit-frame-pointer", "-DCYPRODUCER_SANITIZED=1"]


def modules() -> list[Path]:
    """Return the ``.pyx`` files from which extension modules are built: those that no other one includes."""
    paths = sorted(Path("cyproducer").rglob("*.pyx"))
    included = {
        Path(os.path.normpath(path.parent / name)) for path in paths for name in INCLUDED.findall(path.read_text())
    }
    return [path for path in paths if path not in included]


def extensions() -> list[Extension]:
    """Return all extension modules. The project's root is the include directory of all of them.

    End the build if there is no such file, because the built package could not be imported.
    """
    found = []
    for path in modules():
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
    if not found:
        sys.exit(
            f"nothing to build: there is no .pyx file in {Path('cyproducer').resolve()}. "
            "Build in a complete source tree: a clone of the repository, or an unpacked source distribution"
        )
    return found


def compiled(modules: list[Extension]) -> list[Extension]:
    """Return the modules with their C sources, which Cython writes again where they are out of date.

    End the build and remove the written C files if Cython prints performance hints: a call that takes the GIL to
    check for an exception (about 55 ns each), or a checked index. The messages are read from descriptor 2, because
    child processes print them too.
    """
    began = time.time_ns()
    sys.stderr.flush()
    terminal = os.dup(2)
    with tempfile.TemporaryFile() as messages:
        os.dup2(messages.fileno(), 2)
        try:
            modules = cythonize(modules, build_dir=f"{BUILD}/cython", nthreads=JOBS, compiler_directives=DIRECTIVES)
        finally:
            sys.stderr.flush()
            os.dup2(terminal, 2)
            os.close(terminal)
            messages.seek(0)
            output = messages.read().decode(errors="replace")
            sys.stderr.write(output)
    hints = [line for line in output.splitlines() if line.startswith("performance hint")]
    if hints and not DEBUG:
        for module in modules:
            for path in map(Path, module.sources):
                if path.stat().st_mtime_ns >= began:
                    path.unlink()
        sys.exit(
            f"{len(hints)} performance hints from Cython (above): declare for each function how it reports errors "
            "(noexcept or except)"
        )
    return modules


class BuildExtensions(build_ext):
    """Runs Cython only when extensions are compiled: a source distribution and metadata need no C files."""

    def run(self) -> None:
        written = {module.name: module.sources for module in compiled(self.extensions)}
        for extension in self.extensions:
            extension.sources = written[extension.name]
        super().run()


setup(
    options={"build": {"build_base": BUILD}, "build_ext": {"parallel": JOBS or None}},
    cmdclass={"build_ext": BuildExtensions},
    ext_modules=extensions(),
)
