"""Sends and receives control messages: each is one JSON object, with descriptors beside it.

A UNIX SOCK_SEQPACKET socket preserves message boundaries, so no process waits for the rest of a message that a slow
peer has sent in part.

The messages themselves are in messages.py.
"""

import array
import contextlib
import errno
import fcntl
import json
import os
import socket
import struct
import threading
from collections.abc import Iterable, Iterator
from typing import Any

from cyproducer.config.secrets import ConcealedBytes
from cyproducer.host.interrupts import pass_on
from cyproducer.shm.native import Descriptors

__all__ = [
    "MESSAGE_BYTES_MAX",
    "HandshakeError",
    "TruncatedError",
    "discard",
    "encode",
    "extended",
    "peek",
    "peer_credentials",
    "pieces",
    "receive",
    "receive_alone",
    "receive_into",
    "receive_sized",
    "send",
    "send_encoded",
]

MESSAGE_BYTES_MAX = 1 << 20
#: Well below net.core.wmem_default, which also limits the size of a message.
_PIECE_BYTES = 32_768
DESCRIPTORS_MAX = 8
#: The most threads that close descriptors of peers, see discard().
CLOSERS_MAX = 16
_CLOSER = "cyproducer-close"
_NO_LINGER = struct.pack("2i", 0, 0)
# Space for SCM_MAX_FD descriptors and credentials: the kernel closes descriptors that have no space, see discard().
_SPACE = socket.CMSG_SPACE(253 * 4) + socket.CMSG_SPACE(12)
_TRUNCATED = int(socket.MSG_CTRUNC | socket.MSG_TRUNC)  # an int: operators of an enum are slow
_UCRED = struct.Struct("3i")
_ENCODER = json.JSONEncoder(separators=(",", ":"))


class HandshakeError(Exception):
    """A message cannot be sent or is not valid; the text says why."""


class TruncatedError(HandshakeError):
    """A part of a message was lost, most often because this process had no free descriptor for those in it."""


def encode(message: dict[str, Any]) -> bytes:
    """Return the bytes of a message."""
    return _ENCODER.encode(message).encode()


def extended(data: bytes, more: dict[str, Any]) -> bytes:
    """Return an encoded message with more fields."""
    return data[:-1] + b"," + encode(more)[1:]


def pieces(rows: Iterable[Any]) -> Iterator[list[Any]]:
    """Yield the rows in lists that each fit into a message; nothing if there are no rows."""
    piece: list[Any] = []
    size = 0
    for row in rows:
        size += len(_ENCODER.encode(row)) + 1
        if piece and size > _PIECE_BYTES:
            yield piece
            piece, size = [], len(_ENCODER.encode(row)) + 1
        piece.append(row)
    if piece:
        yield piece


def send(sock: socket.socket, message: dict[str, Any], fds: tuple[int, ...] | list[int] = ()) -> None:
    """Send one message, with descriptors.

    Raise OSError (BlockingIOError if the socket is full), HandshakeError for a message that is too large to be sent.
    """
    send_encoded(sock, ConcealedBytes(encode(message)), fds)


def send_encoded(sock: socket.socket, data: bytes, fds: tuple[int, ...] | list[int] = ()) -> None:
    """Send a message that encode() has made; the rest is as in send()."""
    if len(data) > MESSAGE_BYTES_MAX:
        raise HandshakeError(f"the message has {len(data)} bytes, the limit is {MESSAGE_BYTES_MAX}")
    ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack(f"{len(fds)}i", *fds))] if fds else []
    try:
        sock.sendmsg([data], ancillary, socket.MSG_NOSIGNAL)
    except OSError as error:
        if error.errno != errno.EMSGSIZE:
            raise
        size = sock.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)
        raise HandshakeError(f"the message has {len(data)} bytes, the socket's buffer only {size}") from None


def receive(sock: socket.socket) -> tuple[dict[str, Any] | None, list[int]]:
    """Receive one message. Return (object, descriptors), or (None, []) if the peer has hung up.

    The caller owns the descriptors (close-on-exec is set). Close the descriptors and raise
    HandshakeError if the message is truncated or not a JSON object. Raise OSError as the socket does.
    """
    message, fds, _ = receive_sized(sock)
    return message, fds


def receive_alone(sock: Any) -> dict[str, Any] | None:
    """Receive one message that needs no descriptors, as receive() does. Those that have come with it are discarded."""
    message, fds = receive(sock)
    discard(fds)
    return message


