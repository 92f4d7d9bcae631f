"""Runs the demo from a fresh clone: ``python3 tools/demo/bootstrap.py [arguments of ./demo]``.

The script makes an environment in the user's cache directory, builds the package into it, and replaces itself with
the demo from there. Finished steps are not repeated, so the second run needs no network. The script runs
by its path with nothing installed: it imports only the standard library and, after the check of the version,
devkafka, and old versions of Python can parse it.
"""

from __future__ import annotations

import sys

# Remove the directory of this file: its modules must not hide those of the standard library.
sys.path.pop(0)

import fcntl
import hashlib
import os
import shutil
import subprocess
import sysconfig
from collections.abc import Iterator

PYTHON_MINIMUM = (3, 11)
BUILD_TOOLS = ["setuptools>=77", "Cython>=3.1", "wheel"]
# The sources of the package, relative to the root of the source tree.
SOURCES = ["pyproject.toml", "setup.py", "README.md", "LICENSE", "cyproducer", "pyspark_cyproducer"]
# The demo, the development node and the example, which are not part of the package.
TOOLS = ["tools/demo", "tools/devkafka", "examples"]
SUFFIXES = (".py", ".pyi", ".pyx", ".pxd", ".h", ".c", ".toml", ".md", ".typed", "LICENSE")
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.append(os.path.join(ROOT, "tools"))


class BootstrapError(Exception):
    """A requirement is missing; the text says what to do."""


def say(text: str) -> None:
    """Print a line for the user."""
    print(text, flush=True)


def main(arguments: list[str]) -> int:
    """Do the unfinished steps, then replace this process with the demo. Return an exit status only after a failure."""
    try:
        check_python()
        python, tools = environment(has_java())
    except BootstrapError as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("demo: interrupted; the next run continues from here", file=sys.stderr)
        return 130
    # -P: the current directory may be the source tree, which contains the package without its compiled modules.
    path = os.pathsep.join(filter(None, [tools, os.environ.get("PYTHONPATH")]))
    os.execve(python, [python, "-P", "-m", "demo", *arguments], dict(os.environ, PYTHONPATH=path))


