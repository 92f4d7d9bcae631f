"""Reserves descriptors and memory, so that a sender without resources can still refuse attaches and be replaced."""

import contextlib
import mmap
import os
import resource
import socket
from collections.abc import Iterator
from typing import Any

from cyproducer.host import control_messages

__all__ = ["Reserve"]

#: For a connection, and for the answer to `cyproducer status`.
_DESCRIPTORS = 4
_FEW = 64  # below this limit of descriptors only one is reserved
#: For one message on the control socket, and the Python objects that it becomes.
_MEMORY_BYTES = 4 << 20


class Reserve:
    """Holds descriptors, and memory that is never touched. No method raises: under a low limit it holds less."""

    def __init__(self) -> None:
        limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._wanted = 1 if 0 <= limit < _FEW else _DESCRIPTORS
        self._fds: list[int] = []
        self._memory: mmap.mmap | None = None
        self.fill()

    def fill(self) -> None:
        """Reserve again what was released, as far as resources are available."""
        try:
            while len(self._fds) < self._wanted:
                self._fds.append(os.eventfd(0, os.EFD_CLOEXEC))
            if self._memory is None:
                self._memory = mmap.mmap(-1, _MEMORY_BYTES, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        except (OSError, MemoryError):
            pass  # the next call may succeed

    def give_descriptor(self) -> bool:
        """Release one descriptor until the next fill(); False if none is left."""
        if not self._fds:
            return False
        os.close(self._fds.pop())
        return True

    def receive(self, sock: socket.socket) -> tuple[dict[str, Any] | None, list[int], int]:
        """Receive as control_messages.receive_sized() does; use the reserved memory if no other memory is left."""
        try:
            return control_messages.receive_sized(sock)
        except MemoryError:  # while the buffer was allocated: the message is still in the socket
            with self.released():
                return control_messages.receive_sized(sock)

    @contextlib.contextmanager
    def released(self) -> Iterator[None]:
        """Release the whole reserve inside the block."""
        self.close()
        try:
            yield
        finally:
            self.fill()

    def close(self) -> None:
        """Release everything. A second call does nothing."""
        while self.give_descriptor():
            pass
        if self._memory is not None:
            self._memory.close()
            self._memory = None
