"""Tells an attached producer whatever the fuzzer of control messages draws, and answers its commands with that."""

import contextlib
import select
import threading
import time
from collections.abc import Iterator
from typing import Any

from cyproducer import KafkaProducer
from cyproducer.errors import KafkaError
from cyproducer.sender.control.requests import Operation
from hostile.false_sender import send_step
from hostile.live_control import LiveControl
from hostile.messages import Step

__all__ = ["FalseSession"]

_WAIT_S = 30.0
_BLOCK_MS = 30_000


class FalseSession:
    """A sender without a broker, in a thread, and producers that attach to it. `inputs`: the messages that were sent.

    The sender is correct, but the messages of the fuzzer come from its sockets.
    """

    def __init__(self) -> None:
        self.inputs = 0
        self.live = LiveControl()
        self.server = self.live.server
        self._commands: list[Step] = []
        # The answer to a command of a producer comes from here.
        self.server._requests.operations["transaction"] = Operation(self.do, of_front_end=False)
        self._failures: list[BaseException] = []

    @contextlib.contextmanager
    def _running(self) -> Iterator[None]:
        """Run the sender in a thread. Nothing may have failed in it."""
        ending = threading.Event()
        thread = threading.Thread(target=self._run, args=(ending,))
        thread.start()
        try:
            yield
        finally:
            ending.set()
            thread.join()
        if self._failures:
            raise self._failures[0]
        assert not self.live.errors.texts, self.live.errors.texts[0]

    def _run(self, ending: threading.Event) -> None:
        try:
            while not ending.is_set():
                self.live.now = time.monotonic()
                self.server.turn(self.live.engine.run(1))
                select.select([], [], [], 0.0005)
        except BaseException as error:
            self._failures.append(error)

    def close(self) -> None:
        """End everything."""
        self.live.remove()

    def tell(self, steps: list[Step]) -> None:
        """Send messages to an attached producer. It must go on, or attach anew when it is used next."""
        with self._running(), KafkaProducer(sender=self.live.path, max_block_ms=_BLOCK_MS) as producer:
            session = producer._channel().attached(time.monotonic() + _WAIT_S)
            peer = self._peer_of(session)
            for step in steps:
                self.inputs += 1
                send_step(peer.socket, step)
            session.on_control()
            again = producer._channel().attached(time.monotonic() + _WAIT_S)
            assert again.alive
            assert again is session or not session.alive
            producer.close(0)

    def do(self, peer: Any, message: dict[str, Any], fds: list[int]) -> None:
        """Answer a command with the next message of the fuzzer. Without one, do as a sender that succeeds."""
        self.server.table.finish(peer)
        if self._commands:
            self.inputs += 1
            send_step(peer.socket, self._commands.pop(0))
        else:
            peer.send({"ok": True, "producer_id": 7, "epoch": 0})

    def answer_commands(self, steps: list[Step]) -> None:
        """Answer the commands of a transactional producer. Each call succeeds or raises a KafkaError."""
        self._commands = list(steps)
        settings = {"sender": self.live.path, "transactional_id": "x", "max_block_ms": _BLOCK_MS}
        with self._running(), KafkaProducer(**settings) as producer:
            for call in (
                producer.init_transactions,
                producer.begin_transaction,
                lambda: producer.send_offsets_to_transaction({("t", 0): 1}, "g", _WAIT_S),
                producer.commit_transaction,
                producer.abort_transaction,
            ):
                with contextlib.suppress(KafkaError):
                    call()
            producer.close(0)
        self._commands = []

    def _peer_of(self, session: Any) -> Any:
        return self.server.table.front_ends[session.attachment.attach_id]
