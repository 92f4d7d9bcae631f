"""Tests the benchmark over TLS: brokers count handshakes, clients verify the broker, the cost of a call is measured."""

import json
import re
import socket
import ssl
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from devkafka.keys import Keys
from devkafka.node import HOST, KafkaCluster, free_ports
from devkafka.security import Security
from support.connections import SENDERS_MOST
from support.process import script_environment, wait_until

import bench
from bench import asked, native, tls_calls, work
from bench.brokers import Brokers, KafkaBroker, NullBroker
from bench.contestants import CONTESTANTS, NotSupportedError
from bench.growth import COMPARISONS
from bench.jmx import jmx_options
from bench.loads import Load
from bench.processes import own_senders

ROOT = Path(bench.__file__).parents[1]
TINY = Load(messages=2000, warmup=1000, least_seconds=0, rate=200, seconds=0.3, partitions=3, tls=True)
PROCESSES = SENDERS_MOST + 1


@pytest.fixture(scope="module")
def keys(tmp_path_factory) -> Keys:
    return Keys(tmp_path_factory.mktemp("bench-keys"))


def connect(null: NullBroker, **settings) -> ssl.SSLSocket:
    """Return a connection whose handshake is complete."""
    host, port = null.bootstrap.split(":")
    context = ssl.create_default_context(cafile=null.keys.ca)
    for name, value in settings.items():
        setattr(context, name, value)
    return context.wrap_socket(socket.create_connection((host, int(port)), 10), server_hostname=HOST)


def test_the_null_broker_uses_one_cipher_and_counts_handshakes(keys):
    with NullBroker(1, keys=keys) as null:
        for number in range(1, 4):
            with connect(null) as connection:
                assert connection.cipher()[:2] == ("TLS_AES_256_GCM_SHA384", "TLSv1.3")
                wait_until(lambda number=number: null.handshakes() == number, what="the count of the handshake")
        with pytest.raises(ssl.SSLError):
            connect(null, maximum_version=ssl.TLSVersion.TLSv1_2)
        host, port = null.bootstrap.split(":")
        with socket.create_connection((host, int(port)), 10) as plain:
            plain.sendall(b"\0\0\0\x0a0123456789")
            while plain.recv(100):
                pass
        assert (null.counters().connections, null.handshakes()) == (5, 3)
    with NullBroker(1) as null, socket.create_connection(null.bootstrap.split(":"), 10):
        wait_until(lambda: null.counters().connections, what="the connection")
        assert null.handshakes() == 0


@pytest.mark.parametrize("name", ["send", "send_array", "confluent", "confluent_batch"])
@pytest.mark.parametrize("value_bytes", [100, 100_000])
def test_contestants_send_over_tls(keys, name, value_bytes):
    load = replace(TINY, value_bytes=value_bytes, most_bytes=20_000_000)
    with NullBroker(3, check_every=1, keys=keys) as null, own_senders():
        figures = work.measure(null, ["t"], load, name, "throughput", {})
        assert figures["rate"] > 0
        assert figures["broker_cores"] > 0
        assert null.counters().records >= figures["messages"]
        assert null.handshakes() >= 1


def test_a_contestant_verifies_the_broker(keys):
    """A producer that trusts another authority cannot send, so a figure over TLS includes the verification."""
    with NullBroker(3, keys=keys) as null, own_senders():
        wrong = {"ssl_cafile": str(keys.other_ca), "max_block_ms": 2000}
        with pytest.raises(RuntimeError, match="send ended with status"):
            work.measure(null, ["t"], TINY, "send", "throughput", wrong)
        assert (null.handshakes(), null.counters().records) == (0, 0)
        assert null.counters().connections >= 1


