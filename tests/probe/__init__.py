"""Builds the native functions that tests and bench call, and the product does not: see native.pyx.

They are compiled when they are imported first, from the headers and the included files of the source tree, and kept in
the user's cache directory. So they are there beside an installed wheel, too.
"""

import contextlib
import fcntl
import hashlib
import importlib.machinery
import importlib.util
import os
import re
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

from model.compiling import compiler

from cyproducer.shm.native import DEBUG

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
NAME = "probe.native"
DIRECTIVES = ("language_level=3", "boundscheck=False", "wraparound=False", "cdivision=True", "initializedcheck=False")
FLAGS = ("-shared", "-fPIC", "-O2", "-std=gnu11", "-fno-strict-aliasing", "-w", f"-DCYPRODUCER_DEBUG={int(DEBUG)}")


def sources() -> list[Path]:
    """Return all files that the module is made of."""
    product = ROOT / "cyproducer"
    declared = [path for ending in ("*.h", "*.pxd") for path in sorted(product.rglob(ending))]
    return [*sorted(HERE.glob("*.pyx")), *sorted((product / "record").glob("*.pyx")), *declared]


def cache() -> Path:
    """Return the directory for the built module. Its name depends on all that decides how the module is built."""
    found = hashlib.sha256(repr((sys.version, DIRECTIVES, FLAGS, compiler())).encode())
    for path in sources():
        found.update(path.read_bytes())
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base, "cyproducer", "probe", found.hexdigest()[:20])


@contextlib.contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Let one process build at a time."""
    directory.mkdir(parents=True, exist_ok=True)
    with open(directory / "lock", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def run(command: list[str]) -> None:
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ImportError(f"{HERE} cannot be built, {command[0]} failed:\n{done.stdout}{done.stderr}")


def layout_fields() -> str:
    """Return a header with a row for each struct in shared memory, and for each of its fields."""
    rows = []
    for name in ("layout.h", "sensors.h", "transaction.h", "crashpoint.h"):
        text = re.sub(r"/\*.*?\*/", "", (ROOT / "cyproducer" / "shm" / name).read_text(), flags=re.DOTALL)
        for fields, struct in re.findall(r"typedef struct \{(.*?)\n\} (cyp_\w+);", text, re.DOTALL):
            rows.append(f'{{"{struct}", "", 0, sizeof({struct}), \'s\'}},')
            rows += [f"FIELD({struct}, {field})" for field in re.findall(r"(\w+)(?:\[[^]]*\])*;", fields)]
    return "\n".join(rows)


def build(library: Path) -> None:
    with tempfile.TemporaryDirectory(dir=library.parent) as directory:
        made, built = Path(directory, "native.c"), Path(directory, library.name)
        Path(directory, "layout_fields.h").write_text(layout_fields())
        options = [word for directive in DIRECTIVES for word in ("-X", directive)]
        run([sys.executable, "-m", "cython", *options, "-I", str(ROOT), "-o", str(made), str(HERE / "native.pyx")])
        include = [f"-I{ROOT}", f"-I{directory}", f"-I{sysconfig.get_path('include')}"]
        run([*compiler(), *FLAGS, *include, str(made), "-o", str(built)])
        os.replace(built, library)


def load() -> ModuleType:
    directory = cache()
    library = directory / ("native" + importlib.machinery.EXTENSION_SUFFIXES[0])
    with locked(directory):
        if not library.exists():
            build(library)
    spec = importlib.util.spec_from_file_location(NAME, library)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[NAME] = module
    spec.loader.exec_module(module)
    return module


native = load()
