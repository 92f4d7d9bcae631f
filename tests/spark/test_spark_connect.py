"""Tests cyproducer over Spark Connect, with a real server on two hosts. Its clients are processes of their own."""

import json
import shutil
import socket
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from connect_client import ARGUMENT, OPTION, REDACTION, VISIBLE
from support.process import kill_senders, run_script, wait_until
from support.spark_cluster import SparkCluster
from support.spark_connect import spark_connect_server
from support.spark_pages import pages_of

# A server or a client takes tens of seconds to start on a busy machine.
pytestmark = pytest.mark.timeout(400, func_only=True)

CLIENT = Path(__file__).with_name("connect_client.py")


@pytest.fixture(scope="module")
def second_host(short_tmp):
    """Yield the CYPRODUCER_RUNTIME_DIR of the second host."""
    path = Path(tempfile.mkdtemp(dir=short_tmp))
    yield path
    kill_senders(path)  # it stays until the time limit of the last transaction is over


@pytest.fixture(scope="module")
def cluster(nothing_left, spark_runtime, second_host, tmp_path_factory):
    with SparkCluster(tmp_path_factory.mktemp("cluster"), [spark_runtime, second_host]) as made:
        yield made


@pytest.fixture(scope="module")
def pages():
    """Return the address of the server's pages."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        return f"http://127.0.0.1:{free.getsockname()[1]}"


@pytest.fixture(scope="module")
def events(tmp_path_factory):
    """Return the directory of the server's event log."""
    return tmp_path_factory.mktemp("events")


@pytest.fixture(scope="module")
def server(cluster, spark_runtime, pages, events, tmp_path_factory):
    more = {
        "spark.ui.enabled": "true",
        "spark.ui.port": pages.rpartition(":")[2],
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": events.as_uri(),
        "spark.eventLog.compress": "false",
        # Shuffle files are fetched in many small pieces, and a lost one is soon noticed.
        "spark.reducer.maxSizeInFlight": "64k",
        "spark.shuffle.io.maxRetries": "1",
        "spark.shuffle.io.retryWait": "1s",
    }
    with spark_connect_server(tmp_path_factory.mktemp("connect"), spark_runtime, cluster.url, more) as address:
        yield address


@pytest.fixture
def client(server, kafka, topic, tmp_path, one_host):
    """Return ``client(action)``, which runs an action of connect_client.py and returns its result."""

    def run(action):
        out = run_script(CLIENT, action, server, kafka.bootstrap_servers, topic, tmp_path, timeout=250).stdout
        return json.loads(out.rpartition("RESULT ")[2])

    return run


def test_the_functions_and_the_sink(client, seen):
    assert client("write") == 200
    assert seen(300) == list(range(300))


@pytest.mark.long
def test_the_check(client):
    found = client("check")
    [warning] = [each for each in found if each["level"] != "ok"]
    assert "Spark Connect shows the options of a data source" in warning["text"]
    texts = {each["where"].split(" ")[0]: each["text"] for each in found if each["level"] == "ok"}
    assert "needs its argument `checkpoint`" in texts["exactly"]
    assert "over Spark Connect" in texts["session"]
    assert "is found" in texts["data"]
    assert "pyarrow" in texts["host"]


@pytest.mark.long
def test_a_stage_that_spark_repeats(client, cluster, seen, tmp_path):
    """A shuffle file is lost with its executor. Connect does not tell that to the driver."""

    def kill():
        wait_until((tmp_path / "reached").exists, 200, "the task to be held")
        other = {"127.0.0.1": "127.0.0.2", "127.0.0.2": "127.0.0.1"}[(tmp_path / "reached").read_text()]
        try:
            cluster.kill_executor(other)
        finally:
            (tmp_path / "released").touch()

    with ThreadPoolExecutor(1) as threads:
        killed = threads.submit(kill)
        assert client("repeat") == 200_000
        killed.result()
    assert "Spark has run stage" in (tmp_path / "log").read_text()
    assert seen(200_000) == list(range(200_000))


@pytest.mark.long
def test_what_spark_shows_of_secrets(client, pages, events):
    """Connect shows the options of a data source. It shows none of a function, and none with the documented setting."""
    assert REDACTION in Path(__file__).parents[2].joinpath("docs/guides/spark_secured.md").read_text()
    client("secrets")
    found = list(pages_of(pages).values()) + [path.read_text() for path in events.rglob("*") if path.is_file()]

    def shows(text):
        return any(text in each for each in found)

    assert shows(f"{VISIBLE}-False")
    assert shows(f"{VISIBLE}-True")
    # If this one fails, Connect redacts options, and the guide's advice can go.
    assert shows(f"{OPTION}-False")
    assert not shows(f"{OPTION}-True")
    assert not shows(ARGUMENT)


@pytest.mark.long
def test_a_stream_is_written_exactly_once(client, lines, seen, tmp_path):
    lines(0, 100)
    lines(100, 200)
    assert client("stream") is False
    for name in ("1", ".1.crc"):  # as if the server had died between its commit and that of Spark
        (tmp_path / "checkpoint" / "commits" / name).unlink()
    lines(200, 300)
    assert client("stream") is False
    assert seen(300) == list(range(300))
    shutil.rmtree(tmp_path / "checkpoint")
    assert "its checkpoint was deleted" in client("stream")


@pytest.mark.long
def test_a_stream_needs_the_checkpoint(client, lines, seen):
    lines(0, 10)
    assert "Over Spark Connect, give the query's checkpointLocation as `checkpoint`" in client(
        "stream-without-checkpoint"
    )
    assert seen(0) == []
