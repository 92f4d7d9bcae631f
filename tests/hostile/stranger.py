"""Implements a front-end's side of the handshake in plain Python; it can send anything, and is the base of attacks."""

import contextlib
import ctypes
import os
import random
import socket
import sys
import time
from types import TracebackType
from typing import Any

from support.front_end import FREE, PlainFrontEnd, word

from cyproducer.host import control_messages
from cyproducer.shm.native import LAYOUT_VERSION

#: Its batches expire soon, so that the sender does not hold them for minutes.
SETTINGS = {"delivery_timeout_ms": 2000, "max_block_ms": 1000, "sender_idle_timeout_ms": 1000}
SLOTS = 1024
FALLOC_FL_KEEP_SIZE, FALLOC_FL_PUNCH_HOLE = 1, 2
_libc = ctypes.CDLL(None, use_errno=True)


def punch_hole(fd: int, at: int, size: int) -> None:
    """Remove pages of a memfd, which seals do not forbid."""
    flags = FALLOC_FL_KEEP_SIZE | FALLOC_FL_PUNCH_HOLE
    _libc.fallocate(fd, flags, ctypes.c_long(at), ctypes.c_long(size))


def connect(path: str) -> socket.socket:
    """Return a connection to the sender's control socket."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    sock.settimeout(10)
    sock.connect(path)
    return sock


class _Door:
    """Implements over the control socket what PlainFrontEnd calls on an engine."""

    def __init__(self, path: str) -> None:
        self.socket = connect(path)
        self.snapshot = -1

    def attach(self, arena_fd: int, slots: int, settings: dict[str, Any], wake_fd: int) -> tuple[int, int, int]:
        pidfd = os.pidfd_open(os.getpid())
        message = {
            "op": "attach",
            "layout": LAYOUT_VERSION,
            "pid": os.getpid(),
            "app": "hostile",
            "slots": slots,
            "settings": {**settings, **SETTINGS},
            "sender_settings": {},
        }
        try:
            control_messages.send(self.socket, message, [arena_fd, pidfd, wake_fd])
            answer, fds = control_messages.receive(self.socket)
        finally:
            for fd in (arena_fd, pidfd, wake_fd):
                os.close(fd)
        if not answer or not answer.get("ok"):
            raise ConnectionRefusedError(str(answer))
        outcomes, self.snapshot, wake = fds
        return answer["attach_id"], outcomes, wake

    def snapshot_fd(self) -> int:
        return self.snapshot


class Stranger(PlainFrontEnd):
    """One attached front-end that can write to all of its memory. A context manager.

    topic       dense number of the topic that the correct front-ends use; partitions are 0 to `partitions` - 1
    random      the round's own generator
    """

    def __init__(self, path: str, topic: str, partitions: int, generator: random.Random, **settings: Any) -> None:
        self.door = _Door(path)
        super().__init__(self.door, SLOTS, **settings)
        print(f"attached {self.attach_id}", flush=True)
        self.random = generator
        self.partitions = partitions
        self.generations = [0] * self.slot_count
        self.next_slot = 0
        self.topic = self._number_of(topic)

    def _number_of(self, topic: str) -> int:
        control_messages.send(self.door.socket, {"op": "want", "topic": topic})
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            found = self.snapshot.read()[3].get(topic)
            if found and found[1] == 0 and found[2]:
                return found[0]
            time.sleep(0.005)
        raise TimeoutError(f"no metadata of {topic}")

    @property
    def detached(self) -> bool:
        """Whether the sender has detached this front-end."""
        return self.outcomes_header("control") != 1

    def nudge(self) -> None:
        """Wake the sender."""
        try:
            os.eventfd_write(self.sender_wake_fd, 1)
        except BlockingIOError:
            pass

    def take_outcomes(self) -> None:
        """Free the slots of finished batches, as a correct front-end does."""
        for slot, generation, *_, flags in self.outcomes():
            if flags & 2 and slot < self.slot_count and self.generations[slot] == generation:
                self.generations[slot] = generation + 1 & 0xFFFFFF
                self.set_row(slot, word=word(FREE, self.generations[slot], 0, 0))

    def good_batch(self, seal: bool = True, size: int = 20, records: int = 3) -> int:
        """Write a batch as a correct front-end does; return its slot."""
        slot = self.next_slot
        self.next_slot = (slot + 16) % self.slot_count
        now = int(time.time() * 1000)
        values = [(now, b"hostile", self.random.randbytes(size)) for _ in range(records)]
        partition = self.random.randrange(self.partitions)
        generation = self.generations[slot]
        self.send(slot, values, topic=self.topic, partition=partition, generation=generation, seal=seal)
        return slot

    def __enter__(self) -> "Stranger":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if sys.is_finalizing():
            return
        self.door.socket.close()
        with contextlib.suppress(BufferError):  # the traceback of a failed attack still refers to it
            self.close()
