"""Owns the descriptors and the shared memory by which a front-end is attached to its sender.

No descriptor stays open in a forked child, where it would hide the parent's end from the sender.
"""

import _socket
import weakref
from typing import Any

from cyproducer.host.command_connection import CommandConnection
from cyproducer.shm.native import Region, SnapshotReader, WakePair, file_of, in_child, is_still

__all__ = ["Attachment", "ControlSocket", "close_attachment"]


class ControlSocket(_socket.socket):
    """A socket without ResourceWarning: a producer may be left open until the interpreter ends."""

    __slots__ = ()

    # A native function: in one of Python, a signal handler could raise an exception before the socket is closed.
    __del__ = _socket.socket.close


class Attachment(WakePair):
    """The connection of a front-end to its sender. The caller closes it; in a forked child it closes itself.

    socket           the non-blocking control socket; the sender has ended when it hangs up
    arena            Region of this front-end, writable; `slot_count` slots
    outcomes         Region of the sender, read-only
    snapshot         SnapshotReader of the sender's metadata
    wake_fd          datagram socket that the sender writes
    sender_wake_fd   eventfd that wakes the sender
    attach_id        number that the sender has given this front-end
    command_key      shown with each command; "" if the sender is of a version that gives none
    sender_state     number of the sender's state region, which a successor takes over; 0 unless the front-end takes
                     part in the transaction of another process
    max_request_size the sender's limit for a record and a request, in bytes; None if the sender does not tell it
    """

    __slots__ = (
        "__weakref__",
        "_command",
        "_socket_file",
        "_wake_files",
        "arena",
        "attach_id",
        "command_key",
        "max_request_size",
        "outcomes",
        "sender_pid",
        "sender_state",
        "slot_count",
        "snapshot",
        "socket",
    )

    def __init__(self) -> None:
        # From _socket: gevent's socket.socket switches greenlets instead of raising EAGAIN.
        self.socket: Any = ControlSocket(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
        self.socket.setblocking(False)
        self._socket_file = file_of(self.socket.fileno())
        self._wake_files: dict[str, tuple[int, int]] = {}
        self.arena: Region | None = None
        self.outcomes: Region | None = None
        self.snapshot: SnapshotReader | None = None
        self.slot_count = 0
        self.attach_id = self.sender_pid = self.sender_state = 0
        self.max_request_size: int | None = None
        self.command_key = ""
        self._command: CommandConnection | None = None
        _attachments.add(self)

    def close(self) -> None:
        """Hang up and give the memory back. The sender delivers what is committed. Do nothing if called again.

        Threads may be inside methods of the session, so the addresses stay mapped until the last reference is gone.
        """
        self.close_descriptors()
        if self.arena is not None:
            self.arena.vacate()
        if self.outcomes is not None:
            self.outcomes.vacate()
        if self.snapshot is not None:
            self.snapshot.region.vacate()

    def note_file(self, name: str) -> None:
        """Remember the file of `wake_fd` or `sender_wake_fd`, so that only this one is closed."""
        self._wake_files[name] = file_of(getattr(self, name))

    def _is_still_ours(self, name: str) -> bool:
        # It is not noted if a fork came between creating and noting it. The descriptor is ours.
        return name not in self._wake_files or is_still(getattr(self, name), self._wake_files[name])

    def close_descriptors(self) -> None:
        """Hang up; the memory stays mapped. Do nothing if called again, or what an exception of a handler has left."""
        self.drop_command()
        has_socket = is_still(self.socket.fileno(), self._socket_file)
        has_wake = self._is_still_ours("wake_fd")
        # All eventfds and epolls have one inode: assume that it is ours if the other descriptors are.
        has_sender_wake = has_socket and has_wake and self._is_still_ours("sender_wake_fd")
        self.hang_up(self.socket, has_socket, has_wake, has_sender_wake)
        _attachments.discard(self)
        if self.arena is not None:
            self.arena.close_descriptor()

    def keep_command(self, connection: CommandConnection) -> None:
        """Keep the connection of a command for the next one."""
        self._command = connection

    def take_command(self) -> CommandConnection | None:
        """Return the connection that was kept. None: there is none, or a command uses it."""
        kept, self._command = self._command, None
        return kept

    def drop_command(self) -> None:
        """Close the connection that is kept for commands, if there is one."""
        kept = self.take_command()
        if kept is not None:
            kept.close()


def close_attachment(attachment: Attachment) -> None:
    """Close the attachment completely, also if a signal's handler raises meanwhile."""
    try:
        attachment.close()
    except BaseException:
        attachment.close()
        raise


_attachments: "weakref.WeakSet[Attachment]" = weakref.WeakSet()


def _close_in_child() -> None:
    """Close the parent's descriptors in a forked child, because they would hide the parent's end from the sender."""
    inherited = list(_attachments)
    _attachments.clear()
    for attachment in inherited:
        attachment.close_descriptors()


in_child(_close_in_child)
