"""Makes generated calls on a stand-in sender, and compares what arrives with what the oracle says."""

import random
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from standin_sender import StandIn

from arrays.cases import PARTITIONS, Case, changing, valid, wrong
from cyproducer import KafkaProducer
from cyproducer.errors import KafkaError, RecordTooLargeError

TOPIC = "t"


class Wrong(AssertionError):
    """A call whose result is not that of the oracle."""


class Campaign:
    """Makes calls, and counts those that were sent and those that were refused in `met`."""

    def __init__(self, directory: Path) -> None:
        self.sender = StandIn(directory / "standin", {TOPIC: PARTITIONS}).__enter__()
        self.producer = KafkaProducer(sender=self.sender.path, buffer_memory=4 << 20, batch_size=4_096)
        self.met: Counter[str] = Counter()

    def close(self) -> None:
        self.producer.close(10)
        self.sender.__exit__(None, None, None)

    def make(self, seed: int) -> None:
        """Make the call of a seed. Raise Wrong if the result is not that of the oracle."""
        draw = random.Random(seed)
        kind = draw.choices([valid, wrong, changing], [10, 10, 1])[0]
        case = kind(draw)
        try:
            getattr(self, f"_{kind.__name__}")(case)
        except Wrong as error:
            raise Wrong(f"python -m tests.arrays --seed {seed}: {error}") from error
        self.sender.log.clear()

    def _send(self, case: Case) -> Any:
        if case.table is not None:
            return self.producer.send_arrow(case.table, TOPIC)
        return self.producer.send_array(TOPIC, **case.arguments)

    def _arrived(self, future: Any) -> list[Any]:
        """Return what has arrived of each row."""
        metadata = future.result(30)
        found = {(each.partition, each.offset): each for each in self.sender.log}
        return [found[place] for place in zip(metadata.partition, metadata.offset, strict=True)]

    def _valid(self, case: Case) -> None:
        try:
            arrived = self._arrived(self._send(case))
        except (TypeError, ValueError, KafkaError) as error:
            raise Wrong(f"a valid call raised {error!r}") from error
        assert case.records is not None
        if len(arrived) != len(case.records):
            raise Wrong(f"{len(arrived)} rows, expected {len(case.records)}")
        for row, (found, (value, key, headers, partition, timestamp)) in enumerate(
            zip(arrived, case.records, strict=True)
        ):
            if (found.value, found.key, found.headers) != (value, key, headers):
                raise Wrong(f"row {row}: {found}, expected {(value, key, headers)}")
            if found.partition != partition is not None:
                raise Wrong(f"row {row}: partition {found.partition}, expected {partition}")
            if found.timestamp != timestamp is not None:
                raise Wrong(f"row {row}: time {found.timestamp}, expected {timestamp}")
        self.met["sent"] += 1

    def _wrong(self, case: Case) -> None:
        try:
            self._send(case)
        except (TypeError, ValueError) as error:
            if not str(error).startswith(case.name):
                raise Wrong(f"the message does not begin with {case.name!r}: {error!r}") from error
            self.met[f"refused: {type(error).__name__}"] += 1
        else:
            raise Wrong(f"a wrong call raised nothing: {case}")

    def _changing(self, case: Case) -> None:
        """Either a state of the arrays was sent, or the call was refused."""
        with overwritten(case.changing):
            try:
                arrived = self._arrived(self._send(case))
            except (ValueError, RecordTooLargeError):
                self.met["changing: refused"] += 1
                return
        if len(arrived) != 3_000 or any(set(each.value) - {ord("d")} for each in arrived):
            raise Wrong("other bytes than those of the data have arrived")
        self.met["changing: sent"] += 1


@contextmanager
def overwritten(arrays: list[tuple[Any, int]]) -> Iterator[None]:
    """Let a thread write the wrong numbers and the right ones into the arrays until the block ends."""
    right = [array.copy() for array, _ in arrays]
    stop = threading.Event()

    def write() -> None:
        while not stop.is_set():
            for (array, wrong_number), numbers in zip(arrays, right, strict=True):
                array[len(array) // 2 :] = wrong_number
                array[:] = numbers

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def play(first: int, count: int, seconds: float | None = None) -> Counter[str]:
    """Make the calls of `count` seeds from `first` on, or of as many as `seconds` allow. Return what was met."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="cyp-") as directory:
        campaign = Campaign(Path(directory))
        try:
            for seed in range(first, first + count):
                if seconds is not None and time.monotonic() - began > seconds:
                    break
                campaign.make(seed)
        finally:
            campaign.close()
    return campaign.met
