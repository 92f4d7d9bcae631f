"""Answers a front-end or a command with whatever the fuzzer of control messages draws, and checks what that does.

Of each connection on which such answers come, there is one method. Those of an attached producer are in
false_session.py.
"""

import contextlib
import logging
import os
import select
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

from cyproducer.config.settings import Settings
from cyproducer.errors import KafkaError
from cyproducer.host import control_messages
from cyproducer.observe import requests, status
from cyproducer.producer.channel import attach
from cyproducer.producer.channel.attach import vouch
from cyproducer.producer.channel.spawn import LimitedSenderError
from cyproducer.producer.core.attachment import Attachment
from cyproducer.producer.metrics import ask_client_instance_id
from cyproducer.producer.tokens.token_supplier import TokenSupplier
from cyproducer.sender.handover import upgrade
from hostile.live_control import Errors, descriptors
from hostile.messages import Step, open_all

__all__ = ["FalseSender", "send_step"]

_SLOTS = 256
_WAIT_S = 10.0
#: What the caller of an attach handles.
_OF_ATTACH = (KafkaError, LimitedSenderError, attach.TryAgainError)


def send_step(connection: socket.socket, step: Step) -> None:
    """Send a message of the fuzzer, if the queue has space for it and the peer is there."""
    fds = open_all(step.fds)
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, b"".join(fd.to_bytes(4, "little") for fd in fds))]
    with contextlib.suppress(OSError):
        connection.sendmsg([step.data], rights if fds else [], socket.MSG_NOSIGNAL | socket.MSG_DONTWAIT)
    for fd in fds:
        os.close(fd)


