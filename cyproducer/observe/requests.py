"""Sends one request to the control socket of a sender, and receives the answer."""

import json
import os
import socket
import stat
from typing import Any

from cyproducer.errors import SenderUnavailableError
from cyproducer.host import control_messages
from cyproducer.host.poll import wait_readable
from cyproducer.shm import system_clock

__all__ = ["ANSWER_S", "NoListenerError", "connect", "request", "request_document"]

ANSWER_S = 5.0
# A successor follows a sender that was killed: for this long a request is sent again.
_RETRY_S = 2.0
_PAUSE_S = 0.02
#: Far above the status of a sender with as many topics and front-ends as it can have.
_DOCUMENT_BYTES_MAX = 256 << 20


class NoListenerError(SenderUnavailableError):
    """No process listens at the socket."""


def connect(path: str) -> socket.socket:
    """Return a connection to the sender. Raise NoListenerError, or SenderUnavailableError for another reason."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        sock.settimeout(ANSWER_S)
        sock.connect(path)
    except (FileNotFoundError, ConnectionRefusedError) as error:
        sock.close()
        raise NoListenerError(f"no sender at {path} ({error.strerror})") from None
    except OSError as error:
        sock.close()
        raise SenderUnavailableError(f"cannot connect to the sender at {path}: {error}") from error
    return sock


def request(
    path: str, message: dict[str, Any], timeout: float
) -> tuple[socket.socket, dict[str, Any] | None, list[int]]:
    """Send a request and return (connection, answer, descriptors), which the caller owns.

    The answer is None if the sender is ending and no other sender follows. Raise NoListenerError if no process
    listens at the first attempt.
    """
    give_up = system_clock.monotonic() + _RETRY_S
    sock = connect(path)
    while True:
        try:
            control_messages.send(sock, message)
            answer, fds = _receive(sock, path, timeout)
        except ConnectionError:
            answer, fds = None, []
        except BaseException:
            sock.close()
            raise
        ending = answer is None or answer.get("error") == "DRAINING"
        if not ending or system_clock.monotonic() >= give_up:
            return sock, answer, fds
        control_messages.discard(fds)
        wait_readable([], _PAUSE_S)
        try:
            successor = connect(path)
        except NoListenerError:
            return sock, None, []
        sock.close()
        sock = successor


def _receive(sock: socket.socket, path: str, timeout: float) -> tuple[dict[str, Any] | None, list[int]]:
    if not wait_readable([sock.fileno()], timeout):
        text = f"the sender at {path} accepted the connection but did not answer within {timeout:g} s"
        raise SenderUnavailableError(text)
    try:
        return control_messages.receive(sock)
    except ConnectionError:
        return None, []
    except (OSError, control_messages.HandshakeError) as error:
        raise SenderUnavailableError(f"the sender at {path} sent an invalid reply: {error}") from error


def request_document(path: str, message: dict[str, Any], timeout: float, what: str) -> dict[str, Any]:
    """Send a request and return the JSON object that the sender answers with in a memfd: `what`, for errors.

    Raise NoListenerError if there is no sender at `path`, SenderUnavailableError if it refuses or does not answer.
    """
    sock, answer, fds = request(path, message, timeout)
    sock.close()
    try:
        if answer is None:
            raise NoListenerError(f"the sender at {path} is ending")
        if not answer.get("ok") or len(fds) != 1:
            raise SenderUnavailableError(f"the sender at {path} sent no {what}: {answer.get('message')}")
        try:
            return _document(fds[0])
        except (OSError, ValueError, RecursionError) as error:
            raise SenderUnavailableError(f"the sender at {path} sent an invalid {what}: {error}") from error
    finally:
        control_messages.discard(fds)


def _document(fd: int) -> dict[str, Any]:
    """Return the JSON object in a memfd; it may be too large for one message.

    Raise OSError, ValueError or RecursionError if there is none. The listener may be another user's, so a descriptor
    that has no end, or may block, is not read.
    """
    found = os.fstat(fd)
    if not stat.S_ISREG(found.st_mode):
        raise ValueError("it is not in a memory file")
    if found.st_size > _DOCUMENT_BYTES_MAX:
        raise ValueError(f"it has {found.st_size} bytes")
    document = json.loads(os.pread(fd, found.st_size, 0))
    if not isinstance(document, dict):
        raise ValueError("it is no JSON object")
    return document
