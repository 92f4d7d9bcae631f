"""Runs an engine on a scripted broker, and checks the outcomes of each front-end against the broker's log."""

import logging
import time

from kfake.scripted_broker import ScriptedBroker

from cyproducer import errors
from cyproducer.codes import CORRUPT_MESSAGE, INVALID_RECORD, MESSAGE_TOO_LARGE
from cyproducer.config.settings import Settings
from support.front_end import PlainFrontEnd, run_until, topic_number
from support.record_twin import Record
from support.whole_engine import Engine

NOW = int(time.time() * 1000)
FAST = {
    "request_timeout_ms": 300,
    "retry_backoff_ms": 5,
    "retry_backoff_max_ms": 20,
    "reconnect_backoff_ms": 5,
    "reconnect_backoff_max_ms": 20,
}
POISON = b"!"
DEFINITE = {
    INVALID_RECORD,
    MESSAGE_TOO_LARGE,
    CORRUPT_MESSAGE,
    errors.DELIVERY_TIMEOUT,
    errors.INVALID_BATCH,
    errors.PURGED,
}


class Rig:
    """An engine on a scripted broker, its front-ends, the batches that they sent, and the outcomes that they got.

    `engine_of` creates the engine from its settings; the default is an engine in this process.
    """

    def __init__(self, broker: ScriptedBroker, engine_of=None, **overrides) -> None:
        self.broker = broker
        parsed = Settings.parse(bootstrap_servers=broker.bootstrap_servers, **{**FAST, **overrides})
        if engine_of is None:
            self.engine = Engine(parsed.sender_settings(), logging.getLogger("engine"))
        else:
            self.engine = engine_of(parsed.sender_settings())
        self.front_ends: list[PlainFrontEnd] = []
        self.sent: list[list[tuple[int, list[bytes]]]] = []  # by front-end and slot: (partition, values)
        self.heard: list[dict[int, tuple]] = []  # by front-end and slot: (offset, error)
        self.parts: list[dict[int, dict[int, tuple]]] = []  # and by record, if the batch was split
        self.released: list[set[int]] = []
        self.failures: list[tuple[int, str, int, int]] = []  # entries for the ledger of failures
        self.number = -1

    def attach(self, **settings) -> int:
        front_end = PlainFrontEnd(self.engine, **settings)
        self.front_ends.append(front_end)
        self.sent.append([])
        self.heard.append({})
        self.parts.append({})
        self.released.append(set())
        if self.number < 0:
            self.number = topic_number(self.engine, front_end, self.broker.topic)
        return len(self.front_ends) - 1

    def attach_many(self, count: int, **settings) -> list[int]:
        return [self.attach(**settings) for _ in range(count)]

    def begin(self, count: int = 1, **settings) -> int:
        """Attach front-ends, and let front-end 0 have an acknowledged batch. Return the first of the new ones."""
        first, *_ = self.attach_many(count, **settings)
        self.deliver(0, 0)
        return first

    def send(
        self, index: int, partition: int, records: int = 2, seal: bool = True, size: int = 0, poison: bool = False
    ) -> None:
        """Send one batch in the next slot. `poison`: the broker refuses its last record.

        The linger time of an open batch begins when the engine takes it, so that batches which are sent together are
        merged even if a front-end was idle and the machine is slow.
        """
        slot = len(self.sent[index])
        values = [b"%d/%d/%d" % (index, slot, number) + b"x" * size for number in range(records)]
        if poison:
            values[-1] += POISON
            self.broker.refuses = _is_poison
        self.sent[index].append((partition, values))
        rows = [(NOW, None, value) for value in values]
        opened_ns = None if seal else 0
        self.front_ends[index].send(slot, rows, topic=self.number, partition=partition, seal=seal, opened_ns=opened_ns)

    def deliver(self, index: int, partition: int, **more) -> None:
        """Send one batch, and wait for the outcome of every batch."""
        self.send(index, partition, **more)
        self.settle()

    def send_now(self, index: int, partition: int, **more) -> None:
        """Send one batch, and wait until it is written to the broker."""
        slot = len(self.sent[index])
        self.send(index, partition, **more)
        run_until(self.engine, lambda: self.front_ends[index].sent_word(slot))

    def refresh_metadata(self) -> None:
        """Request the metadata, and wait until a broker is asked."""
        before = self.broker.metadata_requests
        self.engine._cluster.request_update()
        run_until(self.engine, lambda: self.broker.metadata_requests > before)

    def listen(self) -> None:
        self.failures += self.engine.take_failures()
        for index, front_end in enumerate(self.front_ends):
            for slot, _, _, offset, _, error, flags in front_end.outcomes():
                if flags & 1:
                    assert slot not in self.heard[index], f"two results of {index}/{slot}"
                    self.heard[index][slot] = (offset, error)
                    self.parts[index][slot] = front_end.parts[slot]
                if flags & 2:
                    assert slot in self.heard[index], f"{index}/{slot} is released without a result"
                    assert slot not in self.released[index], f"two releases of {index}/{slot}"
                    self.released[index].add(slot)

    def settle(self, timeout: float = 15) -> None:
        def done() -> bool:
            self.listen()
            return self.engine.undelivered() == 0 and all(
                len(released) == len(sent) for released, sent in zip(self.released, self.sent, strict=True)
            )

        run_until(self.engine, done, timeout)

    def finish(self, timeout: float = 30, *, exactly: bool = True) -> None:
        """Wait for the outcome of every batch, and compare the outcomes with the log."""
        self.settle(timeout)
        self.check(exactly=exactly)

    def errors(self, index: int) -> list[int]:
        """Return the error of each batch; of a split one the first error of a record."""
        return [
            next((error for _, error in self.results(index, slot) if error), 0) for slot in range(len(self.sent[index]))
        ]

    def results(self, index: int, slot: int) -> list[tuple[int, int]]:
        """Return the offset and the error of each record of a batch."""
        offset, error = self.heard[index][slot]
        parts = self.parts[index].get(slot, {})
        return [
            parts[record][:2] if record in parts else (offset + record if offset >= 0 else -1, error)
            for record in range(len(self.sent[index][slot][1]))
        ]

    def check(self, *, exactly: bool = True) -> None:
        """Compare the log with the outcomes of each front-end. `exactly`: no record is twice or out of order."""
        assert self.broker.complaints == []
        assert self.engine.undelivered() == 0
        assert set(self.engine.tables_in_use().values()) == {0}
        for partition in range(len(self.broker.partitions)):
            log = self.broker.values(partition)
            assert not exactly or len(set(log)) == len(log), "a record is twice in the log"
            for index, sent in enumerate(self.sent):
                expected = [
                    v
                    for slot, (where, values) in enumerate(sent)
                    if where == partition
                    for v in self._present(index, slot, values, log)
                ]
                found = [value for value in log if value.startswith(b"%d/" % index)]
                if exactly:
                    assert found == expected, [[v[:8] for v in found], [v[:8] for v in expected]]

    def _present(self, index: int, slot: int, values: list[bytes], log: list[bytes]) -> list[bytes]:
        """Return the records of a batch that are in the log, after comparing them with their results."""
        there = set(log)
        for (offset, error), value in zip(self.results(index, slot), values, strict=True):
            if error == 0:
                assert value in there, f"{index}/{slot} was acknowledged and is not in the log"
                assert offset < 0 or log[offset] == value, f"{index}/{slot} is not at its offset"
            elif error in DEFINITE:
                assert value not in there, f"{index}/{slot} failed with {error} and is in the log"
        return [value for value in values if value in there]

    def __enter__(self) -> "Rig":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.engine.close()
        for front_end in self.front_ends:
            front_end.close()


def send_merged(rig: Rig, front_ends: int, poisoned: tuple[int, ...], records: int = 2) -> None:
    """Send one batch from each front-end, and check that they were merged into one."""
    before = rig.engine._loop.totals()["merged"]
    for index in range(front_ends):
        rig.send(index, 0, records=records, seal=False, poison=index in poisoned)
    rig.settle()
    assert rig.engine._loop.totals()["merged"] - before >= front_ends, "they were not merged"


def _is_poison(record: Record) -> bool:
    return record.value is not None and record.value.endswith(POISON)


def next_outcomes(engine: Engine, front_end: PlainFrontEnd) -> list[tuple]:
    found: list[tuple] = []
    run_until(engine, lambda: found.extend(front_end.outcomes()) or bool(found))
    return found


def stream(
    rig: Rig, front_ends: int = 2, batches: int = 12, partitions: int = 3, seal: bool = True, **settings
) -> None:
    """Let every front-end send to each partition in rotation while the engine runs; then wait for all and check it."""
    first = len(rig.front_ends)
    for _ in range(front_ends):
        rig.attach(**settings)
    for number in range(batches):
        for index in range(first, first + front_ends):
            rig.send(index, number % partitions, seal=seal)
        rig.engine.run(1)
    rig.settle()
