"""Reads the demo's input: a tree of source files, with the facts that are compared after reading from Kafka."""

import hashlib
import os
import re
import stat
import sysconfig
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

# A line must fit into a request (max_request_size, 1 MiB) together with its key and header.
LINE_BYTES_MAX = 900_000
SKIPPED_DIRECTORIES = frozenset({"site-packages", "dist-packages", "__pycache__", ".git", ".hg", ".svn"})
_IDENTIFIER = re.compile(rb"(?<![0-9A-Za-z_])[A-Za-z_][0-9A-Za-z_]*")
# A translation table that replaces everything except letters, digits and "_" of ASCII with a blank.
_BLANKS = bytes(
    byte if chr(byte).isascii() and (chr(byte).isalnum() or byte == ord("_")) else 32 for byte in range(256)
)


class InputError(Exception):
    """The tree cannot be used; the text says why and what to do."""


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A file of the tree. `name` is its path below the root; times are nanoseconds since 1970."""

    name: str
    path: str
    size: int
    lines: int
    modified_ns: int
    changed_ns: int
    mode: int
    digest: bytes
    first_timestamp: int
    """The timestamp of line 1 in milliseconds since 1970; it grows by 1 with each line."""
    timestamp: int
    """The time of the last modification in milliseconds since 1970, but at most the start of the demo."""

    @property
    def key(self) -> bytes:
        """The key of the file's records."""
        return os.fsencode(self.name)

    def read(self) -> bytes:
        """Return the content. Raise InputError if it has changed."""
        data = Path(self.path).read_bytes()
        if content_digest(data) != self.digest:
            raise InputError(f"{self.path} has changed while the demo ran; use a directory that does not change")
        return data


@dataclass(frozen=True, slots=True)
class SourceTree:
    """The files below `root` in the order of their names, and how many files were left out for which reason."""

    root: str
    files: list[SourceFile]
    left_out: Counter[str]

    @property
    def lines(self) -> int:
        """The number of lines of all files."""
        return sum(file.lines for file in self.files)

    @property
    def bytes(self) -> int:
        """The number of bytes of all files."""
        return sum(file.size for file in self.files)


def content_digest(data: bytes) -> bytes:
    """Return the hash that is used to compare contents."""
    return hashlib.blake2b(data, digest_size=16).digest()


def split_lines(data: bytes) -> list[bytes]:
    """Return the lines with their line ends: joined, they are equal to `data`."""
    return data.splitlines(keepends=True)


def identifiers(data: bytes) -> Counter[bytes]:
    """Count the ASCII identifiers (and keywords) in a text with a regular expression."""
    return Counter(_IDENTIFIER.findall(data))


def identifiers_by_words(data: bytes) -> Counter[bytes]:
    """Count the same identifiers in another way, as a check: replace all other characters with blanks, and split."""
    words = Counter(data.translate(_BLANKS).split())
    return Counter({word: count for word, count in words.items() if not word[:1].isdigit()})


def standard_library() -> Path:
    """Return the directory of the standard library of the running Python."""
    return Path(sysconfig.get_paths()["stdlib"])


def read_tree(root: Path, now_ms: int, suffix: str = "", lines_max: int | None = None) -> SourceTree:
    """Read all text files below `root` whose names end with `suffix`; links are not followed.

    With `lines_max`, files beyond that number of lines are left out. Raise InputError if there is no text file.
    """
    if not root.is_dir():
        raise InputError(f"--input {root}: the directory does not exist")
    files: list[SourceFile] = []
    left_out: Counter[str] = Counter()
    total = 0
    for path in sorted(_walk(root)):
        if not path.endswith(suffix):
            continue
        status = os.lstat(path)
        if not stat.S_ISREG(status.st_mode):
            continue
        try:
            data = Path(path).read_bytes()
        except OSError:
            left_out["cannot be read"] += 1
            continue
        lines = split_lines(data)
        if b"\0" in data[:8192]:
            left_out["not a text file"] += 1
        elif max(map(len, lines), default=0) > LINE_BYTES_MAX:
            left_out["has a line that is too long for a request"] += 1
        elif lines_max is not None and total + len(lines) > lines_max:
            left_out["more lines than the mock cluster can keep"] += 1
        else:
            total += len(lines)
            files.append(_source_file(root, path, status, data, len(lines), now_ms))
    if total == 0:
        raise InputError(f"{root} contains no text file; choose another directory with --input")
    return SourceTree(str(root), files, left_out)


def _walk(root: Path) -> Iterator[str]:
    for directory, directories, names in os.walk(root):
        directories[:] = [name for name in directories if name not in SKIPPED_DIRECTORIES]
        for name in names:
            yield os.path.join(directory, name)


def _source_file(root: Path, path: str, status: os.stat_result, data: bytes, lines: int, now_ms: int) -> SourceFile:
    return SourceFile(
        name=os.path.relpath(path, root),
        path=path,
        size=len(data),
        lines=lines,
        modified_ns=status.st_mtime_ns,
        changed_ns=status.st_ctime_ns,
        mode=status.st_mode,
        digest=content_digest(data),
        # Kafka refuses negative timestamps and timestamps that are more than an hour in the future.
        first_timestamp=max(0, min(status.st_mtime_ns // 1_000_000, now_ms - lines)),
        timestamp=max(0, min(status.st_mtime_ns // 1_000_000, now_ms)),
    )


def distribute(files: list[SourceFile], count: int) -> list[list[SourceFile]]:
    """Divide files into `count` shares with about equal numbers of lines.

    Each file is in one share only, so that one process sends its lines in order.
    """
    shares: list[list[SourceFile]] = [[] for _ in range(count)]
    loads = [0] * count
    for file in sorted(files, key=lambda file: file.lines, reverse=True):
        least = loads.index(min(loads))
        shares[least].append(file)
        loads[least] += file.lines + 1
    return shares
