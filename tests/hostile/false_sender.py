"""Answers a front-end that attaches with whatever the fuzzer of control messages draws, and checks the front-end."""

import contextlib
import os
import socket
import tempfile
import time
from pathlib import Path

from cyproducer.errors import KafkaError
from cyproducer.producer.attach import attempt
from cyproducer.producer.attach.attachment import Attachment
from cyproducer.producer.attach.limited_sender import LimitedSenderError
from hostile.live_control import descriptors
from hostile.messages import Step, open_all

__all__ = ["FalseSender"]

_SLOTS = 256


class FalseSender:
    """Listens, and answers in the same thread. `inputs`: the messages that it has sent."""

    def __init__(self) -> None:
        self.inputs = 0
        self.directory = Path(tempfile.mkdtemp(prefix="cyp-fuzz-", dir="/tmp"))
        self.path = str(self.directory / "s.sock")
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.listener.bind(self.path)
        self.listener.listen()

    def close(self) -> None:
        """Remove everything."""
        self.listener.close()
        os.unlink(self.path)
        self.directory.rmdir()

    def answer(self, steps: list[Step]) -> None:
        """Let a front-end connect, send it the messages, hang up, and let it handle the first ones."""
        before = descriptors()
        attachment = Attachment()
        attachment.slot_count = _SLOTS
        attachment.socket.connect(self.path)
        with self.listener.accept()[0] as connection:
            connection.setblocking(False)
            for step in steps:
                self._send(connection, step)
        # Of the module: these are what a producer's caller handles.
        expected = (KafkaError, LimitedSenderError, attempt.TryAgainError)
        try:
            with contextlib.suppress(*expected):
                attempt._receive_answer(attachment, self.path, False, time.monotonic() + 5, attempt.AttachProgress())
        finally:
            attachment.close()
        left = {fd: what for fd, what in descriptors().items() if before.get(fd) != what}
        assert not left, f"the front-end keeps {left}"

    def _send(self, connection: socket.socket, step: Step) -> None:
        self.inputs += 1
        fds = open_all(step.fds)
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, b"".join(fd.to_bytes(4, "little") for fd in fds))]
        with contextlib.suppress(OSError):  # the queue is full
            connection.sendmsg([step.data], rights if fds else [], socket.MSG_NOSIGNAL)
        for fd in fds:
            os.close(fd)
