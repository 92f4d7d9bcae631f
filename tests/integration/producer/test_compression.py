"""Tests compressed batches on a real Kafka: the broker checks each record, a foreign consumer reads them."""

import gzip
import io
import os
import random
import signal

import pytest
from support.consumer import read_topic
from support.process import wait_until

from cyproducer import errors
from cyproducer.observe.status import status
from cyproducer.producer.core import native

CODECS = ("gzip", "snappy", "lz4", "zstd")
LINE = b"2026-11-21T10:%02d:%02d INFO checkout user=%06d cart=%d items took=%d ms status=ok"
START = 1_700_000_000_000


def line(n: int) -> bytes:
    return LINE % (n // 60 % 60, n % 60, n * 7919 % 1_000_000, n % 30, n % 977)


def rows_of(kafka, topic, count):
    """Return everything in a topic by (partition, offset)."""
    found = read_topic(kafka.bootstrap_servers, topic, count)
    assert len(found) == count
    places = zip(found.partition, found.offset, strict=True)
    rows = zip(found.key, found.value, found.headers, found.timestamp, strict=True)
    return dict(zip(places, rows, strict=True))


@pytest.mark.parametrize("codec", CODECS)
def test_batches_are_compressed_and_read_as_they_were_sent(kafka, make_producer, new_topic, codec):
    topic = new_topic(1)
    producer = make_producer(compression_type=codec, linger_ms=20)
    sent = [
        (producer.send(topic, line(n), key=b"k%d" % (n % 9) if n % 4 else None, headers=[("n", b"%d" % n)],
                       timestamp_ms=START + n), n)
        for n in range(5_000)
    ]  # fmt: skip
    large = line(1) * 5_000
    future = producer.send(topic, large)
    array = producer.send_array(topic, [line(n) for n in range(3_000)], keys=[b"k"] * 3_000, timestamps_ms=START)
    lone = producer.send(topic, b"x")
    producer.flush(60)
    found = rows_of(kafka, topic, 8_002)
    for sending, n in sent:
        key, value, headers, timestamp = found[0, sending.result(0).offset]
        assert (key, value) == (b"k%d" % (n % 9) if n % 4 else None, line(n))
        assert (list(headers), timestamp) == ([("n", b"%d" % n)], START + n)
    assert found[0, future.result(0).offset][1] == large
    for n, offset in enumerate(array.result(0).offset.tolist()):
        assert found[0, offset][:2] == (b"k", line(n))
    assert found[0, lone.result(0).offset][1] == b"x"
    batches = kafka.dump_log(topic, 0)
    assert all(batch.crc_valid for batch in batches)
    compressed = [batch for batch in batches if batch.compression == codec]
    assert sum(batch.count for batch in compressed) > 7_900
    assert sum(batch.size for batch in compressed) < sum(len(line(n)) for n in range(8_000)) // 2
    ends = [batch.last_sequence + 1 for batch in batches]
    assert [batch.base_sequence for batch in batches] == [0, *ends[:-1]]


def test_incompressible_records_go_out_uncompressed(kafka, make_producer, new_topic):
    topic = new_topic(1)
    producer = make_producer(compression_type="zstd")
    values = [os.urandom(1_000) for _ in range(500)]
    for value in values:
        producer.send(topic, value)
    producer.flush(30)
    assert [row[1] for _, row in sorted(rows_of(kafka, topic, 500).items())] == values
    assert {batch.compression for batch in kafka.dump_log(topic, 0)} == {"none"}


@pytest.mark.parametrize(
    ("way", "settings", "size", "blocks"),
    [
        ("send", {"batch_size": 16_384}, 16_384, 200),
        pytest.param("send_array", {"batch_size": 16_384}, 16_384, 200, marks=pytest.mark.long),
        pytest.param("send", {"batch_size": 65_536}, 65_536, 400, marks=pytest.mark.long),
    ],
)
def test_compressed_batches_grow_to_the_batch_size(kafka, make_producer, new_topic, way, settings, size, blocks):
    """The estimated ratio of the topic falls by 0.005 with each batch that the process compresses.

    With a margin of 5 %, a full batch has at most 95 % of batch_size. A batch that is larger than expected raises the
    ratio by 0.05. That is a fifth of the ratio of these lines, so batches grow from 80 % again. A batch may be sent
    before it is full, to free memory, or because this process compresses slowly: on a busy machine that is every
    second one. The largest tenth is full.
    """
    topic = new_topic(1)
    producer = make_producer(compression_type="lz4", linger_ms=10_000, **settings)
    block = [line(n) for n in range(1000)]
    for _ in range(blocks):
        if way == "send":
            for value in block:
                producer.send(topic, value)
        else:
            producer.send_array(topic, block)
    producer.flush(60)
    batches = kafka.dump_log(topic, 0)
    sizes = [batch.size for batch in batches if batch.compression == "lz4"]
    assert sum(batch.count for batch in batches) == blocks * 1000
    assert max(sizes[:10]) < 0.6 * size, "the first batches hold batch_size bytes of records"
    grown = sorted(sizes[170:])
    assert len(grown) > 50
    assert grown[len(grown) * 9 // 10] > 0.75 * size
    assert 0.92 * size < grown[-1] <= size
    for _ in range(3_000):
        producer.send(topic, os.urandom(100))
    producer.flush(60)
    assert sum(batch.count for batch in kafka.dump_log(topic, 0)) == blocks * 1000 + 3_000


@pytest.mark.parametrize(
    ("codec", "name", "levels"),
    [
        ("zstd", "compression_level", (1, 19)),
        ("gzip", "compression.gzip.level", (1, 9)),
        ("lz4", "compression_lz4_level", (1, 17)),
        ("zstd", "compression_zstd_level", (-100, 19)),
    ],
)
def test_a_level_is_used(kafka, make_producer, new_topic, codec, name, levels):
    sizes = []
    for level in levels:
        topic = new_topic(1)
        producer = make_producer(compression_type=codec, linger_ms=100, **{name: level})
        for n in range(3_000):
            producer.send(topic, line(n))
        producer.flush(30)
        sizes.append(sum(batch.size for batch in kafka.dump_log(topic, 0)))
    assert sizes[1] < sizes[0]


def test_merged_batches_are_compressed(kafka, make_producer, new_topic, runtime_dir):
    """Small batches of two front-ends with the same codec are merged; a batch with another codec is not."""
    topic = new_topic(1)
    producers = [make_producer(compression_type=codec, linger_ms=300) for codec in ("lz4", "lz4", "gzip")]
    for producer in producers:
        producer.send(topic, b"first").result(30)
    futures = [[producer.send(topic, line(n)) for n in range(20)] for producer in producers]
    for made in futures:
        for future in made:
            future.result(30)
    values = [row[1] for _, row in sorted(rows_of(kafka, topic, 63).items())]
    for made in futures:
        assert [values[future.result(0).offset] for future in made] == [line(n) for n in range(20)]
    assert {(batch.count, batch.compression) for batch in kafka.dump_log(topic, 0) if batch.count >= 20} == {
        (40, "lz4"),
        (20, "gzip"),
    }


def test_bad_records_in_a_merged_batch_fail_for_their_owner_alone(kafka, make_producer, new_topic):
    topic = new_topic(1, configs={"cleanup.policy": "compact"})
    good, bad = (make_producer(compression_type="zstd", linger_ms=300) for _ in range(2))
    good.send(topic, b"first", key=b"k").result(30)
    bad.send(topic, b"first", key=b"k").result(30)
    kept = [good.send(topic, line(n), key=b"k%d" % n) for n in range(20)]
    refused = [bad.send(topic, line(n)) for n in range(20)]
    assert sorted(future.result(30).offset for future in kept) == [future.result(0).offset for future in kept]
    assert {type(future.exception(30)) for future in refused} == {errors.InvalidRecordError}
    found = rows_of(kafka, topic, 22)
    assert [found[0, future.result(0).offset][0] for future in kept] == [b"k%d" % n for n in range(20)]


def test_a_killed_senders_successor_compresses_again(kafka, make_producer, new_topic):
    topic = new_topic(2)
    producer = make_producer(compression_type="lz4", linger_ms=2)
    producer.send(topic, b"first", partition=0).result(30)
    futures = []
    for round_number in range(8):
        (now,) = status()
        for n in range(4_000):
            futures.append(producer.send(topic, line(round_number * 4_000 + n), partition=n % 2))
        os.kill(now["sender_pid"], signal.SIGKILL)
        wait_until(lambda dead=now: any(s["sender_pid"] != dead["sender_pid"] for s in status()), 20, "a successor")
    producer.flush(60)
    found = rows_of(kafka, topic, 32_001)
    for n, future in enumerate(futures):
        got = future.result(0)
        assert found[got.partition, got.offset][1] == line(n)


def test_batches_in_flight_stay_compressed_after_a_takeover(kafka, make_producer, new_topic):
    """The topic refuses the batches uncompressed, also after the sender's death."""
    topic = new_topic(1, configs={"max.message.bytes": "4000"})
    producer = make_producer(compression_type="gzip", linger_ms=0)
    producer.send(topic, b"first").result(30)
    kafka.pause()
    future = producer.send(topic, line(1) * 1_000)
    on_the_way = wait_until(
        lambda: next((s for s in status() if any(c["in_flight"] for c in s["connections"])), None), 20, "its request"
    )
    os.kill(on_the_way["sender_pid"], signal.SIGKILL)
    wait_until(lambda: any(s["sender_pid"] != on_the_way["sender_pid"] for s in status()), 20, "a successor")
    kafka.resume()
    assert future.result(30).offset == 1


OWNER = b"compressed-by-its-owner"


def as_owner(codec, level=None):
    """Replace compressor() in this process: gzip with a file name in its header, unlike the sender's."""

    def compress(data):
        out = io.BytesIO()
        with gzip.GzipFile(OWNER.decode(), "wb", 6, out) as file:
            file.write(data)
        return out.getvalue()

    return compress


@pytest.fixture
def owner(monkeypatch):
    """Let the front-ends of this process put the mark OWNER into the batches that they compress."""
    monkeypatch.setattr(native, "compressor", as_owner)


def share_of_the_owner(kafka, topic):
    """Return how many of the batches of partition 0 carry the mark."""
    marked = sum(path.read_bytes().count(OWNER) for path in kafka.segments(topic, 0))
    return marked / len(kafka.dump_log(topic, 0))


@pytest.mark.usefixtures("owner")
def test_full_batches_are_compressed_by_their_owner(kafka, make_producer, new_topic):
    """The broker is stopped, so the sender waits for it and does not ask for a wake-up."""
    topic = new_topic(1)
    producer = make_producer(compression_type="gzip", linger_ms=0, batch_size=65_536)  # many batches, of equal size
    producer.send(topic, b"first").result(30)
    kafka.pause()
    try:
        futures = [producer.send(topic, line(n), key=b"k") for n in range(20_000)]
        array = producer.send_array(topic, [line(n) for n in range(10_000)])
    finally:
        kafka.resume()
    found = rows_of(kafka, topic, 30_001)
    for n, future in enumerate(futures):
        assert found[0, future.result(30).offset][:2] == (b"k", line(n))
    for n, offset in enumerate(array.result(30).offset.tolist()):
        assert found[0, offset][:2] == (None, line(n))
    assert share_of_the_owner(kafka, topic) > 0.6


@pytest.mark.usefixtures("owner")
def test_a_takeover_keeps_what_the_owner_has_compressed(kafka, make_producer, new_topic):
    topic = new_topic(1)
    producer = make_producer(compression_type="gzip", linger_ms=0, batch_size=65_536)  # many batches, of equal size
    producer.send(topic, b"first").result(30)
    kafka.pause()
    try:
        futures = [producer.send(topic, line(n)) for n in range(20_000)]
        (before,) = status()
        os.kill(before["sender_pid"], signal.SIGKILL)
        wait_until(lambda: any(s["sender_pid"] != before["sender_pid"] for s in status()), 20, "a successor")
    finally:
        kafka.resume()
    found = rows_of(kafka, topic, 20_001)
    for n, future in enumerate(futures):
        assert found[0, future.result(30).offset][1] == line(n)
    assert share_of_the_owner(kafka, topic) > 0.5


@pytest.mark.parametrize("junk", [b"\x1f\x8b\x08" + bytes(50), gzip.compress(b"no records at all", mtime=0)])
def test_invalid_compressed_copy_harms_its_owner_alone(kafka, make_producer, new_topic, monkeypatch, junk):
    topic = new_topic(1)
    correct = make_producer(compression_type="gzip", linger_ms=0)
    correct.send(topic, b"first").result(30)
    monkeypatch.setattr(native, "compressor", lambda codec, level=None: lambda data: junk)
    broken = make_producer(compression_type="gzip", linger_ms=0)
    broken.send(topic, b"second").result(30)
    kafka.pause()
    try:
        bad = [broken.send(topic, line(n)) for n in range(20_000)]
        good = [correct.send(topic, line(n)) for n in range(20_000)]
    finally:
        kafka.resume()
    offsets = [future.result(60).offset for future in good]
    assert offsets == sorted(offsets)
    refused = [error for future in bad if (error := future.exception(60)) is not None]
    assert refused
    known = {errors.CorruptRecordError, errors.InvalidRecordError, errors.UnknownServerError}
    assert {type(error) for error in refused} <= known
    found = rows_of(kafka, topic, 20_002 + len(bad) - len(refused))
    for n, offset in enumerate(offsets):
        assert found[0, offset][1] == line(n)


def large(number, size):
    """Return a value of `size` bytes or more; from 200,000 bytes on it compresses to more than 64 KiB."""
    return random.Random(number).randbytes(size // 2).hex().encode()


@pytest.mark.usefixtures("owner")
@pytest.mark.parametrize("size", [70_000, 200_000, 900_000])
def test_a_record_above_64_kib_is_compressed_by_its_owner(kafka, make_producer, new_topic, size):
    topic = new_topic(1)
    producer = make_producer(compression_type="gzip")
    futures = [producer.send(topic, large(n, size), key=b"k", headers=[("h", b"1")]) for n in range(5)]
    bulk = producer.send_array(topic, [large(n, size) for n in range(5, 8)])
    assert [future.result(30).offset for future in futures] == list(range(5))
    assert bulk.result(30).offset.tolist() == [5, 6, 7]
    found = rows_of(kafka, topic, 8)
    assert [found[0, n][:2] for n in range(8)] == [(b"k" if n < 5 else None, large(n, size)) for n in range(8)]
    assert {batch.compression for batch in kafka.dump_log(topic, 0)} == {"gzip"}
    assert share_of_the_owner(kafka, topic) == 1


@pytest.mark.usefixtures("owner")
def test_a_full_batch_above_64_kib_is_compressed_by_its_owner(kafka, make_producer, new_topic):
    topic = new_topic(1)
    producer = make_producer(compression_type="gzip", batch_size=500_000, linger_ms=10_000)
    values = [large(n, 5_000) for n in range(400)]
    futures = [producer.send(topic, value) for value in values]
    producer.flush(30)
    found = rows_of(kafka, topic, 400)
    assert [found[0, future.result(0).offset][1] for future in futures] == values
    assert [batch.count > 90 for batch in kafka.dump_log(topic, 0)].count(True) == 4
    assert share_of_the_owner(kafka, topic) >= 0.6


def test_slow_compression_of_one_front_end_does_not_delay_anothers_record(kafka, make_producer, new_topic):
    """The batches linger, so the sender compresses them: many batches of 10 to 40 ms each, all due at once."""
    topic, other = new_topic(48), new_topic(1)
    slow = make_producer(compression_type="zstd", compression_level=19, linger_ms=300)
    quick = make_producer(linger_ms=0)
    for partition in range(48):
        slow.send(topic, b"first", partition=partition)
    slow.flush(30)
    quick.send(other, b"first").result(30)
    futures = [slow.send(topic, large(n, 60_000), partition=n) for n in range(48)]
    done, meanwhile = 0, []
    while done < len(futures):
        quick.send(other, b"in between").result(30)
        before, done = done, sum(future.done() for future in futures)
        meanwhile.append(done - before)
    assert max(meanwhile) < 16
    found = rows_of(kafka, topic, 96)
    assert [found[n, 1][1] for n in range(48)] == [large(n, 60_000) for n in range(48)]
