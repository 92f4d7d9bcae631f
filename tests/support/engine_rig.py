"""Runs an engine on a real Kafka and its front-ends in plain Python, in one process."""

import logging
import time

from cyproducer.config.settings import Settings
from support.front_end import PlainFrontEnd, run_until
from support.whole_engine import Engine


class EngineRig:
    """An engine and its plain front-ends, on one broker."""

    def __init__(self, servers: str, **settings) -> None:
        parsed = Settings.parse(bootstrap_servers=servers, **settings)
        self.engine = Engine(parsed.sender_settings(), logging.getLogger("engine"))
        self.front_ends: list[PlainFrontEnd] = []
        self.got: list[list[tuple]] = []

    def attach(self, **settings) -> PlainFrontEnd:
        front_end = PlainFrontEnd(self.engine, **settings)
        self.front_ends.append(front_end)
        self.got.append([])
        return front_end

    def outcomes(self, front_end: PlainFrontEnd, count: int, timeout: float = 15) -> list[tuple]:
        """Run until the front-end has `count` more outcomes, and return them."""
        got = self.got[self.front_ends.index(front_end)]

        def enough() -> bool:
            got.extend(front_end.outcomes())
            return len(got) >= count

        run_until(self.engine, enough, timeout)
        taken, got[:] = got[:count], got[count:]
        return taken

    def deliver(self, front_end: PlainFrontEnd, slot: int, topic: int, partition: int = 0) -> None:
        """Send one record, with the slot as its value, and wait until it is acknowledged."""
        record = (int(time.time() * 1000), None, b"%d" % slot)
        front_end.send(slot, [record], topic=topic, partition=partition)
        assert [error for *_, error, _ in self.outcomes(front_end, 1, 60)] == [0]

    def __enter__(self) -> "EngineRig":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.engine.close()
        for front_end in self.front_ends:
            front_end.close()
