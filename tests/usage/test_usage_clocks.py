"""Tests clocks that are set, and of processes with a different monotonic clock."""

import os
import shlex
import struct
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from devkafka.node import KafkaCluster
from lines import expect
from numbered import numbers_by_key
from support.confined import namespaces, run_confined
from support.consumer import ReadRecords
from support.process import start_script, wait_until
from support.supervised import Foreground, pair, the_sender, trouble

DAY_S = 86_400.0


class WallClock:
    """The wall clock of processes that are started with it in their environment."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / "offset"
        self.path.write_bytes(bytes(4096))
        library = directory / "wall_clock.so"
        source = Path(__file__).with_name("wall_clock.c")
        compiler = shlex.split(os.environ.get("CC") or "cc")
        command = [*compiler, "-shared", "-fPIC", "-O1", os.fspath(source), "-o", os.fspath(library), "-ldl"]
        subprocess.run(command, check=True)
        self.environment = {"LD_PRELOAD": str(library), "CYPRODUCER_CLOCK_OFFSET": str(self.path)}

    def step(self, seconds: float) -> None:
        """Shift the clock of all of them by this many seconds."""
        with open(self.path, "r+b") as file:
            file.write(struct.pack("=d", seconds))


@pytest.fixture
def wall_clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> WallClock:
    clock = WallClock(tmp_path)
    for name, value in clock.environment.items():
        monkeypatch.setenv(name, value)  # of the processes that the test starts
    return clock


# It sends slowly, into batches that linger; the wall clock matters only for the records' timestamps.
STREAM = """
    import sys, time
    from cyproducer import KafkaProducer
    producer = KafkaProducer(sender=sys.argv[1], linger_ms=200)
    producer.send(sys.argv[2], b"0", b"k").result(30)
    began = time.time()
    print("ready", flush=True)
    futures = []
    number = 1
    for line in sys.stdin:
        for _ in range(100):
            futures.append(producer.send(sys.argv[2], b"%d" % number, b"k"))
            number += 1
            time.sleep(0.003)
        print(round((time.time() - began) / 3600), flush=True)
    for future in futures:
        future.result(30)
"""


def test_a_wall_clock_that_is_set(
    wall_clock: WallClock,
    kafka: KafkaCluster,
    new_topic: Callable[..., str],
    runtime_dir: Path,
    arrived: Callable[..., ReadRecords],
) -> None:
    """The clock goes a day forward, two back, and so on, in front-end and sender: nothing is late or lost."""
    sender = Foreground(runtime_dir / "s.sock", kafka.bootstrap_servers, runtime_dir / "s.log").ready()
    pid, _ = wait_until(pair, what="the sender's description")
    topic = new_topic(1, configs={"message.timestamp.after.max.ms": str(2**63 - 1)})  # by default an hour
    with start_script(STREAM, sender.socket, topic) as process:
        expect(process, "ready")
        for days in (1, -1, 365, -365, 0):
            wall_clock.step(days * DAY_S)
            process.stdin.write("\n")
            process.stdin.flush()
            assert process.stdout.readline() == f"{24 * days}\n"
        _, err = process.communicate(timeout=60)
        assert (process.returncode, err) == (0, "")
    records = arrived(topic, 501)
    assert numbers_by_key(records) == {b"k": list(range(501))}
    spread = max(records.timestamp) - min(records.timestamp)
    assert spread >= 700 * DAY_S * 1000, "the clock was not set"
    assert (the_sender()["sender_pid"], the_sender()["restarts"]) == (pid, 0)
    assert the_sender()["ledger"] == []
    sender.end()
    assert trouble("\n".join(sender.lines("level="))) == []
    sender.log.unlink()


OTHER_CLOCK = """
    import sys, time
    from cyproducer import KafkaProducer, errors
    assert abs(time.monotonic() - float(sys.argv[4])) > 5000
    settings = {"sender": sys.argv[3]} if sys.argv[3] != "-" else {"bootstrap_servers": sys.argv[1]}
    producer = KafkaProducer(sender_idle_timeout_ms=0, max_block_ms=20_000, linger_ms=50, **settings)
    try:
        for number in range(100):
            producer.send(sys.argv[2], b"%d" % number, b"k")
        producer.flush(30)
    except errors.SenderUnavailableError as error:
        print(error)
    producer.close()
"""


@pytest.mark.parametrize("sender", ["named", "found"])
def test_a_front_end_in_another_time_namespace(
    sender: str,
    kafka: KafkaCluster,
    make_producer: Callable[..., Any],
    topic: str,
    runtime_dir: Path,
    arrived: Callable[..., ReadRecords],
) -> None:
    """Neither can read the other one's times: it has a sender of its own, and another sender refuses it."""
    if not os.path.exists("/proc/self/ns/time"):
        pytest.fail("this test needs time namespaces (CONFIG_TIME_NS)")
    make_producer().send(topic, b"0", b"here").result(30)
    path = the_sender()["socket"] if sender == "named" else "-"
    command = namespaces("--time", "--monotonic", str(int(DAY_S)), "--fork")
    found, out, err = run_confined(command, OTHER_CLOCK, kafka.bootstrap_servers, topic, path, time.monotonic())
    assert found == 0, err
    if sender == "named":
        assert "time namespace" in out
        arrived(topic, 1)
    else:
        assert out == ""
        assert numbers_by_key(arrived(topic, 101)) == {b"here": [0], b"k": list(range(100))}
    wait_until(lambda: len(list(runtime_dir.glob("*.sock"))) <= 1, 20, "the end of its sender")