def test_handshakes_are_counted_from_the_start_of_the_clients(keys):
    """A sender that is connected from the round before does not hide its handshake."""
    load = replace(TINY, processes=PROCESSES)
    with NullBroker(3, keys=keys) as null, own_senders():
        for _ in range(2):
            ours = work.measure(null, ["t"], load, "send", "paced", {})
            assert 1 <= ours["connections"] <= ours["handshakes"] <= SENDERS_MOST
        theirs = work.measure(null, ["t"], load, "confluent", "paced", {})
        assert theirs["connections"] >= PROCESSES
        assert theirs["handshakes"] >= theirs["connections"]


@pytest.mark.long
def test_a_real_broker_counts_handshakes(keys):
    """It does not count the connections of the benchmark itself, which use PLAINTEXT."""
    (port,) = free_ports(1)
    security = Security(keys, client_auth="none", host=HOST)
    with KafkaCluster(jvm_options=jmx_options(port), security=security) as cluster, own_senders():
        broker = KafkaBroker(cluster, [port])
        load = replace(TINY, processes=PROCESSES)
        with work.topics_on(broker, load) as topics:
            work.measure(broker, topics, load, "send", "throughput", {})
            assert 1 <= broker.handshakes() <= SENDERS_MOST


@pytest.mark.parametrize("way", ["plain_socket", "ssl_socket", "memory_bio", "ktls"])
def test_the_cost_of_a_call_is_measured(keys, way):
    with NullBroker(1, keys=keys) as null:
        load = replace(TINY, value_bytes=4096, least_seconds=0.01)
        try:
            figures = tls_calls.measure(null, ["t"], load, way, {})
        except NotSupportedError:
            assert way == "ktls", "only this one depends on the kernel"
        else:
            assert figures["ns_per_byte"] > 0


def test_rows_with_tls_use_it():
    names = [name for name in COMPARISONS if name.startswith("tls-")]
    assert [name for name in COMPARISONS if COMPARISONS[name].uses_tls] == names
    told = {name: CONTESTANTS[name].given(TINY, {}) for name in ("send", "confluent")}
    assert told["send"]["security_protocol"] == told["confluent"]["security.protocol"] == "SSL"
    assert not any(re.match("security.protocol", name) for name in CONTESTANTS["send"].given(Load(), {}))


def test_brokers_with_and_without_tls_are_kept_apart():
    with Brokers() as brokers:
        secured, plain = brokers.get("null", TINY), brokers.get("null", replace(TINY, tls=False))
        assert secured is not plain
        assert brokers.get("null", TINY) is secured
        directory = secured.keys.directory
        assert plain.keys is None
    assert not directory.exists()


def test_what_tls_needs_is_named(monkeypatch):
    monkeypatch.setattr(asked, "find_spec", lambda name: None)
    asked.look_for_keys(["send"])
    with pytest.raises(asked.RefusedError, match=r"trustme is missing: pip install -e \.\[bench\]"):
        asked.look_for_keys(["send", "tls-send"])
    monkeypatch.setattr(native, "TLS_FLAGS", ("-DWITH_TLS", "-nostdinc"))
    with pytest.raises(RuntimeError, match=r"null_broker\.c"):
        native.program("null_broker", tls=True)


@pytest.mark.long
def test_the_command_runs_a_comparison_over_tls(tmp_path):
    command = [sys.executable, "-m", "bench", "--results", tmp_path / "results"]
    run = subprocess.run(
        [*command, "run", "tls-send", "--quick", "--share", "0.02"],
        cwd=ROOT, env=script_environment({}), capture_output=True, text=True, timeout=250,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    made = json.loads((tmp_path / "results" / "tls-send.json").read_text())
    assert (made["failed"], made["skipped"]) == (None, {})
    assert made["given"]["send"]["security_protocol"] == "SSL"
    assert str(tmp_path) not in json.dumps(made["given"])
    assert {(s["contestant"], s["point"]) for s in made["samples"]} == {
        (name, size) for name in ("send", "confluent") for size in (100, 1000)
    }
    assert "### TLS: send() of 100 B and 1 kB, one process" in (tmp_path / "RESULTS.md").read_text()
