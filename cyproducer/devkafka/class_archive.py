"""Keeps archives of Java classes, with which a JVM starts with little more than half of the CPU time.

They are dynamic archives of class data sharing. A JVM ignores an archive that does not fit to it or to its jars.
"""

import functools
import hashlib
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

from cyproducer.devkafka.maven import cache_directory, find_java, locked

# What a JVM says of an archive that does not fit must not be part of the output of a tool.
QUIET_STDOUT = ("-Xlog:disable", "-Xlog:all=warning:stderr")


def class_archive(name: str, jars: Path, make: Callable[[Path], None]) -> Path | None:
    """Return the archive for the jars of a directory and this Java. The first call makes it, and others wait for it.

    name    begins the name of the file in the user's cache
    make    runs a JVM with `making(path)` to its regular end

    Return None if `make` leaves no file, or if the cache cannot be written.
    """
    archive = cache_directory() / f"{name}-{_number(find_java(), jars)}.jsa"
    if archive.exists():
        return archive
    try:
        archive.parent.mkdir(parents=True, exist_ok=True)
        with locked(archive.with_suffix(".lock")):
            if archive.exists():
                return archive
            made = archive.with_suffix(".new")
            made.unlink(missing_ok=True)
            make(made)
            return made.rename(archive)
    except OSError:
        return None


def making(archive: Path) -> str:
    """Return the option of a JVM that writes an archive at its end."""
    return f"-XX:ArchiveClassesAtExit={archive}"


def using(archive: Path | None) -> tuple[str, ...]:
    """Return the options of a JVM that uses an archive, if there is one."""
    return () if archive is None else (f"-XX:SharedArchiveFile={archive}", *QUIET_STDOUT)


@functools.cache
def _number(java: Path, jars: Path) -> str:
    """Return what differs between versions of Java and of the jars; a JVM compares paths and times of the jars."""
    version = subprocess.run([java, "-version"], capture_output=True, check=True, timeout=60).stderr
    newest = max(path.stat().st_mtime_ns for path in jars.iterdir())
    return hashlib.sha256(b"\0".join([version, os.fsencode(jars), str(newest).encode()])).hexdigest()[:16]
