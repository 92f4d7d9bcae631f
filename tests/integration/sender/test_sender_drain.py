"""Tests a sender that is told to end: undelivered records go out, attached front-ends go on with the next sender."""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from kfake.scripted_broker import Fault, ScriptedBroker
from support.process import is_running, run_script, senders, start_script, wait_until
from support.supervised import Foreground, the_sender

from cyproducer import KafkaProducer
from cyproducer.observe.status import status, stop

# Far above the time that an end takes, and below the 25 s after which a sender gives up.
SOON_S = 15.0


@pytest.fixture
def single() -> Iterator[ScriptedBroker]:
    """Yield one broker that leads all partitions."""
    with ScriptedBroker(nodes=1) as broker:
        yield broker


@pytest.fixture
def stream(single: ScriptedBroker) -> Iterator[Callable[..., "Stream"]]:
    made: list[Stream] = []

    def start(producer: KafkaProducer) -> Stream:
        made.append(Stream(producer, single))
        return made[-1]

    yield start
    for each in made:
        each.end()


class Stream:
    """A thread that sends a number to one partition every millisecond, faster than one is delivered."""

    def __init__(self, producer: KafkaProducer, broker: ScriptedBroker) -> None:
        self.futures: list[Any] = []
        self._producer, self._broker = producer, broker
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._send)
        self._thread.start()

    def _send(self) -> None:
        while not self._over.is_set():
            self.futures.append(self._producer.send(self._broker.topic, b"%d" % len(self.futures), partition=0))
            time.sleep(0.001)

    def goes_on(self, records: int = 200) -> None:
        """Wait for more records than there are at the call."""
        known = len(self.futures)
        wait_until(lambda: len(self.futures) > known + records, 30, "more sends")

    def end(self) -> None:
        self._over.set()
        self._thread.join()

    def check(self) -> None:
        """End the thread. Check that each record has its outcome and is in the log once, in order."""
        self.end()
        self._producer.flush(60)
        assert [f.exception(0) for f in self.futures if f.exception(0) is not None] == []
        assert self._broker.values(0) == [b"%d" % number for number in range(len(self.futures))]


def test_idle_front_end_does_not_delay_the_end(
    single: ScriptedBroker, make_producer: Callable[..., KafkaProducer], runtime_dir: Path
) -> None:
    """It goes on with the next sender, and so does a process that starts at this moment."""
    producer = make_producer(bootstrap_servers=single.bootstrap_servers)
    producer.send(single.topic, b"0", partition=0).result(30)
    former = the_sender()
    started = time.monotonic()
    stop(former["socket"], 60)
    assert time.monotonic() - started < SOON_S
    run_script(
        """
        import sys
        from cyproducer import KafkaProducer
        with KafkaProducer(bootstrap_servers=sys.argv[1], max_block_ms=15_000, sender_idle_timeout_ms=200) as producer:
            producer.send(sys.argv[2], b"1", partition=0).result(30)
        """,
        single.bootstrap_servers,
        single.topic,
    )
    producer.send(single.topic, b"2", partition=0).result(30)
    assert single.values(0) == [b"0", b"1", b"2"]
    found = the_sender()
    assert found["sender_pid"] != former["sender_pid"]
    assert len(found["front_ends"]) == 1
    (log,) = runtime_dir.glob("*.log")
    assert "the drain reached its time limit" not in log.read_text()


def test_foreground_sender_ends_at_the_first_signal_beside_an_idle_front_end(
    single: ScriptedBroker, make_producer: Callable[..., KafkaProducer], foreground: Callable[..., Foreground]
) -> None:
    sender = foreground(single.bootstrap_servers).ready()
    producer = make_producer(sender=str(sender.socket))
    producer.send(single.topic, b"0").result(30)
    sender.process.send_signal(signal.SIGINT)
    assert sender.process.wait(SOON_S) == 0
    assert not sender.lines("a second signal")
    again = foreground(single.bootstrap_servers).ready()
    producer.send(single.topic, b"1").result(30)
    assert not again.lines("Traceback")


def test_records_that_are_sent_meanwhile_are_in_the_log_once(
    single: ScriptedBroker, make_producer: Callable[..., KafkaProducer], stream: Callable[..., Stream]
) -> None:
    """There is always an undelivered batch. Some batches go to the next sender with their owner."""
    streams = stream(make_producer(bootstrap_servers=single.bootstrap_servers))
    streams.goes_on()
    for _ in range(3):
        (found,) = wait_until(status, 30, "a sender")
        stop(found["socket"], 60)
        streams.goes_on()
    streams.check()


