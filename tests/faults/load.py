"""Runs as one front-end of the load, or runs all of them: each sends at a steady rate and journals every result.

As a program its only argument is its order (JSON). It prints "ready" after its first acknowledgement. For the line
"stop" on standard input it sends no more, waits for every outcome, prints {"pending", "memory"} (batches without an
outcome, bytes of memory that are not free) and then waits for the line "close".
"""

import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from chaos import journal
from chaos.front_end import die_with_parent
from chaos.records import value_of
from support.process import script_environment

from cyproducer import KafkaProducer
from cyproducer.observe.status import status

FRONT_ENDS = 4
SETTINGS = {
    "linger_ms": 20,
    "buffer_memory": 32 << 20,
    "max_block_ms": 30_000,
    "delivery_timeout_ms": 60_000,
    "request_timeout_ms": 5_000,
    "sender_idle_timeout_ms": 200,
}
FINISH_S = 90.0
#: A kind of line that `journal.read` does not know: the timestamp (`value`) of an acknowledgement.
STAMP = 64
_TICK_S = 0.005
_FREE_S = 10.0
_PARTITIONS_S = 0.5
# One record of this many has neither a partition nor a key. The number has no factor in common with the partitions.
_KEYLESS = 7


@dataclass
class Order:
    """The instructions for a front-end. `sizes`: {bytes of the value: one record of so many}; else `size` bytes."""

    servers: str
    topic: str
    partitions: int
    directory: str
    slot: int
    rate: float
    size: int = 100
    sizes: dict[str, int] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)


class FrontEnd:
    """The producer and its journal."""

    def __init__(self, order: Order) -> None:
        self.order = order
        self.producer = KafkaProducer(bootstrap_servers=order.servers, **{**SETTINGS, **order.settings})
        path = Path(order.directory) / journal.name_of(order.slot, 0)
        self.journal = journal.Writer(path)
        self.incarnation = journal.incarnation_of(path)
        self.partitions = order.partitions
        self.sent = 0
        self.told_to_stop = threading.Event()

    def warm_up(self) -> None:
        """Send one record to each partition, so that the sender has its connections and its producer ids."""
        for partition in range(self.partitions):
            self._send({"partition": partition})
        self.producer.flush(60)

    def run(self) -> None:
        """Send at the steady rate until the front-end is told to stop. What was missed is not caught up with."""
        began = looked = time.monotonic()
        passed = 0
        while not self.told_to_stop.is_set():
            now = time.monotonic()
            due = int((now - began) * self.order.rate)
            for _ in range(min(due - passed, int(self.order.rate / 2))):
                keyless = self.sent % _KEYLESS == 0
                self._send({} if keyless else {"partition": self.sent % self.partitions})
            passed = due
            if now - looked > _PARTITIONS_S:
                looked = now
                self._look_at_partitions()
            self.told_to_stop.wait(_TICK_S)

    def stop(self) -> dict[str, float]:
        """Wait for every outcome; return what is left of batches and memory."""
        self.producer.flush(FINISH_S)
        deadline = time.monotonic() + _FREE_S
        while True:
            seen = self.producer.metrics()["producer-metrics"]
            memory = seen["buffer-total-bytes"] - seen["buffer-available-bytes"]
            if (not seen["batches-pending"] and not memory) or time.monotonic() > deadline:
                return {"pending": seen["batches-pending"], "memory": memory}
            time.sleep(0.05)

    def close(self) -> None:
        self.producer.close(FINISH_S)
        self.journal.put(journal.END, self.sent, flags=journal.CLOSED)

    def _look_at_partitions(self) -> None:
        """Use partitions that were added."""
        with contextlib.suppress(Exception):
            self.partitions = max(self.partitions, len(self.producer.partitions_for(self.order.topic)))

    def _send(self, where: dict[str, Any]) -> None:
        number = self.sent
        self.sent += 1
        size = self.order.size
        for larger, one_of in self.order.sizes.items():
            if number % one_of == one_of - 1:
                size = int(larger)
        self.journal.put(journal.INTENT, number, 1)
        try:
            self.producer.send(
                self.order.topic,
                value_of(self.incarnation, number, size),
                on_delivery=lambda error, metadata: self._note(number, error, metadata),
                **where,
            )
        except Exception as error:
            print(f"{self.incarnation}: send() of {number} raised {error!r}", file=sys.stderr, flush=True)
            self.journal.put(journal.REFUSED, number, 1, getattr(error, "code", None) or -1)
            return
        self.journal.put(journal.ACCEPTED, number, 1)

    def _note(self, number: int, error: Any, metadata: Any) -> None:
        if error is None:
            self.journal.put(journal.ACKED, number, metadata.offset, metadata.partition)
            self.journal.put(STAMP, number, metadata.timestamp)
        else:
            print(f"{self.incarnation}: record {number} failed: {error!r}", file=sys.stderr, flush=True)
            self.journal.put(journal.FAILED, number, 0, error.code or -1)


