"""Copies the text files that the demo sends, so that they cannot change before they are compared."""

import os
import shutil
import sysconfig
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

# As in examples/demo.py, which sends each file of the copy.
LINE_BYTES_MAX = 900_000
SKIPPED_DIRECTORIES = frozenset({"site-packages", "dist-packages", "__pycache__", ".git"})


class InputError(Exception):
    """The directory cannot be used; the text says why and what to do."""


@dataclass(frozen=True, slots=True)
class Input:
    """The copy. `files` are in the order in which the example sends them: sorted within each directory.

    lines, size   of all files
    left_out      how many files are not in the copy, by reason
    """

    root: Path
    files: list[Path]
    lines: int
    size: int
    left_out: Counter[str]


def copy_input(given: Path | None, target: Path, lines_max: int | None) -> Input:
    """Copy the text files below `given`, by default the standard library, to `target`. Links are not followed.

    Files beyond `lines_max` lines are left out. Raise InputError if there is no text file.
    """
    source, suffix = (Path(sysconfig.get_paths()["stdlib"]), ".py") if given is None else (given, "")
    if not source.is_dir():
        raise InputError(f"--input {source}: the directory does not exist")
    files: list[Path] = []
    left_out: Counter[str] = Counter()
    total = size = 0
    for path in _regular_files(source):
        if not path.name.endswith(suffix):
            continue
        try:
            data = path.read_bytes()
        except OSError:
            left_out["cannot be read"] += 1
            continue
        lines = data.splitlines()
        if b"\0" in data:
            left_out["not a text file"] += 1
        elif max(map(len, lines), default=0) >= LINE_BYTES_MAX:
            left_out["has a line that is too long for a request"] += 1
        elif lines_max is not None and total + len(lines) > lines_max:
            left_out["more lines than the mock cluster can keep"] += 1
        else:
            copied = target / path.relative_to(source)
            copied.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(path, copied)
            files.append(copied)
            total += len(lines)
            size += len(data)
    if not files:
        raise InputError(f"{source} contains no text file; choose another directory with --input")
    return Input(target, files, total, size, left_out)


def _regular_files(root: Path) -> Iterator[Path]:
    for directory, directories, names in os.walk(root):
        directories[:] = sorted(set(directories) - SKIPPED_DIRECTORIES)
        for name in sorted(names):
            path = Path(directory, name)
            if path.is_file() and not path.is_symlink():
                yield path
