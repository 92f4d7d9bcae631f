"""Crash points: found in the source, and armed for processes that were started with their file (crashpoint.h)."""

import mmap
import os
import re
import struct
from pathlib import Path

from support.build import SOURCE
from support.process import wait_until

VARIABLE = "CYPRODUCER_CRASHPOINTS"
BYTES = 4096
#: Modules of the sender that run in its supervisor.
SUPERVISORS = ("process", "supervisor", "election", "replace")
_IN_CYTHON = re.compile(r"""\bCRASHPOINT\(b?["']([^"']*)["']\)""")
_IN_PYTHON = re.compile(r"""\bcrashpoint\(["']([^"']*)["']\)""")
_FIELDS = struct.Struct("=iqi28s128s")


def points() -> dict[str, str]:
    """{name: file} of every crash point in the source. Raises ValueError for a name that stands twice."""
    found: dict[str, str] = {}
    for path in sorted(SOURCE.rglob("*")):
        if path.suffix not in (".py", ".pyx", ".pxd", ".h") or path.stem in ("crash", "crashpoint"):
            continue
        text = path.read_text()
        for name in _IN_CYTHON.findall(text) + _IN_PYTHON.findall(text):
            if name in found:
                raise ValueError(f"crash point {name} stands in {found[name]} and in {path.relative_to(SOURCE)}")
            found[name] = str(path.relative_to(SOURCE))
    return found


def role_of(file: str) -> str:
    """The role of the processes that come past the points of a file."""
    if file.startswith("producer/"):
        return "front-end"
    return "supervisor" if Path(file).stem in SUPERVISORS else "sender"


class Trigger:
    """The file that arms one point at a time; `environment` is for the processes that are to see it."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / "crashpoints"
        self.path.write_bytes(bytes(BYTES))
        with open(self.path, "r+b") as file:
            self._page = mmap.mmap(file.fileno(), BYTES)
        self.environment = {VARIABLE: str(self.path)}

    def arm(self, name: str, role: str, signal: int, hit: int = 1) -> None:
        """From now on the `hit`-th process of that role that comes past the point gets the signal."""
        self.disarm()
        _FIELDS.pack_into(self._page, 4, signal, hit, 0, role.encode(), name.encode())
        struct.pack_into("=I", self._page, 0, 1)

    def disarm(self) -> None:
        struct.pack_into("=I", self._page, 0, 0)

    @property
    def fired(self) -> int:
        """The process that the point has acted on; 0: none yet."""
        return int(struct.unpack_from("=i", self._page, 16)[0])

    def wait(self, timeout: float = 20.0) -> int:
        """The process id, once the point has acted."""
        name = bytes(self._page[48:176]).rstrip(b"\0").decode()
        return wait_until(lambda: self.fired, timeout, f"crash point {name}")

    def close(self) -> None:
        self._page.close()
        os.unlink(self.path)
