"""Runs a rig whose engine is killed and replaced: front-ends reuse slots, and every outcome must arrive once."""

import time
from collections import deque

from kfake.scripted_broker import ScriptedBroker

from support.engine_host import EngineEndedError, Nursery, RemoteEngine
from support.fault_rig import NOW, POISON, Rig, _is_poison
from support.front_end import FREE, word

UNITS = 16  # per place of a batch: 64 KiB, so that any batch fits


class TakeoverRig(Rig):
    """Front-ends in this process, engines in others. A front-end has at most `places` batches without an outcome."""

    def __init__(
        self, broker: ScriptedBroker, nursery: Nursery, places: int = 16, leaves_transactions: bool = False, **overrides
    ) -> None:
        super().__init__(broker, lambda settings: RemoteEngine(settings, nursery, leaves_transactions), **overrides)
        self.places = places
        self.numbers: list[dict[tuple[int, int], int]] = []  # by front-end: (slot, generation) -> number
        self.free: list[deque[tuple[int, int]]] = []
        self.ended: set[int] = set()

    def attach(self, **settings) -> int:
        index = super().attach(slots=max(self.places * UNITS, 256), **settings)
        self.numbers.append({})
        self.free.append(deque((place * UNITS, 0) for place in range(self.places)))
        return index

    def send(
        self, index: int, partition: int, records: int = 2, seal: bool = True, size: int = 0, poison: bool = False
    ) -> bool:
        """Send one batch. Return False if the front-end has no free place for it."""
        if not self.free[index]:
            return False
        slot, generation = self.free[index].popleft()
        number = len(self.sent[index])
        values = [b"%d/%d/%d" % (index, number, part) + b"x" * size for part in range(records)]
        if poison:
            values[-1] += POISON
            self.broker.refuses = _is_poison
        self.sent[index].append((partition, values))
        self.numbers[index][slot, generation] = number
        self.front_ends[index].send(
            slot,
            [(NOW, None, value) for value in values],
            topic=self.number,
            partition=partition,
            generation=generation,
            seal=seal,
        )
        return True

    def listen(self) -> None:
        """Take the outcomes, and check that none comes twice or for a batch that was released."""
        for index, front_end in enumerate(self.front_ends):
            if index in self.ended:
                continue
            for slot, generation, _, offset, _, error, flags in front_end.outcomes():
                number = self.numbers[index].get((slot, generation))
                assert number is not None, f"outcome of {index}/{slot} in generation {generation}, which was released"
                if flags & 1:
                    assert number not in self.heard[index], f"two results of {index}/{number}"
                    self.heard[index][number] = (offset, error)
                    self.parts[index][number] = front_end.parts[slot]
                if flags & 2:
                    assert number in self.heard[index], f"{index}/{number} is released without a result"
                    self.released[index].add(number)
                    del self.numbers[index][slot, generation]
                    front_end.set_row(slot, word=word(FREE, generation + 1, 0, 0))
                    self.free[index].append((slot, generation + 1))

    def settle(self, timeout: float = 30) -> None:
        """Wait until every batch is delivered and released to its front-end."""
        deadline = time.monotonic() + timeout
        while True:
            self.listen()
            living = [index for index in range(len(self.front_ends)) if index not in self.ended]
            if (
                all(len(self.released[index]) == len(self.sent[index]) for index in living)
                and self.engine.undelivered() == 0
            ):
                return
            missing = {index: len(self.sent[index]) - len(self.released[index]) for index in living}
            assert time.monotonic() < deadline, f"batches without outcome: {missing}, {self.engine.look()}"
            time.sleep(0.002)

    def end(self, index: int) -> None:
        """Let a front-end end without notifying the engine."""
        self.ended.add(index)
        self.engine.mark_ended(self.front_ends[index].attach_id)

    def check(self, *, exactly: bool = True) -> None:
        """Check as Rig.check(). All records of an ended front-end must be in the log, since it takes no outcomes."""
        for index in self.ended:
            for number in range(len(self.sent[index])):
                self.heard[index].setdefault(number, (-1, 0))
        super().check(exactly=exactly)

    def is_running(self) -> bool:
        """Return whether the engine runs, so was not killed by a crash point."""
        try:
            self.engine.look()
        except EngineEndedError:
            return False
        return True

    def replace(self) -> None:
        """Kill the engine if it still runs, and let another one take over."""
        if self.is_running():
            self.engine.kill()
        else:
            self.engine.wait()
        self.engine.take_over()

    def stop_after(self, requests: int, timeout: float = 10) -> None:
        """Kill the engine when the broker has received `requests` Produce requests."""
        deadline = time.monotonic() + timeout
        while self.broker.produce_requests < requests:
            assert time.monotonic() < deadline, "the requests did not come"
            time.sleep(0.001)
        self.engine.kill()
