"""Asks the senders of this user how they are, or tells one to end."""

import json
import os
import socket
import time
from typing import Any

from cyproducer.errors import SenderUnavailableError
from cyproducer.shm import handshake
from cyproducer.shm.rendezvous import RendezvousError, runtime_directory, senders_in
from cyproducer.shm.waiting import wait_readable

__all__ = ["senders", "status", "stop"]

_ANSWER_S = 5.0
# A sender that was killed is followed by another: for so long a question is asked again.
_SUCCESSION_S = 2.0
_PAUSE_S = 0.02


def senders() -> list[str]:
    """The sockets of the senders that this user's runtime directory knows, whether they live or not.

    Raises SenderUnavailableError if there is no runtime directory.
    """
    try:
        return [description["socket"] for description in senders_in(runtime_directory())]
    except RendezvousError as error:
        raise SenderUnavailableError(str(error)) from None


def status(path: str | None = None, timeout: float = _ANSWER_S) -> list[dict[str, Any]]:
    """The status of every living sender of this user, or of the one at `path`.

    A list of `{socket, cluster_id, bootstrap_servers, sender_pid, supervisor_pid, started_at, restarts,
    front_ends: [{attach_id, pid, uid, app, buffer_memory, buffer_in_use, records_sent, oldest_unacked_ms,
    blocked_ms}], connections: [{broker_id, host, port, state, in_flight}], totals: {records, bytes, batches,
    requests, retries, errors}, ledger: [{app, topic, cause, count, first, last}], last_error}`. Times
    are seconds since 1970; a sender without a supervisor has `supervisor_pid` None and `restarts` 0.

    Raises SenderUnavailableError if the sender at `path` does not answer, or one that took the connection
    does not within `timeout` seconds.
    """
    if path is not None:
        return [_ask(path, timeout)]
    found = []
    for known in senders():
        try:
            found.append(_ask(known, timeout))
        except _NobodyThere:
            continue  # killed: its successor will tidy up
    return found


def stop(path: str, timeout: float | None = None) -> None:
    """Tells the sender at `path` to drain and end, and waits for that, at most `timeout` seconds.

    Raises SenderUnavailableError if there is none, it refuses, or it has not ended in time.
    """
    deadline = None if timeout is None else time.monotonic() + timeout
    sock, answer, _ = _question(path, {"op": "stop"}, _ANSWER_S)
    with sock:
        if answer is None:
            return
        if not answer.get("ok"):
            raise SenderUnavailableError(f"the sender at {path} refuses: {answer.get('message')}")
        while True:
            left = None if deadline is None else deadline - time.monotonic()
            if not wait_readable([sock.fileno()], left):
                raise SenderUnavailableError(f"the sender at {path} has not ended in time; it still drains")
            try:
                answer, _ = handshake.receive(sock)
            except ConnectionError:
                return
            if answer is None:
                return


class _NobodyThere(SenderUnavailableError):
    pass


def _connect(path: str) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        sock.settimeout(_ANSWER_S)
        sock.connect(path)
    except (FileNotFoundError, ConnectionRefusedError) as error:
        sock.close()
        raise _NobodyThere(f"no sender at {path} ({error.strerror})") from None
    except OSError as error:
        sock.close()
        raise SenderUnavailableError(f"cannot connect to the sender at {path}: {error}") from error
    return sock


def _question(
    path: str, message: dict[str, Any], timeout: float
) -> tuple[socket.socket, dict[str, Any] | None, list[int]]:
    """(connection, answer, descriptors), all the caller's; no answer: the sender is ending, and no other follows.

    Raises _NobodyThere if nobody listens at the first attempt.
    """
    give_up = time.monotonic() + _SUCCESSION_S
    sock = _connect(path)
    while True:
        try:
            handshake.send(sock, message)
            answer, fds = _receive(sock, path, timeout)
        except ConnectionError:
            answer, fds = None, []
        except BaseException:
            sock.close()
            raise
        ending = answer is None or answer.get("error") == "DRAINING"
        if not ending or time.monotonic() >= give_up:
            return sock, answer, fds
        wait_readable([], _PAUSE_S)
        try:
            successor = _connect(path)
        except _NobodyThere:
            return sock, None, []
        sock.close()
        sock = successor


def _receive(sock: socket.socket, path: str, timeout: float) -> tuple[dict[str, Any] | None, list[int]]:
    if not wait_readable([sock.fileno()], timeout):
        raise SenderUnavailableError(f"the sender at {path} took the connection but does not answer")
    try:
        return handshake.receive(sock)
    except ConnectionError:
        return None, []
    except (OSError, handshake.HandshakeError) as error:
        raise SenderUnavailableError(f"the sender at {path} answered what is no answer: {error}") from error


def _ask(path: str, timeout: float) -> dict[str, Any]:
    sock, answer, fds = _question(path, {"op": "status"}, timeout)
    sock.close()
    try:
        if answer is None:
            raise _NobodyThere(f"the sender at {path} is ending")
        if not answer.get("ok") or len(fds) != 1:
            raise SenderUnavailableError(f"the sender at {path} gives no status: {answer.get('message')}")
        # In a memfd: the status of a thousand front-ends is more than one message may hold.
        with open(os.dup(fds[0]), "rb") as file:
            file.seek(0)
            return dict(json.loads(file.read()))
    finally:
        for fd in fds:
            os.close(fd)