class Load:
    """The front-ends of a row, each a process; use as a context manager, which ends them at once."""

    def __init__(self, directory: Path, orders: list[Order]) -> None:
        self.directory = directory
        self.defects: list[str] = []
        self._processes: list[subprocess.Popen[str]] = []
        with open(directory / "front-ends.log", "ab") as log:
            for order in orders:
                self._processes.append(
                    subprocess.Popen(
                        [sys.executable, "-X", "faulthandler", "-m", "faults.load", json.dumps(asdict(order))],
                        env=script_environment(),
                        text=True,
                        stdin=subprocess.PIPE,
                        stdout=subprocess.PIPE,
                        stderr=log,
                        start_new_session=True,  # only the caller gets Ctrl-C; it then ends the front-ends
                    )
                )

    def __enter__(self) -> "Load":
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.wait()
            for stream in (process.stdin, process.stdout):
                with contextlib.suppress(OSError):
                    assert stream is not None
                    stream.close()

    def await_ready(self) -> None:
        for process in self._processes:
            self._line(process)

    def stop(self) -> None:
        """End the load: every record gets its outcome, all memory must be free, the front-ends leave."""
        for process in self._processes:
            self._tell(process, "stop")
        for number, process in enumerate(self._processes):
            left = json.loads(self._line(process))
            if left["pending"] or left["memory"]:
                self.defects.append(f"front-end {number} has {left} after its last outcome")
        self._look_at_the_sender()
        for process in self._processes:
            self._tell(process, "close")
        for number, process in enumerate(self._processes):
            if process.wait(FINISH_S):
                self.defects.append(f"front-end {number} ended with status {process.returncode}")

    def _look_at_the_sender(self) -> None:
        """Check that the sender counts no memory and no batch of the front-ends any more."""
        found = status(timeout=30)
        if len(found) != 1 or len(found[0]["front_ends"]) != len(self._processes):
            self.defects.append(f"not one sender with all front-ends, but {found}")
        for sender in found:
            for each in sender["front_ends"]:
                if each["buffer_in_use"] or each["oldest_unacked_ms"]:
                    self.defects.append(f"the sender counts for a front-end without open records: {each}")
            if sender["restarts"]:
                self.defects.append(f"the sender was restarted {sender['restarts']} times")

    def _line(self, process: "subprocess.Popen[str]") -> str:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            log = (self.directory / "front-ends.log").read_text(errors="replace")
            raise RuntimeError(f"a front-end ended with status {process.wait()}: {log[-2000:]}")
        return line

    def _tell(self, process: "subprocess.Popen[str]", text: str) -> None:
        assert process.stdin is not None
        process.stdin.write(f"{text}\n")
        process.stdin.flush()


def main() -> None:
    die_with_parent(os.getppid())
    front_end = FrontEnd(Order(**json.loads(sys.argv[1])))
    front_end.warm_up()
    print("ready", flush=True)
    threading.Thread(target=lambda: (sys.stdin.readline(), front_end.told_to_stop.set()), daemon=True).start()
    front_end.run()
    print(json.dumps(front_end.stop()), flush=True)
    sys.stdin.readline()
    front_end.close()


if __name__ == "__main__":
    main()
