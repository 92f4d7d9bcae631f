"""Tests cyproducer over Spark Connect, with a real server. Its clients are processes of their own."""

import json
import shutil
from pathlib import Path

import pytest
from support.process import run_script
from support.spark_connect import spark_connect_server

# A server or a client takes tens of seconds to start on a busy machine.
pytestmark = pytest.mark.timeout(400, func_only=True)

CLIENT = Path(__file__).with_name("connect_client.py")


@pytest.fixture(scope="module")
def server(nothing_left, spark_runtime, tmp_path_factory):
    with spark_connect_server(tmp_path_factory.mktemp("connect"), spark_runtime) as address:
        yield address


@pytest.fixture
def client(server, kafka, topic, tmp_path, one_host):
    """Return ``client(action)``, which runs an action of connect_client.py and returns its result."""

    def run(action):
        out = run_script(CLIENT, action, server, kafka.bootstrap_servers, topic, tmp_path, timeout=150).stdout
        return json.loads(out.rpartition("RESULT ")[2])

    return run


def test_the_functions_and_the_sink(client, seen):
    assert client("write") == 200
    assert seen(300) == list(range(300))


def test_the_check(client):
    found = {each["where"].split(" ")[0]: each for each in client("check")}
    assert {name for name, each in found.items() if each["level"] != "ok"} == {"exactly"}, found
    assert "a stage that Spark repeats is not noticed" in found["exactly"]["text"]
    assert "over Spark Connect" in found["session"]["text"]
    assert "is found" in found["data"]["text"]
    assert "pyarrow" in found["host"]["text"]


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


def test_a_stream_needs_the_checkpoint(client, lines, seen):
    lines(0, 10)
    assert "Over Spark Connect, give the query's checkpointLocation as `checkpoint`" in client(
        "stream-without-checkpoint"
    )
    assert seen(0) == []
