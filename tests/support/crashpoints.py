"""Finds the crash points in the source, and arms them for processes that use the file of a Trigger (crashpoint.h)."""

import mmap
import os
import re
from pathlib import Path

from support import layout
from support.build import SOURCE
from support.process import wait_until

VARIABLE = "CYPRODUCER_CRASHPOINTS"
BYTES = 4096
#: Modules of the sender that run in its supervisor.
SUPERVISORS = ("main", "supervisor", "election", "upgrade")
#: Points that the sender passes only after a broker has appended batches and its responses were lost. An engine on a
#: scripted broker is killed there: at these in tests/integration/engine/test_takeover_sequences.py,
IN_SEQUENCES = ("complete.predecessor-proven", "epoch.place-sought", "epoch.predecessor-excluded")
#: and at the others in test_takeover_points.py.
AFTER_LOST_ANSWERS = (*IN_SEQUENCES, "epoch.follower-excluded")
_IN_CYTHON = re.compile(r"""\bCRASHPOINT\(b?["']([^"']*)["']\)""")
_IN_PYTHON = re.compile(r"""\bcrashpoint\(["']([^"']*)["']\)""")


def points() -> dict[str, str]:
    """Return {name: file} of every crash point in the source. Raise ValueError for a name that is used twice."""
    found: dict[str, str] = {}
    for path in sorted(SOURCE.rglob("*")):
        if path.suffix not in (".py", ".pyx", ".pxd", ".h") or path.stem in ("build", "crashpoint"):
            continue
        text = path.read_text()
        for name in _IN_CYTHON.findall(text) + _IN_PYTHON.findall(text):
            if name in found:
                raise ValueError(f"crash point {name} is both in {found[name]} and in {path.relative_to(SOURCE)}")
            found[name] = str(path.relative_to(SOURCE))
    return found


def role_of(file: str) -> str:
    """Return the role of the processes that pass the crash points of a file."""
    if file.startswith("producer/"):
        return "front-end"
    return "supervisor" if Path(file).stem in SUPERVISORS else "sender"


class Trigger:
    """The file that arms one point at a time. Processes that must see it need `environment`."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / "crashpoints"
        self.path.write_bytes(bytes(BYTES))
        with open(self.path, "r+b") as file:
            self._page = mmap.mmap(file.fileno(), BYTES)
        self.environment = {VARIABLE: str(self.path)}

    def arm(self, name: str, role: str, signal: int, hit: int = 1) -> None:
        """Send the signal to a process of that role at the `hit`-th time that one passes the point from now on."""
        self.disarm()
        texts = {"role": role.encode() + b"\0", "name": name.encode() + b"\0"}
        layout.write(self._page, "cyp_crash_page", 0, signal=signal, hits=hit, fired=0, **texts, armed=1)

    def disarm(self) -> None:
        layout.write(self._page, "cyp_crash_page", 0, armed=0)

    @property
    def fired(self) -> int:
        """The pid of the process that got the signal; 0 if none has yet."""
        return layout.read(self._page, "cyp_crash_page", 0, "fired")

    def wait(self, timeout: float = 20.0) -> int:
        """Wait until a process got the signal and return its pid."""
        name = layout.read_bytes(self._page, "cyp_crash_page", 0, "name").partition(b"\0")[0].decode()
        return wait_until(lambda: self.fired, timeout, f"crash point {name}")

    def close(self) -> None:
        self._page.close()
        os.unlink(self.path)