def check_python() -> None:
    """Check the interpreter, its headers and the compiler. Raise BootstrapError if one is missing or too old."""
    found = f"Python {sys.version_info[0]}.{sys.version_info[1]}"
    if sys.version_info < PYTHON_MINIMUM:
        wanted = ".".join(map(str, PYTHON_MINIMUM))
        raise BootstrapError(f"{found} is too old: run this file with Python {wanted} or later")
    if sys.platform != "linux":
        raise BootstrapError(f"cyproducer needs Linux; this is {sys.platform}")
    header = os.path.join(sysconfig.get_paths()["include"], "Python.h")
    if not os.path.exists(header):
        raise BootstrapError(
            f"the headers of {found} are missing ({header}). Debian, Ubuntu: apt-get install python3-dev. "
            "Fedora: dnf install python3-devel."
        )
    compiler = (os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc").split()[0]
    if shutil.which(compiler) is None:
        raise BootstrapError(
            f"a C compiler is missing ({compiler}). Debian, Ubuntu: apt-get install gcc libc6-dev. "
            "Fedora: dnf install gcc. To use another compiler, set CC."
        )


def has_java() -> bool:
    """Return whether there is a Java runtime for Kafka and Spark. If not, print what to install."""
    from devkafka.maven import JavaMissingError, find_java

    try:
        find_java()
    except JavaMissingError as error:
        say(f"{error} Without it, the demo uses librdkafka's mock cluster instead of Kafka, and no Spark.")
        return False
    return True


def environment(java: bool) -> tuple[str, str]:
    """Make or update an environment with the current package and the demo's requirements.

    Return its interpreter, and the directory of the demo's own modules.
    """
    from devkafka.maven import cache_directory

    # There is one environment per interpreter and source tree. It is outside the tree, because the tree's path may
    # contain characters that a virtual environment cannot handle.
    name = hashlib.sha256(os.fsencode("\0".join([ROOT, sys.version, sys.base_prefix]))).hexdigest()[:12]
    place = os.path.join(cache_directory(), "demo-" + name)
    try:
        os.makedirs(place, exist_ok=True)
    except OSError as error:
        raise BootstrapError(
            f"cannot create {place} ({error.strerror}); set XDG_CACHE_HOME to a writable directory"
        ) from None
    with open(os.path.join(place, "lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        python = os.path.join(place, "venv", "bin", "python")
        make_venv(place, python)
        install_needs(place, python, ["demo", "spark"] if java else ["demo"])
        install_package(place, python)
    return python, os.path.join(place, "source", "tools")


def make_venv(place: str, python: str) -> None:
    """Make the environment with pip and the build tools, unless it exists."""
    if done(place, "venv", "\n".join(BUILD_TOOLS)) and os.path.exists(python):
        return
    say(f"Making an environment in {place} ...")
    shutil.rmtree(os.path.join(place, "venv"), ignore_errors=True)
    for stamp in ("needs", "package"):
        set_done(place, stamp, "")
    command = [sys.executable, "-m", "venv", os.path.join(place, "venv")]
    made = subprocess.run(command, stderr=subprocess.PIPE)  # after Ctrl-C, its traceback is of no use
    sys.stderr.write(made.stderr.decode(errors="replace"))
    if made.returncode:
        raise BootstrapError("the environment could not be made. Debian, Ubuntu: apt-get install python3-venv")
    pip(python, BUILD_TOOLS)
    set_done(place, "venv", "\n".join(BUILD_TOOLS))


def install_needs(place: str, python: str, extras: list[str]) -> None:
    """Install the packages of these extras of pyproject.toml."""
    import tomllib

    with open(os.path.join(ROOT, "pyproject.toml"), "rb") as file:
        known = tomllib.load(file)["project"]["optional-dependencies"]
    needs = sorted({need for extra in extras for need in known[extra]})
    if done(place, "needs", "\n".join(needs)):
        return
    size = " (with PySpark: a download of about 500 MB, 850 MB on disk)" if "spark" in extras else ""
    say(f"Installing the demo's requirements{size} ...")
    pip(python, needs)
    set_done(place, "needs", "\n".join(needs))


def install_package(place: str, python: str) -> None:
    """Build and install the package if its sources have changed since the last time."""
    tree = os.path.join(place, "source")
    fingerprint = copy_sources(tree)
    if done(place, "package", fingerprint):
        return
    say("Building cyproducer (a minute or two) ...")
    # setuptools reads this file as well as the project's own configuration.
    extra = os.path.join(place, "build.cfg")
    with open(extra, "w") as file:
        file.write(f"[build_ext]\nparallel = {os.cpu_count() or 1}\n")
    arguments = ["--no-build-isolation", "--no-deps", "--no-index", "--force-reinstall", tree]
    pip(python, arguments, {"DIST_EXTRA_CONFIG": extra})
    set_done(place, "package", fingerprint)


def copy_sources(tree: str) -> str:
    """Update a copy of the sources and return a hash of all of them. Compiled files in the copy stay."""
    digest = hashlib.sha256()
    wanted = set()
    for path in sorted(source_files()):
        relative = os.path.relpath(path, ROOT)
        wanted.add(relative)
        with open(path, "rb") as file:
            data = file.read()
        digest.update(b"\0".join([os.fsencode(relative), str(len(data)).encode(), data]))
        target = os.path.join(tree, relative)
        os.makedirs(os.path.dirname(target), exist_ok=True)
        if not os.path.exists(target) or read(target) != data:
            with open(target, "wb") as file:
                file.write(data)
    for directory, directories, names in os.walk(tree):
        if directory == tree and "build" in directories:
            directories.remove("build")
        for name in names:
            path = os.path.join(directory, name)
            if name.endswith(SUFFIXES) and os.path.relpath(path, tree) not in wanted:
                os.unlink(path)
    return digest.hexdigest()


def read(path: str) -> bytes:
    """Return the content of a file."""
    with open(path, "rb") as file:
        return file.read()


def source_files() -> Iterator[str]:
    """Yield the paths of all sources of the package, without files that a build has generated in the tree."""
    for name in SOURCES + TOOLS:
        path = os.path.join(ROOT, name)
        if os.path.isfile(path):
            yield path
        for directory, directories, names in os.walk(path):
            directories[:] = [each for each in directories if each != "__pycache__"]
            generated = {each[:-4] + ".c" for each in names if each.endswith(".pyx")}
            for each in names:
                if each.endswith(SUFFIXES) and each not in generated:
                    yield os.path.join(directory, each)


def pip(python: str, arguments: list[str], more: dict[str, str] | None = None) -> None:
    """Run pip in the environment."""
    command = [python, "-P", "-m", "pip", "--disable-pip-version-check", "-q", "install", *arguments]
    given = dict(os.environ, **(more or {}))
    if subprocess.run(command, env=given, stdin=subprocess.DEVNULL, cwd=os.path.dirname(python)).returncode:
        raise BootstrapError(
            "pip failed; its messages are above. The first run needs the network. For a proxy or another package index "
            "set pip's variables (HTTPS_PROXY, PIP_INDEX_URL)"
        )


def done(place: str, what: str, state: str) -> bool:
    """Return whether the step `what` was finished with the same state."""
    path = os.path.join(place, what + ".done")
    return os.path.exists(path) and read(path) == state.encode()


def set_done(place: str, what: str, state: str) -> None:
    """Store atomically that the step `what` was finished with this state."""
    path = os.path.join(place, what + ".done")
    with open(path + ".new", "wb") as file:
        file.write(state.encode())
    os.replace(path + ".new", path)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
