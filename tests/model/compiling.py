"""Compiles the C files of this directory against the headers that ship, or against a copy with one change."""

import os
import shlex
import shutil
import subprocess
import sysconfig
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
EXPLORER = ("histories.c", "owner.c", "sender.c", "machine.c")
EXTENTS = ("extents.c", "machine.c")
NUMBERS = ("numbers.c", "machine.c")
TOPICS = ("topics.c", "machine.c")


def compiler() -> list[str]:
    """Return the C compiler: CC, Python's own, or cc."""
    for words in (os.environ.get("CC"), sysconfig.get_config_var("CC"), "cc", "gcc"):
        if words and shutil.which(shlex.split(words)[0]):
            return shlex.split(words)
    raise FileNotFoundError("the model needs a C compiler: install gcc, or set CC")


def compile_c(sources: tuple[str, ...], program: Path, *options: str, headers: Path = ROOT) -> Path:
    """Link the program from files of this directory; `headers` is the directory that has ``cyproducer/shm``."""
    command = [
        *compiler(), "-std=gnu11", "-Wall", "-Wextra", "-g", *options, f"-I{HERE}", f"-I{headers}",
        *(str(HERE / source) for source in sources), "-o", str(program), "-pthread",
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and not done.stderr, done.stderr
    return program


def changed_headers(directory: Path, name: str, old: str, new: str) -> Path:
    """Copy the headers and replace `old`, which stands in ``shm/<name>`` once, by `new`."""
    shm = directory / "cyproducer" / "shm"
    shm.mkdir(parents=True)
    for header in (ROOT / "cyproducer" / "shm").glob("*.h"):
        shutil.copy(header, shm)
    text = (shm / name).read_text()
    assert text.count(old) == 1, f"{name} has {text.count(old)} times: {old}"
    (shm / name).write_text(text.replace(old, new))
    return directory
