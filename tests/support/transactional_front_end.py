"""A transactional front-end in plain Python beside an engine of this process: batches, commands and their answers."""

import time
from typing import Any

from cyproducer.host.messages import TransactionCommand
from support.front_end import FREE, RESULT, PlainFrontEnd, run_until, topic_number, word

UNIT_SLOTS = 16
RELEASED = 2  # a flag of an outcome
GROUP = {"group_id": "g", "generation_id": -1, "member_id": "", "group_instance_id": None}


class TransactionalFrontEnd:
    """A front-end of `engine` that writes to one topic."""

    def __init__(
        self, engine: Any, topic: str, name: str, timeout_ms: int = 60_000, slots: int = 1024, **settings: int
    ) -> None:
        self.engine = engine
        given = {"transactional_id": name, "transaction_timeout_ms": timeout_ms, **settings}
        self.front_end = PlainFrontEnd(engine, slots, **given)
        self.topic = topic
        self.attach_id = self.front_end.attach_id
        self.number = 0
        self.known = (-1, -1)
        self._topic_number = topic_number(engine, self.front_end, topic)
        self._generations = [0] * slots
        self._slot = 0
        self._sent = 0
        self._errors: list[int] = []

    @property
    def row(self) -> dict[str, Any]:
        """What the table of the engine says."""
        return self.engine._transaction_table.read(self.engine._transaction_table.row_of(self.attach_id))._asdict()

    def send(self, value: bytes, partition: int = 0) -> None:
        """Write a batch of one record. Call errors() before more than 64 batches have no outcome."""
        slot, self._slot = self._slot, (self._slot + UNIT_SLOTS) % len(self._generations)
        record = (int(time.time() * 1000), None, value)
        generation = self._generations[slot]
        self.front_end.send(slot, [record], topic=self._topic_number, partition=partition, generation=generation)
        self._sent += 1

    def _take(self) -> None:
        for slot, generation, _, _, _, error, flags in self.front_end.outcomes():
            if flags & RESULT:
                self._errors.append(error)
            if flags & RELEASED:
                self._generations[slot] = generation + 1
                self.front_end.set_row(slot, word=word(FREE, generation + 1, 0, 0))
                self._sent -= 1

    def errors(self, timeout: float = 30) -> list[int]:
        """Wait for the outcomes of all batches (flush), and return the error codes since the last call."""

        def done() -> bool:
            self._take()
            return not self._sent

        run_until(self.engine, done, timeout)
        found, self._errors = self._errors, []
        return found

    def ask(self, do: str, number: int | None = None, offsets: Any = (), group: Any = None) -> list[dict[str, Any]]:
        """Send a command with the next number. Return the list that gets its answer."""
        self.number = self.number + 1 if number is None else number
        command = TransactionCommand(self.number, do, *self.known, group or {}, list(offsets))
        answers: list[dict[str, Any]] = []
        self.engine.command_transaction(self.attach_id, command, answers.append)
        return answers

    def do(self, do: str, timeout: float = 30, **fields: Any) -> dict[str, Any]:
        """Send a command and return its answer."""
        answers = self.ask(do, **fields)
        run_until(self.engine, lambda: bool(answers), timeout)
        (answer,) = answers
        if answer["ok"]:
            self.known = answer["producer_id"], answer["epoch"]
        return answer

    def commit(self) -> dict[str, Any]:
        """Flush and commit."""
        self.errors()
        return self.do("commit")

    def abort(self) -> dict[str, Any]:
        """End what is not sent, flush, and abort."""
        self.do("fail")
        self.errors()
        return self.do("abort")

    def end(self) -> None:
        """End the front-end, as when its process has ended."""
        self.engine.detach(self.attach_id)

    def close(self) -> None:
        self.front_end.close()
