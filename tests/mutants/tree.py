"""Keeps a private copy of the source tree, puts mutants into it, builds it and restores it."""

import contextlib
import os
import shutil
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

from support.source import ROOT

from mutants.children import run
from mutants.mutant import Mutant

BUILD_S = 3600.0
LEFT_OUT = shutil.ignore_patterns(
    ".git", ".tox", ".venv", ".ci", "__pycache__", ".pytest_cache", ".mypy_cache", ".ruff_cache", ".hypothesis",
)  # fmt: skip


class BuildError(Exception):
    """The copy cannot be built. The text is the end of the compiler's output."""


class Tree:
    """A copy of the source tree in `directory`, built in place, and a second copy of its files to restore it from."""

    def __init__(self, directory: Path) -> None:
        self.root = directory / "tree"
        self.environment = _environment(self.root)
        self._output = directory / "build.txt"
        self._saved = directory / "saved"
        shutil.copytree(ROOT, self.root, ignore=LEFT_OUT, symlinks=True)

    def build(self) -> None:
        """Build what has changed. Raise BuildError."""
        command = [sys.executable, "setup.py", "build_ext", "--inplace"]
        status = run(command, self.root, self.environment, self._output, BUILD_S)
        if status:
            raise BuildError(self._output.read_text(errors="replace")[-2000:])

    def save(self) -> None:
        """Keep the sources and what was built from them."""
        for name in ("build", "cyproducer", "pyspark_cyproducer"):
            shutil.copytree(self.root / name, self._saved / name, ignore=LEFT_OUT)

    @contextlib.contextmanager
    def mutated(self, mutant: Mutant) -> Iterator[None]:
        """Put the mutant into the tree and build it; restore all files at the end. Raise ValueError, BuildError."""
        path = self.root / mutant.file
        text = mutant.changed(path.read_text())
        try:
            path.write_text(text)
            if mutant.is_native:
                self.build()
            yield
        finally:
            self._restore()

    def _restore(self) -> None:
        """Copy back the files that have changed, with their times: then nothing must be built again."""
        for saved in self._saved.rglob("*"):
            if saved.is_dir():
                continue
            path = self.root / saved.relative_to(self._saved)
            kept, now = saved.stat(), path.stat() if path.exists() else None
            if now is None or (kept.st_mtime_ns, kept.st_size) != (now.st_mtime_ns, now.st_size):
                # A new file, since a process that still ends may have the former one mapped.
                path.unlink(missing_ok=True)
                shutil.copy2(saved, path)


def _environment(root: Path) -> dict[str, str]:
    """Return the environment of builds and tests. ccache, if there is one, finds what any directory has compiled."""
    path = os.pathsep.join([str(root), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "PYTHONPATH": path, "CCACHE_NOHASHDIR": "1", "CCACHE_BASEDIR": str(root)}
    environment.setdefault("CFLAGS", "-O1")
    environment.setdefault("CYPRODUCER_BUILD_JOBS", "2")
    compiler = environment.get("CC") or sysconfig.get_config_var("CC") or "cc"
    if shutil.which("ccache") and "ccache" not in compiler:
        compiler = f"ccache {compiler}"
    return environment | {"CC": compiler}
