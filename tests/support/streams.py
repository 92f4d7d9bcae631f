"""Runs processes that send numbers without pause, and checks that each number is in the topic once, at its offset.

For tests that kill the processes between them and the broker.
"""

import contextlib
import json
import os
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from support.consumer import ReadRecords, read_topic
from support.process import start_script, wait_until

# One stream: send() of its numbers with its name as key, or send_array() of them without keys, to all partitions.
STREAM = """
    import json, os, sys, threading, time
    import numpy as np
    from cyproducer import KafkaProducer
    settings, topic, name, kind, directory = json.loads(sys.argv[1]), *sys.argv[2:]
    producer = KafkaProducer(**settings)
    futures, positions = [], []
    stop = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.readline(), stop.set()), daemon=True).start()
    progress = open(os.path.join(directory, name + ".sent"), "w+")
    sent = 0
    while not stop.is_set():
        if kind == "array":
            rows = np.array([b"%s %09d" % (name.encode(), n) for n in range(sent, sent + 200)], dtype="S")
            futures.append(producer.send_array(topic, rows))
            sent += len(rows)
            time.sleep(0.01)
        else:
            futures.append(producer.send(topic, b"%s %09d" % (name.encode(), sent), key=name.encode()))
            sent += 1
            if sent % 100 == 0:
                time.sleep(0.01)
        progress.seek(0)
        progress.write(f"{sent:12d}")
        progress.flush()
    for future in futures:
        result = future.result(60)
        if kind == "array":
            positions += zip(result.partition.tolist(), result.offset.tolist())
        else:
            positions.append((result.partition, result.offset))
    producer.close()
    with open(os.path.join(directory, name + ".json"), "w") as file:
        json.dump(positions, file)
    print("done", flush=True)
"""


class Streams:
    """Running streams by name, each in a process."""

    def __init__(self, directory: Path, processes: "dict[str, subprocess.Popen[str]]") -> None:
        self.directory = directory
        self.processes = processes

    def sent(self, name: str) -> int:
        """Return how many records the stream has passed to its producer."""
        try:
            return int((self.directory / f"{name}.sent").read_text() or 0)
        except (FileNotFoundError, ValueError):
            return 0

    def more(self, count: int = 300) -> None:
        """Wait until every stream has sent `count` more records."""
        before = {name: self.sent(name) for name in self.processes}
        for name, process in self.processes.items():
            wait_until(
                lambda name=name, process=process: (
                    self.sent(name) >= before[name] + count or process.poll() is not None
                ),
                30,
                f"{count} more records of {name}",
            )
            assert process.poll() is None, process.stderr.read()

    def finish(self) -> None:
        """End the streams; every future must be resolved."""
        for process in self.processes.values():
            with contextlib.suppress(BrokenPipeError):
                process.stdin.write("\n")
                process.stdin.flush()
        for name, process in self.processes.items():
            out, err = process.communicate(timeout=90)
            assert (process.returncode, out) == (0, "done\n"), f"{name}: {err}"

    def check(self, servers: str, topic: str) -> None:
        """Check that every record is there once, in the order of its stream, at the offset of its future."""
        positions = {name: json.loads((self.directory / f"{name}.json").read_text()) for name in self.processes}
        total = sum(map(len, positions.values()))
        records = read_topic(servers, topic, total)
        assert len(records) == total, f"{len(records)} records, {total} were sent"
        at = where(records)
        for name, places in positions.items():
            expected = {(p, o): b"%s %09d" % (name.encode(), n) for n, (p, o) in enumerate(places)}
            assert len(expected) == len(places), f"{name}: two records have one offset"
            wrong = {place: at.get(place) for place in expected if at.get(place) != expected[place]}
            assert not wrong, (
                f"{name}: {len(wrong)} records are not at the offsets of their futures: {list(wrong.items())[:3]}"
            )
            for partition in {p for p, _ in places}:
                offsets = [o for p, o in places if p == partition]
                assert offsets == sorted(offsets), f"{name}: partition {partition} is out of order"


def where(records: ReadRecords) -> dict[tuple[int, int], bytes | None]:
    """Return {(partition, offset): value}."""
    return dict(zip(zip(records.partition, records.offset, strict=True), records.value, strict=True))


@contextlib.contextmanager
def streams(
    directory: Path,
    topic: str,
    kinds: Sequence[str],
    environments: Sequence[dict[str, str]] | None = None,
    **settings: Any,
) -> Iterator[Streams]:
    """Run a stream for each of `kinds` ("send" or "array"). Unfinished ones are killed at the end of the block.

    `environments` has the changes of each stream's environment.
    """
    with contextlib.ExitStack() as stack:
        processes = {}
        for number, kind in enumerate(kinds):
            name = f"{kind}-{number}"
            arguments = (json.dumps(settings), topic, name, kind, os.fspath(directory))
            env = environments[number] if environments is not None else None
            processes[name] = stack.enter_context(start_script(STREAM, *arguments, env=env))
        yield Streams(directory, processes)
