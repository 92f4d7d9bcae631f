"""Keeps archives of Java classes in the user's cache; a JVM that uses one needs less CPU time for its start.

They are dynamic archives of class data sharing. A JVM ignores an archive that is missing or does not fit.
"""

import contextlib
import hashlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from devkafka.maven import cache_directory, locked

KEPT_S = 30 * 86_400
# What a JVM says of an archive that does not fit must not be part of the output of a tool.
QUIET_STDOUT = ("-Xlog:disable", "-Xlog:all=warning:stderr")


def class_archive(name: str, java: str, jars: Path, make: Callable[[Path], bool]) -> Path | None:
    """Return the archive for a directory of jars and a Java. The first call makes it, and others wait for it.

    name    begins the name of the file in the cache
    make    runs a JVM with `making(path)`; returns whether it came to its regular end

    Return None if it cannot be made. A Java that does not make one is not asked again. What nobody has used for 30 days
    is removed when another archive is made.
    """
    try:
        archive = cache_directory() / f"{name}-{_number(java, jars)}.jsa"
        archive.parent.mkdir(parents=True, exist_ok=True)
        if not archive.exists():
            with locked(archive.with_suffix(".lock")):
                if not archive.exists():
                    _make(archive, make)
        with contextlib.suppress(PermissionError):  # the cache may belong to another user
            os.utime(archive)
        return archive if archive.stat().st_size else None
    except (OSError, subprocess.SubprocessError) as error:
        print(f"no archive of Java classes is used, since it could not be made: {error}", file=sys.stderr, flush=True)
        return None


def making(archive: Path) -> str:
    """Return the option of a JVM that writes an archive at its end."""
    return f"-XX:ArchiveClassesAtExit={archive}"


def using(archive: Path | None) -> tuple[str, ...]:
    """Return the options of a JVM that uses an archive, if there is one."""
    return () if archive is None else (f"-XX:SharedArchiveFile={archive}", *QUIET_STDOUT)


def _make(archive: Path, make: Callable[[Path], bool]) -> None:
    """Make the archive. It is an empty file if the JVM came to its end and left none."""
    print(f"making {archive.name}, an archive of Java classes, in {archive.parent} ...", file=sys.stderr, flush=True)
    for other in archive.parent.glob("*.jsa"):
        if other.stat().st_mtime < time.time() - KEPT_S:
            with contextlib.suppress(FileNotFoundError):
                other.unlink()
    with tempfile.TemporaryDirectory(prefix=archive.name + ".", dir=archive.parent) as work:
        made = Path(work) / archive.name
        if not make(made):
            raise OSError("the JVM did not come to its regular end")
        made.touch()
        made.rename(archive)


def _number(java: str, jars: Path) -> str:
    """Return what differs between versions of Java and of the jars; a JVM compares paths and times of the jars."""
    version = subprocess.run([java, "-version"], capture_output=True, check=True, timeout=60).stderr
    found = [os.path.realpath(java), version.decode(errors="replace"), str(jars)]
    for path in sorted(jars.iterdir()):
        status = path.stat()
        found.append(f"{path.name} {status.st_size} {status.st_mtime_ns}")
    return hashlib.sha256("\n".join(found).encode()).hexdigest()[:16]
