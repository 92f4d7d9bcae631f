"""How a front-end and the sender talk on the control socket: one JSON object a message, descriptors beside it.

A UNIX SOCK_SEQPACKET socket keeps messages apart, so that a short or slow peer cannot make the other wait for
the rest of one.

    front-end -> sender   {"op": "attach", "layout", "pid", "app", "slots", "settings", "sender_settings"}
                          with descriptors ARENA, PIDFD, WAKE (eventfd that the sender writes)
    sender -> front-end   {"ok": true, "attach_id", "sender_pid", "snapshot_version"}
                          with descriptors OUTCOMES (read-only), SNAPSHOT (read-only),
                          WAKE (eventfd that the front-end writes)
                          or {"ok": false, "error": code name, "message"}
    later, front-end      {"op": "want", "topic": name}         its metadata comes with a snapshot
                          {"op": "close"}                       all is acknowledged: detach
    sender                {"op": "warning", "message"}          for the logger cyproducer.sender
    anybody               {"op": "status"} -> the status as JSON; {"op": "stop"} -> drain and end
"""

import array
import json
import os
import socket
import struct
from typing import Any

__all__ = ["MESSAGE_BYTES_MAX", "HandshakeError", "peek", "peer_credentials", "receive", "send"]

MESSAGE_BYTES_MAX = 1 << 20
DESCRIPTORS_MAX = 8
_UCRED = struct.Struct("3i")


class HandshakeError(Exception):
    """A message that is none of ours; the text says why."""


def send(sock: socket.socket, message: dict[str, Any], fds: tuple[int, ...] | list[int] = ()) -> None:
    """Sends one message, with descriptors. Raises OSError (BlockingIOError if the socket is full)."""
    data = json.dumps(message, separators=(",", ":")).encode()
    if len(data) > MESSAGE_BYTES_MAX:
        raise HandshakeError(f"a message of {len(data)} bytes, {MESSAGE_BYTES_MAX} are allowed")
    ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
    sock.sendmsg([data], ancillary, socket.MSG_NOSIGNAL)


def receive(sock: socket.socket) -> tuple[dict[str, Any] | None, list[int]]:
    """Receives one message: (object, descriptors); (None, []) when the other side has hung up.

    The caller owns the descriptors (close-on-exec is set). Raises HandshakeError after closing them if the
    message is truncated or no JSON object; OSError as the socket does.
    """
    space = socket.CMSG_SPACE(DESCRIPTORS_MAX * 4)
    data, ancillary, flags, _ = sock.recvmsg(MESSAGE_BYTES_MAX, space, socket.MSG_CMSG_CLOEXEC)
    fds: list[int] = []
    for level, kind, payload in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            received = array.array("i")
            received.frombytes(payload[: len(payload) - len(payload) % received.itemsize])
            fds.extend(received)
    try:
        if flags & (socket.MSG_CTRUNC | socket.MSG_TRUNC):
            raise HandshakeError("a truncated message (too large, or no file descriptors left)")
        if not data:
            if fds:
                raise HandshakeError("descriptors without a message")
            return None, []
        try:
            message = json.loads(data)
        except ValueError as error:
            raise HandshakeError(f"no JSON: {error}") from None
        if not isinstance(message, dict):
            raise HandshakeError("no JSON object")
        return message, fds
    except HandshakeError:
        for fd in fds:
            os.close(fd)
        raise


def peek(sock: socket.socket) -> dict[str, Any] | None:
    """The next message of a non-blocking socket, which stays there; None if there is none, or it is none."""
    try:
        message = json.loads(sock.recv(MESSAGE_BYTES_MAX, socket.MSG_PEEK))
    except (OSError, ValueError):
        return None
    return message if isinstance(message, dict) else None


def peer_credentials(sock: socket.socket) -> tuple[int, int, int]:
    """(pid, uid, gid) of the process that connected, as the kernel saw it; pid 0 from a sibling PID namespace."""
    pid, uid, gid = _UCRED.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size))
    return pid, uid, gid