@pytest.mark.parametrize("after", ["draining", "released"])
def test_sender_that_is_killed_while_it_drains(
    after: str,
    single: ScriptedBroker,
    make_producer: Callable[..., KafkaProducer],
    stream: Callable[..., Stream],
    runtime_dir: Path,
) -> None:
    """Its successor drains as well, and ends."""
    streams = stream(make_producer(bootstrap_servers=single.bootstrap_servers))
    streams.goes_on()
    found = the_sender()
    with single.lock:
        single.faults.extend(Fault(delay=1.0) for _ in range(8))
    os.kill(found["supervisor_pid"], signal.SIGTERM)
    (log,) = runtime_dir.glob("*.log")
    line = "draining" if after == "draining" else "attached processes are released"
    wait_until(lambda: line in log.read_text(), 30, line)
    for sender in senders(runtime_dir):
        if sender.pid == found["sender_pid"]:
            sender.kill()
    streams.goes_on()
    streams.check()
    wait_until(lambda: not is_running(found["supervisor_pid"]), 30, "the end of the former sender")


def test_process_that_starts_waits_for_undelivered_records_without_noise(
    single: ScriptedBroker, make_producer: Callable[..., KafkaProducer], runtime_dir: Path
) -> None:
    producer = make_producer(bootstrap_servers=single.bootstrap_servers)
    producer.send(single.topic, b"0", partition=0).result(30)
    with single.lock:
        single.faults.append(Fault(delay=4.0))
    future = producer.send(single.topic, b"1", partition=0)
    wait_until(lambda: single.produce_requests == 2, 30, "the request")
    os.kill(the_sender()["supervisor_pid"], signal.SIGTERM)
    (log,) = runtime_dir.glob("*.log")
    wait_until(lambda: "a second signal ends the sender at once" in log.read_text(), 30, "the drain")
    before = len(log.read_text().splitlines())
    script = """
        import logging, sys
        logging.basicConfig(format="%(message)s")
        from cyproducer import KafkaProducer
        with KafkaProducer(bootstrap_servers=sys.argv[1], max_block_ms=60_000, sender_idle_timeout_ms=200) as producer:
            print(producer.send(sys.argv[2], b"2", partition=0).result(30).offset)
    """
    with start_script(script, single.bootstrap_servers, single.topic) as process:
        out, err = process.communicate(timeout=60)
    assert (out, process.returncode) == ("2\n", 0)
    assert len(err.splitlines()) == 1 and "is ending and delivers what it has" in err
    assert future.result(30).offset == 1
    assert single.values(0) == [b"0", b"1", b"2"]
    lines = log.read_text().splitlines()[before:]
    assert sum("a process waits for the end of this sender" in line for line in lines) == 1
    assert len(lines) < 20, lines


def test_record_of_a_process_that_dies_during_the_drain_is_delivered(
    single: ScriptedBroker, make_producer: Callable[..., KafkaProducer]
) -> None:
    """The process is killed directly after a send(), while its sender is told to end."""
    keeper = make_producer(bootstrap_servers=single.bootstrap_servers)  # its sender runs all the time
    keeper.send(single.topic, b"keeper", partition=1).result(30)
    script = """
        import os, signal, sys, time
        from cyproducer import KafkaProducer
        linger_ms = float(sys.argv[3])
        producer = KafkaProducer(bootstrap_servers=sys.argv[1], linger_ms=linger_ms, sender_idle_timeout_ms=200)
        producer.send(sys.argv[2], b"first", partition=0).result(30)
        print("ready", flush=True)
        sys.stdin.readline()
        number, end = 0, time.monotonic() + float(sys.argv[4])
        while time.monotonic() < end:
            producer.send(sys.argv[2], b"%d" % number, partition=2)
            number += 1
        os.write(1, b"%d\\n" % number)
        os.kill(os.getpid(), signal.SIGKILL)
    """
    for attempt in range(4):
        sent = len(single.values(2))
        (found,) = wait_until(status, 30, "a sender")
        with start_script(script, single.bootstrap_servers, single.topic, attempt % 2 * 50, attempt * 0.02) as process:
            assert process.stdout.readline() == "ready\n"
            process.stdin.write("\n")
            process.stdin.flush()
            stop(found["socket"], 60)
            number = int(process.stdout.readline())
            process.wait(30)
        keeper.send(single.topic, b"keeper", partition=1).result(30)
        expected = [b"%d" % n for n in range(number)]
        wait_until(lambda sent=sent, expected=expected: single.values(2)[sent:] == expected, 30, "its records")