def receive_sized(sock: socket.socket) -> tuple[dict[str, Any] | None, list[int], int]:
    """Receive as receive() does. Return (object, descriptors, bytes of the message)."""
    data, ancillary, flags, _ = sock.recvmsg(MESSAGE_BYTES_MAX, _SPACE, socket.MSG_CMSG_CLOEXEC)
    fds = _descriptors(ancillary)
    try:
        return _decoded(data, flags, len(fds)), fds, len(data)
    except BaseException:
        discard(fds)
        raise


def receive_into(sock: Any, fds: Descriptors) -> dict[str, Any] | None:
    """Receive as receive() does, where signal handlers may raise at any time: `fds` always owns what is received."""
    data, flags, count = fds.receive(sock, MESSAGE_BYTES_MAX)
    return _decoded(data, flags, count)


def _decoded(data: bytes, flags: int, fd_count: int) -> dict[str, Any] | None:
    """Return the object of a message; None for the end of the connection."""
    if flags & _TRUNCATED:
        raise TruncatedError("the message was truncated: it is too large, or no file descriptor is free")
    if fd_count > DESCRIPTORS_MAX:
        raise HandshakeError(f"the message has {fd_count} descriptors, the limit is {DESCRIPTORS_MAX}")
    if not data:
        if fd_count:
            raise HandshakeError("descriptors came without a message")
        return None
    try:
        message = json.loads(data.decode())
    except (ValueError, RecursionError) as error:
        pass_on(error)
        raise HandshakeError(f"the message is not JSON: {error}") from None
    if not isinstance(message, dict):
        raise HandshakeError("the message is not a JSON object")
    return message


def discard(fds: list[int]) -> None:
    """Close descriptors that the peer has sent, without waiting.

    close() may take as long as the peer chooses, for example for a socket that lingers or for a file on a file system
    that the peer serves. So another thread closes descriptors of unexpected kinds, after a socket was told not to
    linger. There are at most CLOSERS_MAX such threads: a peer could make each of them wait. If all wait, this thread
    closes the descriptors itself.
    """
    unexpected = [fd for fd in fds if not _closes_at_once(fd)]
    for fd in fds:
        if fd not in unexpected:
            os.close(fd)
    for fd in unexpected:
        _end_lingering(fd)
    if not unexpected:
        return
    closer = threading.Thread(target=_close_all, args=(unexpected,), daemon=True, name=_CLOSER)
    if sum(thread.name == _CLOSER for thread in threading.enumerate()) < CLOSERS_MAX:
        with contextlib.suppress(RuntimeError):  # the process may not have another thread
            closer.start()
            return
    _close_all(unexpected)


def _close_all(fds: list[int]) -> None:
    for fd in fds:
        with contextlib.suppress(OSError):  # the descriptor is closed nevertheless
            os.close(fd)


def _end_lingering(fd: int) -> None:
    """Make close() of a socket return at once. Do nothing for another descriptor."""
    with contextlib.suppress(OSError):
        sock = socket.socket(fileno=fd)
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
        finally:
            sock.detach()


def _closes_at_once(fd: int) -> bool:
    try:
        if os.readlink(f"/proc/self/fd/{fd}").startswith(("anon_inode:[eventfd]", "anon_inode:[pidfd]", "pidfd:")):
            return True
        fcntl.fcntl(fd, fcntl.F_GET_SEALS)  # succeeds only for a memfd or a file of tmpfs
    except OSError:
        return False
    return True


def _descriptors(ancillary: list[tuple[int, int, bytes]]) -> list[int]:
    fds = array.array("i")
    for level, kind, payload in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            fds.frombytes(payload[: len(payload) - len(payload) % fds.itemsize])
    return fds.tolist()


def peek(sock: socket.socket) -> dict[str, Any] | None:
    """Return the next message of a non-blocking socket and leave it there; None if it is invalid or the end.

    Raise BlockingIOError if none has arrived.
    """
    try:
        message = json.loads(sock.recv(MESSAGE_BYTES_MAX, socket.MSG_PEEK))
    except BlockingIOError:
        raise
    except (OSError, ValueError, RecursionError):
        return None
    return message if isinstance(message, dict) else None


def peer_credentials(sock: socket.socket) -> tuple[int, int, int]:
    """Return (pid, uid, gid) of the process that connected, from the kernel.

    The pid is 0 if its PID namespace is not visible from this process.
    """
    pid, uid, gid = _UCRED.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size))
    return pid, uid, gid
