"""Tests the benchmark: the null broker validates batches, clocks run, and the checks look for every record."""

import gzip
import os
import socket
import struct
import subprocess
import sys
import time
from dataclasses import replace
from functools import partial

import pytest
from confluent_kafka import Producer
from support.connections import SENDERS_MOST
from support.process import is_running, kill9, wait_until
from support.record_twin import Record, encode_batch

from bench import calls, idle, recovery, spark, spark_worker, start, work
from bench.asked import RefusedError, chosen, pairs
from bench.brokers import KafkaBroker, NullBroker
from bench.contestants import CONTESTANTS, NotSupportedError
from bench.figures import FIGURES
from bench.goals import Goal, judge
from bench.growth import COMPARISONS
from bench.limits import LABELS
from bench.loads import HEADERS, Load, Sent, keys_of, values_of
from bench.measure import CpuMeter, cpu_ns, wake_ups
from bench.processes import hear, own_senders, workers_of
from bench.report import overall
from bench.samples import Kept
from cyproducer.protocol.codec import encode_request

NOW = 1_700_000_000_000
TINY = Load(messages=2000, warmup=1000, least_seconds=0, rate=200, seconds=0.3, partitions=3)


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


def produce_error(null: NullBroker, records: bytes, node: int = 0) -> int:
    """Return Kafka's error code for one batch for partition 0, sent to a node as Produce v7."""
    body = {
        "acks": -1,
        "timeout_ms": 1000,
        "topic_data": [{"name": "t", "partition_data": [{"index": 0, "records": records}]}],
    }
    host, port = null.bootstrap.split(",")[node].split(":")
    with socket.create_connection((host, int(port)), 10) as connection, connection.makefile("rb") as answers:
        connection.sendall(encode_request(0, 7, 1, "test", body))
        answer = answers.read(struct.unpack(">i", answers.read(4))[0])
    # correlation id, one topic "t", one partition: its index, then the error
    return struct.unpack_from(">h", answer, 4 + 4 + 3 + 4 + 4)[0]


def good_batch(sequence: int) -> bytes:
    """Return a batch of two records of producer 7."""
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


