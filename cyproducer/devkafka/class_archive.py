"""Keeps archives of Java classes, with which a JVM starts with little more than half of the CPU time.

They are dynamic archives of class data sharing. A JVM ignores an archive that does not fit.
"""

import hashlib
import subprocess
from collections.abc import Callable
from pathlib import Path

from cyproducer.devkafka.maven import find_java, locked

# What a JVM says of an archive that does not fit must not be part of the output of a tool.
QUIET_STDOUT = ("-Xlog:disable", "-Xlog:all=warning:stderr")


def class_archive(jars: Path, make: Callable[[Path], None]) -> Path | None:
    """Return the archive for a directory of jars and this Java, which is beside the directory.

    The first call makes it, and others wait for it. `make` runs a JVM with the option `making(path)` to its regular
    end. Archives of the same directory for another Java, or for older jars, are removed.

    Return None if `make` leaves no file, or if the place cannot be written.
    """
    archive = jars.with_name(f"{jars.name}-{_number(find_java(), jars)}.jsa")
    if archive.exists():
        return archive
    try:
        with locked(jars.with_name(f"{jars.name}.jsa.lock")):
            if archive.exists():
                return archive
            for older in jars.parent.glob(f"{jars.name}-*.jsa*"):
                older.unlink()
            made = archive.with_suffix(".jsa.new")
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


def _number(java: Path, jars: Path) -> str:
    """Return what differs between versions of Java and of the jars; a JVM compares paths and times of the jars."""
    version = subprocess.run([java, "-version"], capture_output=True, check=True, timeout=60).stderr
    newest = max(path.stat().st_mtime_ns for path in jars.iterdir())
    return hashlib.sha256(version + str(newest).encode()).hexdigest()[:16]
