"""Makes the payloads of pushes in a helper process, so that the sender's loop does not wait for them.

Importing the library takes some 60 ms, and a sender with 1,024 topics has 9,000 numbers. An error of the library ends
only the helper.

    sender -> helper    {"id"} with a memfd: a marshalled otlp.Request; without it, only the library is imported
    helper -> sender    {"id", "codec"} with a memfd: the payload; without it, if there was none in the question
                        or {"id", "error", "missing"}; missing: the library is not installed
"""

import gc
import marshal
import os
import socket
from collections.abc import Iterator
from typing import Any, NamedTuple

from cyproducer.host import control_messages
from cyproducer.sender.system.helper_process import HelperProcess
from cyproducer.sender.telemetry import otlp

__all__ = ["Payload", "PayloadProcess"]

_NICE = 10  # a payload is less urgent than records


class Payload(NamedTuple):
    """An answer: the compressed metrics, or why there are none. `missing`: the library is not installed."""

    codec: int = 0
    data: bytes = b""
    error: str = ""
    missing: bool = False


class PayloadProcess:
    """The helper process. `fd` is readable when answers wait for `collect()`."""

    def __init__(self) -> None:
        self._helper = HelperProcess("cyp-telemetry", serve)
        self.fd = self._helper.fd
        self._asked = 0
        self._due = 0  # the id of the question whose answer is waited for; 0: none

    def prepare(self) -> None:
        """Let the library be imported. An answer comes only if that fails. Raise as request() does."""
        self._ask(())

    def request(self, wanted: otlp.Request) -> None:
        """Request a payload. Raise OSError or HandshakeError if the process cannot be asked."""
        fd = _memfd(marshal.dumps(tuple(wanted)))
        try:
            self._due = self._ask((fd,))
        finally:
            os.close(fd)

    def _ask(self, fds: tuple[int, ...]) -> int:
        self._asked += 1
        self._helper.ask({"id": self._asked}, fds)
        return self._asked

    def collect(self) -> Iterator[Payload]:
        """Yield the payload that was requested, when it is there, and errors."""
        for answer, fds in self._helper.answers():
            if answer is None:
                due, self._due = self._due, 0
                if due:
                    yield Payload(error="the process that prepares the metrics has ended")
                continue
            data = _taken(fds)
            if answer["id"] == self._due:
                self._due = 0
            elif "error" not in answer:
                continue
            yield Payload(answer.get("codec", 0), data, answer.get("error", ""), answer.get("missing", False))

    def end(self) -> None:
        """End the process until it is needed again."""
        self._due = 0
        self._helper.end()

    def close(self) -> None:
        self._helper.close()
        self.fd = self._helper.fd


def _memfd(data: bytes) -> int:
    fd = os.memfd_create("cyproducer-telemetry", os.MFD_CLOEXEC)
    try:
        with open(os.dup(fd), "wb") as file:
            file.write(data)
    except BaseException:
        os.close(fd)
        raise
    return fd


def _taken(fds: list[int]) -> bytes:
    """Return the bytes of the memfd in a message, and close its descriptors."""
    try:
        if not fds:
            return b""
        with open(os.dup(fds[0]), "rb") as file:
            file.seek(0)
            return file.read()
    finally:
        for fd in fds:
            os.close(fd)


# ---------------------------------------------------------------------- the helper


def serve(sock: socket.socket) -> None:
    """Answer the sender's questions."""
    os.nice(_NICE)
    gc.freeze()  # the objects of the sender are never collected
    gc.enable()
    while True:
        question, fds = control_messages.receive(sock)
        if question is None:
            return
        answer, made = _answer(question["id"], _taken(fds))
        control_messages.send(sock, answer, made)
        for fd in made:
            os.close(fd)


def _answer(number: int, data: bytes) -> tuple[dict[str, Any], tuple[int, ...]]:
    try:
        if not data:
            otlp.load_library()
            return {"id": number}, ()
        codec, payload = otlp.payload(otlp.Request(*marshal.loads(data)))
        return {"id": number, "codec": codec}, (_memfd(payload),)
    except ImportError as error:
        return {"id": number, "error": str(error)[:1000], "missing": True}, ()
    except Exception as error:  # of a library that is not ours
        return {"id": number, "error": f"{type(error).__name__}: {error}"[:1000], "missing": False}, ()
