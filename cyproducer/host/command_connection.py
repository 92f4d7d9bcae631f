"""Connects to the sender for the commands of a front-end, and closes that connection safely."""

import _socket
from typing import Any

from cyproducer.host import control_messages
from cyproducer.host.interrupts import pass_on
from cyproducer.shm.native import disown, file_of, is_still, own

__all__ = ["TRY_LATER", "CommandConnection"]

#: Errors in answers. The sender is ending, has too few resources for another connection, or does not know this process.
TRY_LATER = ("DRAINING", "REFUSED")


class CommandConnection:
    """One connection to the control socket of a sender. A forked child closes its copy.

    Between two commands of a transactional producer the attachment keeps it, so that it is closed with the attachment.
    `address`: that of the sender, once open() has found it.
    """

    _fd = -1  # until __init__() has ended, which a signal's handler may interrupt

    def __init__(self) -> None:
        self.address = ""
        # From _socket: gevent's socket.socket switches greenlets instead of raising EAGAIN.
        self._socket: Any = _socket.socket(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
        fd = self._socket.fileno()
        self._file = file_of(fd)
        own(fd, self._file)
        self._fd = fd  # last: close() detaches a socket that own() does not know

    def __del__(self) -> None:
        if disown is not None:  # None: the interpreter ends
            self.close()

    def open(self, control_socket: Any) -> bool:
        """Connect to the sender at the other end of a control socket. Return False if it cannot be reached now."""
        try:
            self.address = control_socket.getpeername()  # it fails if another thread has just ended the session
            self._socket.setblocking(False)
            self._socket.connect(self.address)
            return True
        except OSError as error:
            pass_on(error)
            return False

    def is_usable(self) -> bool:
        """Return whether the descriptor is still the connection's, and the sender has not hung up."""
        if not is_still(self._fd, self._file):
            return False  # the program has closed it
        try:
            self._socket.recv(1, _socket.MSG_PEEK)
        except BlockingIOError:
            return True
        except OSError as error:
            pass_on(error)
        return False

    def send(self, message: dict[str, Any]) -> bool:
        """Send a message. Return False if the sender has hung up."""
        try:
            control_messages.send(self._socket, message)
            return True
        except OSError as error:
            pass_on(error)
            return False

    @property
    def fd(self) -> int:
        """The descriptor, which is readable when there is an answer or a hang-up."""
        return self._fd

    def receive(self) -> dict[str, Any] | None:
        """Return the answer that has come. None: the sender has hung up, or the answer is not valid."""
        try:
            return control_messages.receive_alone(self._socket)
        except OSError as error:
            pass_on(error)
            return None
        except control_messages.HandshakeError:
            return None

    def close(self) -> None:
        """Hang up. Do nothing if called again. A descriptor that is another file's by now stays open."""
        if self._fd < 0:
            return
        fd, self._fd = self._fd, -1
        if disown(fd, self._file) and is_still(fd, self._file):
            self._socket.close()
        else:
            self._socket.detach()
