"""Builds an extension module of each ``.pyx`` file that no other file includes.

A release build fails if Cython prints performance hints. The description of the package has absolute links, and a wheel
has a bill of materials.

CYPRODUCER_DEBUG=1        check and count invariants, check bounds, do not optimise
CYPRODUCER_SANITIZE=a,b   use the compiler's sanitizers (address,undefined); tests/support/sanitized.py runs the result
CYPRODUCER_BUILD_JOBS=n   compile n files at the same time, instead of one on each CPU
CFLAGS=-O1                optimise at this level instead of -O3
"""

import json
import multiprocessing
import os
import platform
import re
import sys
import tempfile
import time
import tomllib
from pathlib import Path
from typing import Any

import Cython
from Cython.Build import cythonize
from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext

if "t" in sys.abiflags:
    sys.exit("cyproducer needs the GIL: use another Python than this free-threaded build to build and to import it")

DEBUG = os.environ.get("CYPRODUCER_DEBUG", "") not in ("", "0")
# Each kind of build has its own directory, because neither setuptools nor Cython detects changed flags or directives.
SANITIZE = os.environ.get("CYPRODUCER_SANITIZE", "")
BUILD = f"build/{'debug' if DEBUG else 'release'}{'-' if SANITIZE else ''}{SANITIZE.replace(',', '-')}"
# There are four modules. A compiler needs up to 1 GB.
JOBS = int(os.environ.get("CYPRODUCER_BUILD_JOBS") or min(4, os.cpu_count() or 1))
DIRECTIVES = {
    "language_level": 3,
    "boundscheck": DEBUG,
    "wraparound": False,
    "cdivision": True,
    "initializedcheck": DEBUG,
    "embedsignature": True,
}
#: The images, and the links of a page, that are neither addresses nor places in the page.
RELATIVE_IMAGE = re.compile(r"(!\[[^]]*\]\()(?!\w+:)")
RELATIVE = re.compile(r"\]\((?!\w+:|#)")
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
    # Python 3.14 starts each process of Cython in another way, in which it runs this file again.
    multiprocessing.set_start_method("fork", force=True)
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


class Wheel(bdist_wheel):
    """Makes a wheel that names in ``.dist-info/sboms`` what is compiled into its modules (PEP 770)."""

    def write_wheelfile(self, wheelfile_base: str, *arguments: Any, **named: Any) -> None:
        super().write_wheelfile(wheelfile_base, *arguments, **named)
        path = Path(wheelfile_base, "sboms", "cyproducer.cdx.json")
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(bill_of_materials(self.distribution.get_version()), indent=2) + "\n")


def bill_of_materials(version: str) -> dict[str, Any]:
    """Return what the modules are compiled from, in the format of CycloneDX.

    That is the source of this package, the C that Cython adds, and what the headers of Python define. No library is
    linked statically, except the parts of libgcc that the compiler calls.
    """

    def component(where: str, name: str, version: str, licence: str, description: str) -> dict[str, Any]:
        reference = f"pkg:{where}/{name.lower()}@{version}"
        return {
            "type": "library",
            "bom-ref": reference,
            "name": name,
            "version": version,
            "description": description,
            "licenses": [{"license": {"id": licence}}],
            "purl": reference,
        }

    ours = component("pypi", "cyproducer", version, "Apache-2.0", "the modules of the package and the headers of its C")
    parts = [
        component("pypi", "Cython", Cython.__version__, "Apache-2.0", "utility code in each module"),
        component("generic", "CPython", platform.python_version(), "PSF-2.0", "macros and inline functions"),
    ]
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"lifecycles": [{"phase": "build"}], "component": ours},
        "components": parts,
        "dependencies": [
            {"ref": ours["bom-ref"], "dependsOn": [part["bom-ref"] for part in parts]},
            *({"ref": part["bom-ref"]} for part in parts),
        ],
    }


def readme() -> str:
    """Return README.md with absolute links: a package index shows the page without the files beside it."""
    repository = tomllib.loads(Path("pyproject.toml").read_text())["project"]["urls"]["Repository"]
    version = re.search(r'^VERSION = "(.+)"$', Path("cyproducer/version.py").read_text(), re.MULTILINE)
    assert version is not None
    text = RELATIVE_IMAGE.sub(rf"\g<1>{repository}/raw/v{version[1]}/", Path("README.md").read_text())
    return RELATIVE.sub(f"]({repository}/blob/v{version[1]}/", text)


setup(
    long_description=readme(),
    long_description_content_type="text/markdown",
    options={"build": {"build_base": BUILD}, "build_ext": {"parallel": JOBS}},
    cmdclass={"build_ext": BuildExtensions, "bdist_wheel": Wheel},
    ext_modules=extensions(),
)
