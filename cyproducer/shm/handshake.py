"""How a front-end and the sender talk on the control socket: one JSON object a message, descriptors beside it.

A UNIX SOCK_SEQPACKET socket keeps messages apart, so that a short or slow peer cannot make the other wait for
the rest of one.

    front-end -> sender   {"op": "attach", "layout", "pid", "time_namespace", "app", "slots", "settings",
                           "sender_settings"}
                          with descriptors ARENA, PIDFD, WAKE (datagram socket that the sender writes)
    sender -> front-end   {"ok": true, "attach_id", "sender_pid", "snapshot_version"}
                          with descriptors OUTCOMES (read-only), SNAPSHOT (read-only),
                          WAKE (eventfd that the front-end writes)
                          or {"ok": false, "error": code name, "message"}
    later, front-end      {"op": "want", "topic": name}         its metadata comes with a snapshot
                          {"op": "close"}                       all is acknowledged: detach
    sender                {"op": "warning", "message"}          for the logger cyproducer.sender
                          {"op": "ended"}                       an orderly end: nothing more goes out, then it hangs up
                          {"op": "detached", "message"}         given up, though the sender goes on with what it knows
    A hang-up without either: sender and supervisor are gone, what did not go out is its owner's again.
    anybody               {"op": "status"} -> the status as JSON; {"op": "stop"} -> drain and end
"""

import array
import errno
import fcntl
import json
import os
import socket
import struct
import threading
from collections.abc import Iterable, Iterator
from typing import Any

__all__ = [
    "MESSAGE_BYTES_MAX",
    "HandshakeError",
    "TruncatedError",
    "discard",
    "drain",
    "encode",
    "extended",
    "peek",
    "peer_credentials",
    "pieces",
    "receive",
    "send",
    "send_encoded",
]

MESSAGE_BYTES_MAX = 1 << 20
#: Well below net.core.wmem_default, which limits a message as well.
_PIECE_BYTES = 32_768
DESCRIPTORS_MAX = 8
# Room for SCM_MAX_FD descriptors and credentials: what finds none is closed by the kernel, see discard().
_SPACE = socket.CMSG_SPACE(253 * 4) + socket.CMSG_SPACE(12)
_MESSAGES_UNREAD_MAX = 4096
_UCRED = struct.Struct("3i")
_ENCODER = json.JSONEncoder(separators=(",", ":"))


class HandshakeError(Exception):
    """A message that is none of ours; the text says why."""


class TruncatedError(HandshakeError):
    """Not all of a message has come: most often, there was no descriptor left for what came with it."""


def encode(message: dict[str, Any]) -> bytes:
    """The bytes of a message."""
    return _ENCODER.encode(message).encode()


def extended(data: bytes, more: dict[str, Any]) -> bytes:
    """A message that is encoded, with more fields."""
    return data[:-1] + b"," + encode(more)[1:]


def pieces(rows: Iterable[Any]) -> Iterator[list[Any]]:
    """The rows in lists for a message each, none of which is too large to be sent; no rows: none."""
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
    """Sends one message, with descriptors.

    Raises OSError (BlockingIOError if the socket is full), HandshakeError for a message that can never be sent.
    """
    send_encoded(sock, encode(message), fds)


def send_encoded(sock: socket.socket, data: bytes, fds: tuple[int, ...] | list[int] = ()) -> None:
    """As send(), of what encode() has made."""
    if len(data) > MESSAGE_BYTES_MAX:
        raise HandshakeError(f"a message of {len(data)} bytes, {MESSAGE_BYTES_MAX} are allowed")
    ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
    try:
        sock.sendmsg([data], ancillary, socket.MSG_NOSIGNAL)
    except OSError as error:
        if error.errno != errno.EMSGSIZE:
            raise
        room = sock.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)
        raise HandshakeError(f"a message of {len(data)} bytes, the socket's buffer has {room}") from None


def receive(sock: socket.socket) -> tuple[dict[str, Any] | None, list[int]]:
    """Receives one message: (object, descriptors); (None, []) when the other side has hung up.

    The caller owns the descriptors (close-on-exec is set). Raises HandshakeError after closing them if the
    message is truncated or no JSON object; OSError as the socket does.
    """
    data, ancillary, flags, _ = sock.recvmsg(MESSAGE_BYTES_MAX, _SPACE, socket.MSG_CMSG_CLOEXEC)
    fds = _descriptors(ancillary)
    try:
        if flags & (socket.MSG_CTRUNC | socket.MSG_TRUNC):
            raise TruncatedError("a truncated message (too large, or no file descriptors left)")
        if len(fds) > DESCRIPTORS_MAX:
            raise HandshakeError(f"{len(fds)} descriptors, {DESCRIPTORS_MAX} are allowed")
        if not data:
            if fds:
                raise HandshakeError("descriptors without a message")
            return None, []
        try:
            message = json.loads(data)
        except (ValueError, RecursionError) as error:
            raise HandshakeError(f"no JSON: {error}") from None
        if not isinstance(message, dict):
            raise HandshakeError("no JSON object")
        return message, fds
    except BaseException:
        discard(fds)
        raise


def discard(fds: list[int]) -> None:
    """Closes descriptors that the other side has sent, without waiting.

    close() of a socket that lingers, or of a file on a file system that the peer serves, lasts as long as the
    peer likes: what is none of the kinds that belong here is closed by another thread.
    """
    strange = [fd for fd in fds if not _closes_at_once(fd)]
    for fd in fds:
        if fd not in strange:
            os.close(fd)
    if strange:
        threading.Thread(target=_close_all, args=(strange,), daemon=True).start()


def _close_all(fds: list[int]) -> None:
    for fd in fds:
        try:
            os.close(fd)
        except OSError:
            pass  # it is closed all the same


def _closes_at_once(fd: int) -> bool:
    try:
        if os.readlink(f"/proc/self/fd/{fd}").startswith(("anon_inode:[eventfd]", "anon_inode:[pidfd]", "pidfd:")):
            return True
        fcntl.fcntl(fd, fcntl.F_GET_SEALS)  # only a memfd has any, or a file of tmpfs
    except OSError:
        return False
    return True


def drain(sock: socket.socket) -> None:
    """Ends a connection for all who hold it, and takes out what lies in it unread.

    With the last descriptor of a socket the descriptors in it are closed, see discard().
    """
    try:
        sock.shutdown(socket.SHUT_RDWR)  # from here on nothing comes
        sock.setblocking(False)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)  # tells an empty message from the end
        for _ in range(_MESSAGES_UNREAD_MAX):
            _, ancillary, _, _ = sock.recvmsg(1, _SPACE)
            if not ancillary:
                break
            discard(_descriptors(ancillary))
    except OSError:
        pass  # the other side has ended it


def _descriptors(ancillary: list[tuple[int, int, bytes]]) -> list[int]:
    fds = array.array("i")
    for level, kind, payload in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            fds.frombytes(payload[: len(payload) - len(payload) % fds.itemsize])
    return fds.tolist()


def peek(sock: socket.socket) -> dict[str, Any] | None:
    """The next message of a non-blocking socket, which stays there; None if there is none, or it is none."""
    try:
        message = json.loads(sock.recv(MESSAGE_BYTES_MAX, socket.MSG_PEEK))
    except (OSError, ValueError, RecursionError):
        return None
    return message if isinstance(message, dict) else None


def peer_credentials(sock: socket.socket) -> tuple[int, int, int]:
    """(pid, uid, gid) of the process that connected, as the kernel saw it; pid 0 from a sibling PID namespace."""
    pid, uid, gid = _UCRED.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size))
    return pid, uid, gid
