"""The demo's input: a tree of source files, and what is expected of each when it comes back from Kafka."""

import hashlib
import os
import re
import stat
import sysconfig
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

# A line has to fit into a request (max_request_size, 1 MiB) with its key and header.
LINE_BYTES_MAX = 900_000
SKIPPED_DIRECTORIES = frozenset({"site-packages", "dist-packages", "__pycache__", ".git", ".hg", ".svn"})
_IDENTIFIER = re.compile(rb"(?<![0-9A-Za-z_])[A-Za-z_][0-9A-Za-z_]*")
# Everything that is no part of an ASCII identifier becomes a blank.
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
    """Milliseconds since 1970: the timestamp of line 1; that of each further line is one more."""
    timestamp: int
    """Milliseconds since 1970: the time of its modification, if that is not in the future."""

    @property
    def key(self) -> bytes:
        """The key of its records."""
        return os.fsencode(self.name)

    def read(self) -> bytes:
        """The content. Raises InputError if it is not what it was."""
        data = Path(self.path).read_bytes()
        if content_digest(data) != self.digest:
            raise InputError(f"{self.path} was changed while the demo ran; give a tree that stays as it is")
        return data


@dataclass(frozen=True, slots=True)
class SourceTree:
    """The files below `root` in the order of their names, and how many were left out because of what."""

    root: str
    files: list[SourceFile]
    left_out: Counter[str]

    @property
    def lines(self) -> int:
        """Lines of all files."""
        return sum(file.lines for file in self.files)

    @property
    def bytes(self) -> int:
        """Bytes of all files."""
        return sum(file.size for file in self.files)


def content_digest(data: bytes) -> bytes:
    """The hash by which contents are compared."""
    return hashlib.blake2b(data, digest_size=16).digest()


def split_lines(data: bytes) -> list[bytes]:
    """Lines with their ends: joined, they are the data."""
    return data.splitlines(keepends=True)


def identifiers(data: bytes) -> Counter[bytes]:
    """How often each ASCII identifier (or keyword) occurs in a text, by a regular expression."""
    return Counter(_IDENTIFIER.findall(data))


def identifiers_by_words(data: bytes) -> Counter[bytes]:
    """The same as `identifiers` in another way, to check it: all else blanked out, cut at the blanks."""
    words = Counter(data.translate(_BLANKS).split())
    return Counter({word: count for word, count in words.items() if not word[:1].isdigit()})


def standard_library() -> Path:
    """Where the standard library of the running Python lies."""
    return Path(sysconfig.get_paths()["stdlib"])


def read_tree(root: Path, now_ms: int, suffix: str = "", lines_max: int | None = None) -> SourceTree:
    """Read all text files below `root` whose names end with `suffix`; links are not followed.

    With `lines_max`, files that would exceed it are left out. Raises InputError if nothing is found.
    """
    if not root.is_dir():
        raise InputError(f"--input {root}: there is no such directory")
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
            left_out["no text"] += 1
        elif max(map(len, lines), default=0) > LINE_BYTES_MAX:
            left_out["has a line that no request holds"] += 1
        elif lines_max is not None and total + len(lines) > lines_max:
            left_out["more than wanted here"] += 1
        else:
            total += len(lines)
            files.append(_source_file(root, path, status, data, len(lines), now_ms))
    if total == 0:
        raise InputError(f"{root}: no text file is there; give another directory with --input")
    return SourceTree(str(root), files, left_out)


def _walk(root: Path) -> Iterator[str]:
    for directory, directories, names in os.walk(root):
        directories[:] = [name for name in directories if name not in SKIPPED_DIRECTORIES]
        for name in names:
            yield os.path.join(directory, name)


def _source_file(
    root: Path, path: str, status: os.stat_result, data: bytes, lines: int, now_ms: int
) -> SourceFile:
    return SourceFile(
        name=os.path.relpath(path, root),
        path=path,
        size=len(data),
        lines=lines,
        modified_ns=status.st_mtime_ns,
        changed_ns=status.st_ctime_ns,
        mode=status.st_mode,
        digest=content_digest(data),
        # Kafka refuses a timestamp that lies more than an hour ahead, and a negative one.
        first_timestamp=max(0, min(status.st_mtime_ns // 1_000_000, now_ms - lines)),
        timestamp=max(0, min(status.st_mtime_ns // 1_000_000, now_ms)),
    )


def deal(files: list[SourceFile], hands: int) -> list[list[SourceFile]]:
    """Shares of about equal numbers of lines; a file is in one share, so that its order is one sender's."""
    shares: list[list[SourceFile]] = [[] for _ in range(hands)]
    loads = [0] * hands
    for file in sorted(files, key=lambda file: file.lines, reverse=True):
        least = loads.index(min(loads))
        shares[least].append(file)
        loads[least] += file.lines + 1
    return shares
