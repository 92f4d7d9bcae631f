"""The benchmark measures what it says: the null broker judges batches, CPU clocks run, every record is counted."""

import json
import os
import socket
import struct
import subprocess
import sys
import time
from pathlib import Path

import pytest
from confluent_kafka import Producer
from support.process import script_environment

import bench
from bench.__main__ import pairs
from bench.brokers import NullBroker
from bench.measure import CpuMeter, cpu_ns
from bench.report import ratios
from bench.runner import Measurement, share
from cyproducer.protocol.codec import encode_request
from cyproducer.record.twin import Record, encode_batch

NOW = 1_700_000_000_000


def measurement(name: str, messages: int = 1000, seconds: float = 1.0, cpu: int = 1_000_000) -> Measurement:
    return Measurement(name, 0, messages, seconds, cpu, 0, 0, 0)


def test_confluent_delivers_idempotently_to_the_null_broker():
    offsets = []
    with NullBroker(3, check_every=1) as null:
        producer = Producer({"bootstrap.servers": null.bootstrap, "enable.idempotence": True, "linger.ms": 5})
        for number in range(500):
            producer.produce(
                "t", b"v%d" % number, partition=number % 3, on_delivery=lambda e, m: offsets.append((e, m.offset()))
            )
        assert producer.flush(20) == 0
        counters = null.counters()
    assert counters.records == 500
    assert counters.faults == 0
    assert [error for error, _ in offsets if error is not None] == []
    assert sorted(offset for _, offset in offsets) == sorted(n // 3 for n in range(500))


def produce_error(null: NullBroker, records: bytes) -> int:
    """Kafka's error code for one batch, sent as Produce v7."""
    body = {
        "acks": -1, "timeout_ms": 1000,
        "topic_data": [{"name": "t", "partition_data": [{"index": 0, "records": records}]}],
    }
    host, port = null.bootstrap.split(":")
    with socket.create_connection((host, int(port)), 10) as connection, connection.makefile("rb") as answers:
        connection.sendall(encode_request(0, 7, 1, "test", body))
        answer = answers.read(struct.unpack(">i", answers.read(4))[0])
    # correlation id, one topic "t", one partition: its index, then the error
    return struct.unpack_from(">h", answer, 4 + 4 + 3 + 4 + 4)[0]


def good_batch(sequence: int) -> bytes:
    """A batch of two records of producer 7."""
    return encode_batch(
        [Record(NOW, None, b"one"), Record(NOW, None, b"two")], producer_id=7, producer_epoch=0, base_sequence=sequence
    )


@pytest.mark.parametrize(
    ("at", "what"), [(16, "magic"), (17, "CRC"), (8, "length"), (60, "count")], ids=lambda v: str(v)
)
def test_the_null_broker_refuses_a_damaged_batch(at, what):
    batch = bytearray(good_batch(0))
    batch[at] ^= 1
    with NullBroker(1, check_every=1) as null:
        assert produce_error(null, bytes(batch)) == 2, what
        assert null.counters().faults == 1
        assert null.counters().records == 0


def test_the_null_broker_refuses_a_sequence_that_it_had():
    with NullBroker(1, check_every=1) as null:
        assert produce_error(null, good_batch(0)) == 0
        assert produce_error(null, good_batch(2)) == 0
        assert produce_error(null, good_batch(2)) == 45
        assert null.counters()[:2] == (4, 2)


def test_cpu_of_another_process_is_measured():
    spin = "import time\nwhile time.process_time() < 0.2: pass\nprint(flush=True)\ninput()"
    with subprocess.Popen(
        [sys.executable, "-c", spin], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        meter = CpuMeter([other.pid])
        other.stdout.readline()
        used = meter.used()
        own = cpu_ns(os.getpid())
        other.stdin.write("\n")
        other.stdin.flush()
        other.wait()
        with pytest.raises(ProcessLookupError):
            cpu_ns(other.pid)
    assert used > 100_000_000
    assert abs(own - time.process_time_ns()) < 10_000_000_000


def test_ratios_pair_rounds_and_judge_goals():
    found = [measurement("a", cpu=100), measurement("b", cpu=1000), measurement("a", cpu=300),
             measurement("b", cpu=1000)]
    [cheap] = ratios(found, [("a", "b", 0.25)])
    assert cheap["cpu"] == {"median": pytest.approx(0.2), "min": pytest.approx(0.1), "max": pytest.approx(0.3)}
    assert cheap["met"] is True
    [dear] = ratios(found, [("a", "b", 0.1)])
    assert dear["met"] is False
    fast = [measurement("a", seconds=2.0), measurement("b", seconds=1.0)]
    assert ratios(fast, [("a", "b", 1.0)], by_rate=True)[0]["met"] is False
    assert ratios(found, [("a", "absent", 1.0)]) == []


def test_shares_and_settings():
    assert share(10_500, 4, 1000) == 2000
    assert share(10, 4, 1000) == 1000
    assert pairs("linger_ms=0,acks=all") == {"linger_ms": 0, "acks": "all"}


def test_the_command_compares_and_writes_json(tmp_path):
    target = tmp_path / "bench.json"
    run = subprocess.run(
        [sys.executable, "-m", "bench", "--broker", "null", "--rounds", "2", "--messages", "20000", "--warmup",
         "1000", "--only", "send,produce,send_result,produce_callback", "--json", target],
        cwd=Path(bench.__file__).parents[1], env=script_environment(), capture_output=True, text=True, timeout=100,
    )
    assert run.returncode == 0, run.stderr
    made = json.loads(target.read_text())
    order = [(m["round"], m["contestant"]) for m in made["measurements"]]
    names = ["send", "produce", "send_result", "produce_callback"]
    assert order == [(number, name) for number in range(2) for name in names]
    assert all(m["messages"] == 20_000 and m["front_end_cpu"] > 0 for m in made["measurements"])
    assert all((m["sender_cpu"] > 0) == m["contestant"].startswith("send") for m in made["measurements"])
    assert {r["ours"] for r in made["ratios"]} == {"send", "send_result"}
    assert made["machine"]["cores"] > 0
    assert "send / produce" in run.stdout