def test_sleeps_are_counted():
    nap = "import time\nprint(flush=True)\ninput()\nfor _ in range(20): time.sleep(0.001)\nprint(flush=True)\ninput()"
    with subprocess.Popen(
        [sys.executable, "-c", nap], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        other.stdout.readline()
        before = wake_ups([other.pid])
        other.stdin.write("\n")
        other.stdin.flush()
        other.stdout.readline()
        slept = wake_ups([other.pid]) - before
        other.stdin.write("\n")
        other.stdin.flush()
        other.wait()
    assert slept >= 20


def test_nodes_lead_their_partitions_and_keep_samples():
    """Three nodes are one cluster, each refuses batches for the others' partitions, and samples equal what was sent."""
    with NullBroker(3, check_every=1, nodes=3) as null:
        producer = Producer({"bootstrap.servers": null.bootstrap, "enable.idempotence": True})
        for number in range(3):
            producer.produce("t", b"v%d" % number, partition=number)
        assert producer.flush(20) == 0
        assert null.counters()[:2] == (3, 3)
        kept = null.sample(["t"], [0, 0, 0])
        assert (sorted(kept.records), kept.codecs) == ([Sent(b"v0"), Sent(b"v1"), Sent(b"v2")], {None})
        assert null.sample(["t"], null.samples()) == Kept([], set())
        assert produce_error(null, good_batch(0), node=0) == 0
        assert produce_error(null, good_batch(0), node=1) == 6


def sample(name, number, point=None, **figures):
    return {"contestant": name, "round": number, "point": point, "figures": figures}


def test_goals_are_judged_round_by_round():
    found = [
        sample("a", 0, cpu_us=1.0),
        sample("b", 0, cpu_us=10.0),
        sample("a", 1, cpu_us=3.0),
        sample("b", 1, cpu_us=10.0),
        sample("a", 2, cpu_us=2.0),
        sample("b", 2, cpu_us=1.0),
    ]
    verdict = judge(Goal("a", "cpu_us", most=0.3, against="b"), found, {}, {})
    assert verdict.values == pytest.approx([0.1, 0.3, 2.0])
    assert verdict.reached is True
    assert judge(Goal("a", "cpu_us", most=0.29, against="b"), found, {}, {}).reached is False
    assert judge(Goal("a", "cpu_us", least=2.1), found, {}, {}).reached is False
    assert judge(Goal("a", "cpu_us", most=1.0, limit="line"), found, {"line": 2.0}, {}).values == [0.5, 1.5, 1.0]
    missed = Goal("a", "cpu_us", least=9, otherwise=Goal("a", "cpu_us", least=2))
    assert judge(missed, found, {}, {}).reached is True
    grown = [sample("a", 0, 1, cpu_us=1.0), sample("a", 0, 64, cpu_us=2.0)]
    assert judge(Goal("a", "cpu_us", most=1.5, point=64, base=1), grown, {}, {}).values == [2.0]
    unknown = judge(Goal("a", "cpu_us", most=1, against="absent"), found, {}, {"absent": "not installed"})
    assert (unknown.reached, unknown.found) == (None, "not installed")


@pytest.mark.parametrize("name", COMPARISONS)
def test_comparisons_name_known_contestants_and_figures(name):
    one = COMPARISONS[name]
    known = CONTESTANTS if one.measure not in ("calls", "tls_calls", "spark") else one.contestants
    assert set(one.contestants) <= set(known)
    assert set(one.figures) <= set(FIGURES)
    assert set(one.limits) <= set(LABELS)
    for point in one.points:
        assert one.load_at(point).share(1000, 1) > 0
    for goal in one.goals:
        assert {goal.contestant, goal.against} - {None} <= set(one.contestants)
        assert goal.figure in one.figures
        assert goal.point in one.points
        assert goal.limit in {None, *LABELS}
        assert (goal.least is None) != (goal.most is None)


def test_a_row_is_reached_if_all_of_its_goals_are():
    assert overall([["a", "", "", "reached"], ["b", "", "", "reached"]]) == "reached"
    assert overall([["a", "", "", "reached"], ["b", "", "", "**missed**"], ["c", "", "", "-"]]) == (
        "1 missed, 1 not measured"
    )


def test_shares_settings_and_names():
    assert Load(processes=4).share(10_500, 1000) == 2000
    assert Load(processes=4).share(10, 1000) == 1000
    assert Load(value_bytes=1000, most_bytes=50_000).share(1000, 10) == 50
    assert pairs("linger_ms=0,acks=all") == {"linger_ms": 0, "acks": "all"}
    with pytest.raises(RefusedError, match="'foo' is not name=value"):
        pairs("linger_ms=0,foo")
    assert chosen(["growth-s*", "send"]) == ["send", "growth-sizes"]
    assert [COMPARISONS[name].broker for name in chosen([])][-1] == "kafka3"
    with pytest.raises(RefusedError, match="no comparison"):
        chosen(["send", "absent"])


@pytest.mark.parametrize("load", [Load(), Load(value_bytes=1000, text=True), Load(value_bytes=1_000_000)])
def test_values_are_the_same_everywhere_and_of_their_size(load):
    values = values_of(load)
    assert values == values_of(load)
    assert {len(value) for value in values} == {load.value_bytes}
    assert len(set(values)) == load.value_count()


def test_lost_and_changed_records_are_found():
    with NullBroker(1) as null:
        before = work.Before(null, ["t"])
        assert produce_error(null, good_batch(0)) == 0
        with pytest.raises(work.LostError, match="3 records were acknowledged, but the broker received 2"):
            work.check(null, ["t"], TINY, "a", 3, before, {Sent(b"one"), Sent(b"two")}, {None})
        with pytest.raises(work.LostError, match="was not sent: b'one'"):
            work.check(null, ["t"], TINY, "a", 2, before, {Sent(b"two")}, {None})
        work.check(null, ["t"], TINY, "a", 2, before, {Sent(b"one"), Sent(b"two")}, {None})


def test_every_measurement_has_a_sample_of_its_own():
    """Every measurement gets a sample, even with few batches: the next batch is kept on whichever broker it arrives.

    Only a broker that keeps no samples may have none.
    """
    with NullBroker(1, check_every=1000) as null:
        assert produce_error(null, good_batch(0)) == 0
        before = work.Before(null, ["t"])
        assert produce_error(null, good_batch(2)) == 0
        assert len(null.sample(["t"], before.samples).records) == 2
        with pytest.raises(work.LostError, match="was not sent"):
            work.check(null, ["t"], TINY, "a", 2, before, {Sent(b"x")}, {None})
    with pytest.raises(work.LostError, match="no record was sampled"):
        work.check_sample(Kept([], set()), "a", {Sent(b"one")}, {None})
    with NullBroker(1, check_every=0) as null:
        before = work.Before(null, ["t"])
        assert produce_error(null, good_batch(0)) == 0
        work.check(null, ["t"], TINY, "a", 2, before, set(), {None})


LZ4 = replace(TINY, compression="lz4", text=True, value_bytes=1000)
GZIP = {"attributes": 1, "compress": partial(gzip.compress, mtime=0)}


@pytest.mark.parametrize(
    ("name", "load", "record", "more", "complaint"),
    [
        ("send", TINY, {}, {}, None),
        ("send", TINY, {"key": keys_of()[0]}, {}, "was not sent"),
        ("send", TINY, {}, GZIP, "codecs"),
        ("send_keyed", TINY, {"key": keys_of()[0]}, {}, None),
        ("send_keyed", TINY, {}, {}, "was not sent"),
        ("send_keyed", TINY, {"key": keys_of()[1]}, {}, "was not sent"),
        ("confluent_headers", TINY, {"headers": HEADERS}, {}, None),
        ("confluent_headers", TINY, {}, {}, "was not sent"),
        ("confluent_headers", TINY, {"headers": HEADERS[:1]}, {}, "was not sent"),
        ("java", LZ4, {}, {}, "codecs"),
        ("java", LZ4, {}, GZIP, "codecs"),
        ("java", replace(LZ4, compression="gzip"), {}, GZIP, None),
    ],
)
def test_an_unexpected_batch_is_found(name, load, record, more, complaint):
    first = Record(NOW, record.get("key"), values_of(load)[0], record.get("headers", ()))
    batch = encode_batch([first], producer_id=7, producer_epoch=0, base_sequence=0, **more)
    kind = CONTESTANTS[name]
    with NullBroker(1) as null:
        before = work.Before(null, ["t"])
        assert produce_error(null, batch) == 0
        check = partial(work.check, null, ["t"], load, name, 1, before, kind.sends(load), kind.codecs(load, {}))
        if complaint is None:
            check()
        else:
            with pytest.raises(work.LostError, match=complaint):
                check()


def test_rows_of_spark_are_known():
    assert spark.row_of(7, 40) == Sent(b"8f14e45fceea167a5a36dedd4bea2543c9f0f895", b"7")


def test_closing_with_unread_responses_is_no_fault():
    """A client that closes with requests in flight has lost nothing. A malformed frame is the client's fault."""
    body = {"topics": [{"name": f"t{n}"} for n in range(500)], "allow_auto_topic_creation": True}
    with NullBroker(1000) as null:
        host, port = null.bootstrap.split(":")
        with socket.create_connection((host, int(port)), 10) as connection:
            connection.sendall(2 * encode_request(3, 4, 1, "test", body))
            assert connection.recv(1)
        wait_until(lambda: null.counters().unread, what="the answer without a reader")
        before = work.Before(null, ["t"])
        assert produce_error(null, good_batch(0)) == 0
        work.check(null, ["t"], TINY, "a", 2, before, {Sent(b"one"), Sent(b"two")}, {None})
        assert null.counters().faults == 0
        with socket.create_connection((host, int(port)), 10) as connection:
            connection.sendall(b"\0\0\0\1xxxx")
            assert connection.recv(1) == b""
        assert (null.counters().faults, null.counters().unread) == (1, 1)
        with pytest.raises(work.LostError, match="refused 1 batches or frames"):
            work.check(null, ["t"], TINY, "a", 2, before, {Sent(b"one"), Sent(b"two")}, {None})


def measured(null, name, job, load=TINY, settings=None):
    return work.measure(null, ["t"], load, name, job, settings or {})


@pytest.mark.parametrize(
    "name", ["send_headers", "send_topics", "send_delivery", "send_array", "send_array_offsets", "send_arrow",
             "confluent_keyed", "confluent_batch", "kafka_python", "aiokafka", "aiokafka_batch"],
)  # fmt: skip
def test_contestants_send_what_they_report(name):
    with NullBroker(3, check_every=1) as null, own_senders():
        figures = measured(null, name, "throughput", replace(TINY, processes=2 if name == "send_headers" else 1))
        assert figures["rate"] > 0
        assert figures["front_end_us"] > 0
        assert (figures["sender_us"] > 0) == name.startswith("send")
        assert null.counters().records >= figures["messages"]


def test_a_contestant_reports_its_settings():
    told = CONTESTANTS["confluent"].given(replace(TINY, compression="zstd", linger_ms=0), {"linger.ms": 7})
    assert (told["linger.ms"], told["compression.type"], told["acks"]) == (7, "zstd", "all")
    assert start.given(TINY, "send_kept", {"batch_size": 1})["batch_size"] == 1
    assert calls.given(TINY, "loop", {}) == {}
    assert spark.given(TINY, "spark_noop", {}) == {}
    assert spark.given(TINY, "spark_cyproducer", {"linger.ms": 0})["linger.ms"] == "0"


def without_java(monkeypatch, directory):
    monkeypatch.setenv("PATH", str(directory))
    monkeypatch.delenv("JAVA_HOME", raising=False)


def test_without_java_its_contestants_say_so(monkeypatch, tmp_path):
    with NullBroker(3) as null:
        without_java(monkeypatch, tmp_path)
        with pytest.raises(NotSupportedError, match="apt-get install openjdk"):
            measured(null, "java", "throughput")
        with pytest.raises(NotSupportedError, match="apt-get install openjdk"), spark.stage(null, TINY, {}):
            pass


def test_without_pyspark_its_contestants_say_so(monkeypatch):
    monkeypatch.setitem(sys.modules, "pyspark", None)
    with pytest.raises(NotSupportedError, match=r"pyspark is not installed: pip install '\.\[spark\]'"):
        spark_worker.needs()


@pytest.mark.long
def test_failed_download_of_jars_is_reported(monkeypatch, tmp_path):
    """The jars are neither in the cache nor downloadable: the proxy does not exist."""
    with NullBroker(3) as null:
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
        monkeypatch.setenv(
            "JAVA_TOOL_OPTIONS",
            "-Dhttp.proxyHost=127.0.0.1 -Dhttps.proxyHost=127.0.0.1 -Dhttp.proxyPort=1 -Dhttps.proxyPort=1",
        )
        with pytest.raises(NotSupportedError, match="could not be fetched"):
            measured(null, "java", "throughput")
        jars, absent = spark_worker.needs()
        assert jars == []
        assert "could not be fetched" in absent["kafka"]


PARENT = """
import json, subprocess, sys
made = [subprocess.Popen(["sleep", "600"], process_group=group) for group in (None, 0)]
print(json.dumps({"pids": [one.pid for one in made]}), flush=True)
sys.stdin.read(int(json.loads(sys.argv[1])["reads"]))
sys.exit(1)
"""


@pytest.mark.parametrize("reads", [1, 0], ids=["interrupted", "failed"])
def test_a_worker_ends_the_processes_that_it_started(monkeypatch, tmp_path, reads):
    """The worker always ends its process group. If it is still alive when asked, it also ends its other children."""
    (tmp_path / "bench_parent.py").write_text(PARENT)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH")])))
    pids = []
    with pytest.raises(RuntimeError), workers_of([{"reads": reads}], "bench_parent") as (worker,):
        pids += hear(worker, "the worker")["pids"]
        if not reads:
            worker.wait()
            kill9(pids.pop())
        raise RuntimeError
    wait_until(lambda: not any(map(is_running, (worker.pid, *pids))), what="the end of all of them")


def test_fast_contestant_repeats_until_it_can_be_measured():
    with NullBroker(3, check_every=1) as null, own_senders():
        figures = measured(null, "send", "throughput", replace(TINY, least_seconds=0.2))
        assert figures["seconds"] >= 0.2
        assert figures["messages"] > 2000
        assert figures["messages"] % 2000 == 0


@pytest.mark.long
def test_jobs_measure_what_they_report():
    with NullBroker(3, check_every=1) as null, own_senders():
        paced = measured(null, "send_keyed", "paced", replace(TINY, processes=2))
        assert paced["messages"] == 120
        assert 1 <= paced["connections"] <= SENDERS_MOST
        assert paced["requests_per_s"] > 0
        assert measured(null, "none", "paced")["requests_per_s"] == 0
        late = measured(null, "send", "latency")
        assert 0 < late["p50_us"] <= late["p99_us"] <= late["p999_us"]
        memory = measured(null, "confluent_keyed", "memory")
        assert memory["load_mb"] > 0
        assert memory["rest_threads"] >= 3  # the main thread of librdkafka, and one for each broker it knows
        assert start.measure(null, ["t"], TINY, "send_kept", {})["first_ms"] > 0
        still = idle.measure(null, ["t"], replace(TINY, idle=3), "send", {})
        assert still["attach_ms"] > 0
        times = recovery.measure(null, ["t"], TINY, "send", {})
        for what in ("forked", "fresh", "reclaim", "restart"):
            assert 0 < times[f"{what}_p50_ms"] <= times[f"{what}_p99_ms"], what
        with calls.stage(null, ["t"], TINY, {}) as take:
            assert take("send")["ns"] > take("loop")["ns"]
        with pytest.raises(NotSupportedError, match="no single records"):
            measured(null, "aiokafka", "paced")


def test_a_real_broker_is_asked_for_what_it_has(kafka):
    broker = KafkaBroker(kafka, [])
    with work.topics_on(broker, TINY) as topics, own_senders():
        figures = work.measure(broker, topics, TINY, "send", "throughput", {})
        assert (figures["messages"], broker.records(topics)) == (2000, 3000)
        kept = broker.sample(topics, broker.samples())
        assert kept.records
        assert {record.value for record in kept.records} <= set(values_of(TINY))
        with pytest.raises(work.LostError, match="the broker received 0"):
            work.check(broker, topics, TINY, "send", 1, work.Before(broker, topics), set(), set())
        with pytest.raises(work.LostError, match="was not sent"):
            work.check_sample(kept, "send_keyed", CONTESTANTS["send_keyed"].sends(TINY), {None})


@pytest.mark.long
@pytest.mark.parametrize("name", ["send_transactions", "confluent_transactions", "bare_transactions"])
def test_transactions_are_counted_without_their_ends(kafka, name):
    load = replace(TINY, transaction=100)
    broker = KafkaBroker(kafka, [])
    with work.topics_on(broker, load) as topics, own_senders():
        figures = work.measure(broker, topics, load, name, "throughput", {})
        assert (figures["messages"], broker.committed(topics)) == (2000, 3000)
        assert broker.records(topics) > 3000
    single = replace(load, transaction=1, rate=20, warmup=20)
    with work.topics_on(broker, single) as topics, own_senders():
        assert work.measure(broker, topics, single, name, "latency", {})["p50_us"] > 0
