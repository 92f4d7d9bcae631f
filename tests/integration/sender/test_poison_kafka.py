"""Tests records that a real Kafka refuses, merged among front-ends: what arrives, and who gets an error."""

import itertools
import time

import psutil
import pytest
from support.connections import ports_of
from support.consumer import read_topic
from support.engine_rig import EngineRig
from support.front_end import PlainFrontEnd, run_until, topic_number

from cyproducer import errors
from cyproducer.codes import INVALID_RECORD, INVALID_TIMESTAMP, MESSAGE_TOO_LARGE

RECORDS = 3  # of a batch
NOW = int(time.time() * 1000)
DAY = 86_400_000
#: Less than a day, and longer than a test run may take: NOW is the time of its start.
TOO_LONG_MS = str(DAY // 2)
KEEP = {"cleanup.policy": "compact", "min.compaction.lag.ms": "3600000"}


@pytest.fixture
def rig(kafka):
    rig = EngineRig(kafka.bootstrap_servers, request_timeout_ms=2000, retry_backoff_ms=20)
    yield rig
    rig.close()


class Streams:
    """Front-ends that send small batches to one partition; some batches have a record that the topic refuses."""

    def __init__(self, rig: EngineRig, topic: str, front_ends: int, bad: str) -> None:
        self.rig = rig
        self.bad = bad
        self.front_ends = [rig.attach(linger_ms=5, delivery_timeout_ms=150_000) for _ in range(front_ends)]
        self.number = topic_number(rig.engine, self.front_ends[0], topic)
        self.sent: list[list[tuple[bool, list[bytes]]]] = [[] for _ in self.front_ends]
        self.codes: list[dict[int, list[int]]] = [{} for _ in self.front_ends]  # by slot: the error of each record

    def send(self, index: int, spoiled: bool = False) -> None:
        slot = len(self.sent[index])
        values = [b"%d/%d/%d" % (index, slot, number) for number in range(RECORDS)]
        self.sent[index].append((spoiled, values))
        records = [(NOW, value, value) for value in values]
        if spoiled:
            stamp = {"old": NOW - DAY, "future": NOW + DAY}.get(self.bad, NOW)
            records[1] = (stamp, None if self.bad == "no key" else values[1], values[1])
        self.front_ends[index].send(slot, records, topic=self.number, partition=0, seal=False)

    def listen(self) -> bool:
        for codes, front_end in zip(self.codes, self.front_ends, strict=True):
            for slot, _, _, _, _, error, flags in front_end.outcomes():
                if flags & 1:
                    assert slot not in codes
                    parts = front_end.parts[slot]
                    codes[slot] = [parts[number][1] if number in parts else error for number in range(RECORDS)]
        return self.rig.engine.undelivered() == 0

    def settle(self, timeout: float = 30) -> None:
        run_until(self.rig.engine, self.listen, timeout)

    def check(self, kafka, topic: str, code: int) -> None:
        """Check that bad records failed with `code` and are not there, and all others are, once and in order.

        The outcome of a spoiled batch may be unknown: its good records may be there.
        """
        good, maybe = [], set()
        for sent, codes in zip(self.sent, self.codes, strict=True):
            good.append([])
            for slot, (spoiled, values) in enumerate(sent):
                expected = [0, code, 0] if spoiled else [0, 0, 0]
                unknown = [error == errors.OUTCOME_UNKNOWN for error in codes[slot]]
                assert [error for error, doubt in zip(codes[slot], unknown, strict=True) if not doubt] == [
                    error for error, doubt in zip(expected, unknown, strict=True) if not doubt
                ]
                assert spoiled or not any(unknown)
                good[-1] += [value for value, error in zip(values, expected, strict=True) if error == 0]
                maybe |= {value for value, doubt in zip(values, unknown, strict=True) if doubt}
        found = read_topic(kafka.bootstrap_servers, topic, sum(map(len, good)) - len(maybe)).value
        for index, values in enumerate(good):
            mine = [value for value in found if value.startswith(b"%d/" % index)]
            assert mine == [value for value in values if value not in maybe or value in mine]
        assert len(found) == len(set(found))


def check_log(kafka, topic: str) -> dict[int, list]:
    """Return the batches on disk by producer id: every CRC valid, sequences from 0 without gap in every epoch."""
    lanes: dict[int, list] = {}
    for batch in kafka.dump_log(topic, 0):
        assert batch.crc_valid
        lanes.setdefault(batch.producer_id, []).append(batch)
    for batches in lanes.values():
        epochs = [batch.epoch for batch in batches]
        assert epochs == sorted(epochs)
        for _, group in itertools.groupby(batches, lambda batch: batch.epoch):
            expected = 0
            for batch in group:
                assert batch.base_sequence == expected
                expected += batch.count
    return lanes


@pytest.mark.parametrize(
    ("configs", "bad", "code"),
    [
        (KEEP, "no key", INVALID_RECORD),
        ({"message.timestamp.before.max.ms": TOO_LONG_MS}, "old", INVALID_TIMESTAMP),
        ({"message.timestamp.after.max.ms": TOO_LONG_MS}, "future", INVALID_TIMESTAMP),
    ],
    ids=["no key in a compacted topic", "too old", "too far in the future"],
)
def test_bad_records_among_merged_ones_fail_for_their_owner_alone(rig, kafka, new_topic, configs, bad, code):
    """Two of five front-ends send bad records repeatedly: the others' epoch changes once at most."""
    topic = new_topic(1, configs=configs)
    streams = Streams(rig, topic, 5, bad)
    for number in range(30):
        for index in range(5):
            streams.send(index, spoiled=(index == 1 and number % 3 == 1) or (index == 3 and number % 7 == 1))
        rig.engine.run(3)
    streams.settle()
    streams.check(kafka, topic, code)
    lanes = check_log(kafka, topic)
    ordinary, isolation = sorted(lanes)
    assert max(batch.count for batch in lanes[ordinary]) >= 9, "nothing was merged"
    assert {batch.count for batch in lanes[isolation]} <= {2, 3}, "batches there are not merged"
    assert lanes[ordinary][-1].epoch <= 2


def test_bad_records_while_the_broker_is_killed_and_restarted(rig, kafka, new_topic):
    """Batches in flight may have been appended or refused: only the owners of bad records may have unknown outcomes."""
    topic = new_topic(1, configs=KEEP)
    streams = Streams(rig, topic, 4, "no key")
    for number in range(60):
        for index in range(4):
            streams.send(index, spoiled=index == 2 and number % 5 == 0)
        if number == 20:
            kafka.kill()
        if number == 40:
            kafka.restart(wait=False)
        rig.engine.run(5)
    streams.settle(120)
    streams.check(kafka, topic, INVALID_RECORD)
    check_log(kafka, topic)


def change_all(front_end: PlainFrontEnd, slots: range) -> None:
    """Overwrite a byte in the middle of every record."""
    for slot in slots:
        front_end.memory[front_end.chunks_at + slot * 4096 + 30_000] ^= 0xFF


@pytest.fixture
def small_socket_rig(kafka):
    """Make the sender's socket buffer smaller than the bytes it has in flight when two front-ends use a broker."""
    rig = EngineRig(kafka.bootstrap_servers, retry_backoff_ms=20, send_buffer_bytes=4096)
    yield rig
    rig.close()


@pytest.mark.breaks_protocol
def test_bytes_that_change_after_their_crc_was_made(small_socket_rig, kafka, new_topic):
    """More is in flight than a stopped broker's socket takes; then the front-end overwrites everything."""
    rig = small_socket_rig
    topic = new_topic(32)
    correct, hostile = rig.attach(), rig.attach(slots=4096)
    number = topic_number(rig.engine, correct, topic)
    for partition in range(32):  # their producer ids are acknowledged: from here on five batches go out at once
        correct.send(partition, [(NOW, None, b"before")], topic=number, partition=partition)
    assert {outcome[5] for outcome in rig.outcomes(correct, 32)} == {0}
    kafka.pause()
    slots = range(0, 16 * 32 * 5, 16)
    for at, slot in enumerate(slots):
        hostile.send(slot, [(NOW, None, b"%05d" % slot + b"x" * 60_000)], topic=number, partition=at % 32)
    for _ in range(20):
        rig.engine.run(5)
    change_all(hostile, slots)
    kafka.resume()
    got: list[tuple] = []
    for partition in range(32):
        correct.send(32 + partition, [(NOW, None, b"after")], topic=number, partition=partition)
    run_until(rig.engine, lambda: got.extend(hostile.outcomes()) or rig.engine.undelivered() == 0, 30)
    assert {outcome[5] for outcome in rig.outcomes(correct, 32)} == {0}
    assert rig.engine.take_violators() == [hostile.attach_id]
    found = read_topic(kafka.bootstrap_servers, topic, 64).value
    whole = [value for value in found if value.endswith(b"x" * 60_000)]
    assert found.count(b"before") == found.count(b"after") == 32
    assert len(set(whole)) == len(whole)
    for slot, _, _, _, _, error, _ in got:
        if not error:
            assert sum(value.startswith(b"%05d" % slot) for value in found) == 1


def own_ports(servers: str) -> set[int]:
    """Return this process's ends of its connections to a broker."""
    return {
        connection.laddr.port
        for connection in psutil.Process().net_connections("tcp")
        if connection.raddr and connection.raddr.port in ports_of(servers)
    }


def test_bad_records_with_acks_zero_close_no_connection(rig, kafka, new_topic):
    """A broker answers a refused acks=0 batch by closing the connection, which all front-ends share."""
    compacted, small = new_topic(1, configs=KEEP), new_topic(1, configs={"max.message.bytes": "1000"})
    good, bad = rig.attach(), rig.attach(acks=0, enable_idempotence=False)
    first, second = (topic_number(rig.engine, good, topic) for topic in (compacted, small))
    good.send(0, [(NOW, b"k", b"before")], topic=first, partition=0)
    assert rig.outcomes(good, 1)[0][5] == 0
    before = own_ports(kafka.bootstrap_servers)
    for number in range(1, 21):
        good.send(number, [(NOW, b"k", b"%d" % number)], topic=first, partition=0)
        bad.send(2 * number, [(NOW, None, b"no key")], topic=first, partition=0)
        bad.send(2 * number + 1, [(NOW, b"k", b"x" * 2000)], topic=second, partition=0)
        rig.engine.run(2)
    bad.send(0, [(NOW, b"k", b"well")], topic=second, partition=0)
    assert {outcome[5] for outcome in rig.outcomes(good, 20)} == {0}
    results = [outcome for outcome in rig.outcomes(bad, 82) if outcome[6] & 1]
    assert {(outcome[3], outcome[5]) for outcome in results} == {(-1, 0)}
    # A slow broker may have got a further connection.
    after = own_ports(kafka.bootstrap_servers)
    assert before <= after
    assert len(after - before) <= 1
    assert rig.engine._loop.totals()["retries"] == 0
    assert sorted(rig.engine.take_failures()) == sorted(
        [(bad.attach_id, compacted, INVALID_RECORD, 20), (bad.attach_id, small, MESSAGE_TOO_LARGE, 20)]
    )
    numbers = [b"before", *(b"%d" % number for number in range(1, 21))]
    assert read_topic(kafka.bootstrap_servers, compacted, 21).value == numbers
    assert read_topic(kafka.bootstrap_servers, small, 1).value == [b"well"]