class FalseSender:
    """Listens, and answers. `inputs`: the messages that it has sent."""

    def __init__(self) -> None:
        self.inputs = 0
        self.handovers = 0  # that were complete
        self.directory = Path(tempfile.mkdtemp(prefix="cyp-fuzz-", dir="/tmp"))
        self.path = str(self.directory / "s.sock")
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.listener.bind(self.path)
        self.listener.listen()
        self.tokens = TokenSupplier(_oauth_settings())
        self.errors = Errors()
        logging.getLogger("cyproducer").addHandler(self.errors)
        requests._RETRY_S = 0.0  # a hang-up is followed by one more attempt at most
        upgrade._TRIES_S = 0.0

    def close(self) -> None:
        """Remove everything."""
        logging.getLogger("cyproducer").removeHandler(self.errors)
        self.tokens.close()
        self.listener.close()
        os.unlink(self.path)
        self.directory.rmdir()

    @contextlib.contextmanager
    def _attaching(self, steps: list[Step], hang_up: bool) -> Iterator[Attachment]:
        """Let a front-end connect, send it the messages, and perhaps hang up."""
        attachment = Attachment()
        attachment.slot_count = _SLOTS
        attachment.socket.connect(self.path)
        with self.listener.accept()[0] as connection:
            self._send(connection, steps)
            if hang_up:
                connection.close()
            try:
                yield attachment
            finally:
                attachment.close()

    def answer_attach(self, steps: list[Step]) -> None:
        """Answer a request to attach."""
        with _nothing_left(), self._attaching(steps, True) as attachment, contextlib.suppress(*_OF_ATTACH):
            progress = attach.AttachProgress()
            received = attach._receive_answer(attachment, self.path, False, time.monotonic() + 5, progress)
            attach._keep_descriptors(attachment, *received, self.path)

    def answer_token(self, steps: list[Step]) -> None:
        """Answer the token that precedes a request to attach."""
        self.tokens.message(time.monotonic() + _WAIT_S)  # its thread has ended before the descriptors are compared
        _until_no_thread()
        with _nothing_left(), self._attaching(steps, False) as attachment, contextlib.suppress(*_OF_ATTACH):
            vouch(attachment.socket, self.tokens, self.path, True, time.monotonic() + _WAIT_S)
        _until_no_thread()

    def serve_tokens(self, steps: list[Step]) -> None:
        """Answer the process that supplies tokens. It must connect again, and supply a token."""
        with _nothing_left():
            tokens = TokenSupplier(_oauth_settings())
            try:
                tokens.serve(self.path, False)
                self._answer_next(steps)
                message = self._answer_next([])
                assert message is not None and message["op"] == "token" and message["token"], message
            finally:
                tokens.close()
            _until_no_thread()
        assert not self.errors.texts, self.errors.texts[0]

    def answer_requests(self, steps: list[Step]) -> None:
        """Answer what commands and producers ask on connections of their own."""
        producer = SimpleNamespace(
            settings=SimpleNamespace(max_block_ms=0, enable_metrics_push=True),
            attached=lambda deadline: SimpleNamespace(
                attachment=SimpleNamespace(socket=SimpleNamespace(getpeername=lambda: self.path))
            ),
        )
        for ask in (
            lambda: status._ask(self.path, _WAIT_S),
            lambda: status.stop(self.path, _WAIT_S),
            lambda: ask_client_instance_id(producer, 0.0),
        ):
            with _nothing_left(), self._answering(steps), contextlib.suppress(KafkaError):
                ask()

    def hand_over(self, steps: list[Step]) -> None:
        """Answer a supervisor that takes over. It uses what it got as if it ended at once."""
        with _nothing_left(), self._answering(steps, waits=True), contextlib.suppress(KafkaError):
            predecessor = upgrade.take_over(self.path, {}, None)
            assert predecessor is not None
            assert predecessor.listener is not None
            self.handovers += 1
            predecessor.handover.close()
            predecessor.drop()

    @contextlib.contextmanager
    def _answering(self, steps: list[Step], waits: bool = False) -> Iterator[None]:
        """Answer each request with the messages, in a thread. waits: until the peer hangs up."""
        ended, stop = os.pipe()

        def serve() -> None:
            while True:
                ready, _, _ = select.select([self.listener, ended], [], [], _WAIT_S)
                if self.listener not in ready:
                    return
                self._answer_next(steps, waits)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield
        finally:
            os.close(stop)
            thread.join()
            os.close(ended)

    def _answer_next(self, steps: list[Step], waits: bool = False) -> dict[str, object] | None:
        """Accept a connection, read its first message, answer with the messages, and hang up."""
        self.listener.settimeout(_WAIT_S)
        with self.listener.accept()[0] as connection:
            connection.settimeout(_WAIT_S)
            message, fds = control_messages.receive(connection)
            control_messages.discard(fds)
            self._send(connection, steps)
            if waits:  # the peer sends more, which fails if this end is closed
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_WR)
                    while connection.recv(100):
                        pass
        return message

    def _send(self, connection: socket.socket, steps: list[Step]) -> None:
        for step in steps:
            self.inputs += 1
            send_step(connection, step)


def _oauth_settings() -> Settings:
    return Settings.parse(
        bootstrap_servers="127.0.0.1:9",
        security_protocol="SASL_PLAINTEXT",
        sasl_mechanism="OAUTHBEARER",
        sasl_oauth_token_provider=lambda: ("token", time.time() + 3600),
    )


@contextlib.contextmanager
def _nothing_left() -> Iterator[None]:
    before = descriptors()
    yield

    def left() -> dict[str, str]:
        return {fd: what for fd, what in descriptors().items() if before.get(fd) != what}

    _wait_until(lambda: not left(), lambda: f"the process keeps {left()}")  # a thread may close them


def _until_no_thread() -> None:
    def ended() -> bool:
        return not any(thread.name == "cyproducer-tokens" for thread in threading.enumerate())

    _wait_until(ended, lambda: "the thread of the tokens does not end")


def _wait_until(holds: Callable[[], bool], text: Callable[[], str]) -> None:
    give_up = time.monotonic() + _WAIT_S
    while not holds():
        assert time.monotonic() < give_up, text()
        time.sleep(0.001)
