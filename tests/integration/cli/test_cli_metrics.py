"""Tests the metrics for Prometheus: over HTTP beside a sender, as a file, and at a shell."""

import subprocess
import sys
import urllib.error
import urllib.request

import pytest
from devkafka.node import free_ports
from prometheus_client.parser import text_string_to_metric_families
from support.process import cyproducer, wait_until

from cyproducer import metric_table
from cyproducer.errors import RecordTooLargeError
from cyproducer.observe.status import status
from cyproducer.version import VERSION

WITHOUT_LIBRARY = """
import sys
sys.modules["prometheus_client"] = None
from cyproducer.cli.main import main
sys.exit(main(["metrics"]))
"""


def samples(text):
    """Return {(name, labels without the socket): value} and the sockets."""
    found, sockets = {}, set()
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = dict(sample.labels)
            sockets.add(labels.pop("socket"))
            found[sample.name, tuple(sorted(labels.items()))] = sample.value
    return found, sockets


def check(text, socket, topic):
    found, sockets = samples(text)
    assert sockets == {str(socket)}
    assert found["kafka_producer_record_send_total", ()] == 11
    assert found["kafka_producer_topic_record_send_total", (("topic", topic),)] == 11
    assert found["kafka_producer_front_ends", ()] == 1
    (sender,) = status(str(socket))
    (front_end,) = sender["front_ends"]
    app = ("app", front_end["app"])
    assert found["cyproducer_front_ends", (app,)] == 1
    assert found["cyproducer_buffer_memory_bytes", (app,)] == front_end["buffer_memory"]
    assert found["cyproducer_oldest_record_age_seconds", (app,)] >= 0
    assert found["cyproducer_connections", (("state", "ready"),)] >= 1
    assert found["cyproducer_sender_restarts_total", ()] == 0
    assert found["cyproducer_sender_start_time_seconds", ()] == pytest.approx(sender["started_at"])
    assert found["cyproducer_sender_info", (("cluster_id", sender["cluster_id"]), ("version", VERSION))] == 1
    failed = (app, ("cause", "MESSAGE_TOO_LARGE"), ("topic", topic))
    assert found["cyproducer_failed_records_total", failed] == 1
    in_status = sender["metrics"]["producer-node-metrics.node-1"]["request-total"]
    assert 0 < found["kafka_producer_node_request_total", (("node_id", "node-1"),)] <= in_status
    # everything but what has no value
    names = {name for name, _ in found}
    absent = {m.name for m in metric_table.PRODUCER if f"kafka_producer_{m.name.replace('-', '_')}" not in names}
    assert absent == {"reauthentication-latency-avg", "reauthentication-latency-max"}


@pytest.fixture
def sender(kafka, runtime_dir):
    """Start `cyproducer sender --metrics-port`. Yield (its socket, the port)."""
    (port,) = free_ports(1)
    socket = runtime_dir / "s"
    command = [sys.executable, "-m", "cyproducer", "sender", "--bootstrap-servers", kafka.bootstrap_servers]
    process = subprocess.Popen([*command, "--socket", str(socket), "--metrics-port", str(port)])
    try:
        wait_until(socket.exists, 60, "the sender's socket")
        yield socket, port
    finally:
        process.terminate()
        assert process.wait(60) == 0


def scrape(port):
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
            return answer.read().decode()
    except urllib.error.URLError:
        return None


def test_each_way_has_the_same_numbers(sender, make_producer, new_topic, tmp_path):
    socket, port = sender
    topic = new_topic(1, configs={"max.message.bytes": "1000"})
    producer = make_producer(sender=str(socket))
    for future in [producer.send(topic, b"value") for _ in range(10)]:
        future.result(60)
    with pytest.raises(RecordTooLargeError):
        producer.send(topic, bytes(5000)).result(60)
    check(wait_until(lambda: scrape(port), 60, "an answer"), socket, topic)
    shown = cyproducer("metrics", "--socket", socket)
    assert shown.returncode == 0, shown.stderr
    check(shown.stdout, socket, topic)
    file = tmp_path / "cyproducer.prom"
    written = cyproducer("metrics", "--output", file)
    assert (written.returncode, written.stdout, written.stderr) == (0, "", "")
    check(file.read_text(), socket, topic)


def test_a_sender_that_is_missing(tmp_path):
    shown = cyproducer("metrics", "--socket", tmp_path / "missing")
    assert shown.returncode == 1
    assert "no sender at" in shown.stderr


def test_a_scrape_while_the_named_sender_is_missing(tmp_path):
    """Prometheus sees that the scrape fails, and why. The log has no traceback."""
    (port,) = free_ports(1)
    command = [
        sys.executable,
        "-m",
        "cyproducer",
        "metrics",
        "--socket",
        str(tmp_path / "missing"),
        "--port",
        str(port),
    ]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as exporter:
        assert f"http://127.0.0.1:{port}/metrics" in exporter.stderr.readline()
        with pytest.raises(urllib.error.HTTPError) as failed:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30)
        with failed.value as answer:
            assert answer.code == 503
            assert answer.read().decode() == f"no sender at {tmp_path}/missing (No such file or directory)\n"
        exporter.terminate()
        assert exporter.stderr.read() == ""


def test_without_the_library(runtime_dir):
    shown = subprocess.run([sys.executable, "-c", WITHOUT_LIBRARY], capture_output=True, text=True, timeout=60)
    assert shown.returncode == 2
    assert "pip install 'cyproducer[prometheus]'" in shown.stderr


def test_a_wrong_port():
    shown = cyproducer("metrics", "--port", "70000")
    assert shown.returncode == 2
    assert "'70000' is not a port from 1 to 65535" in shown.stderr
