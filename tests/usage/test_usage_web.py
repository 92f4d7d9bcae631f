"""Tests web servers that fork after the import of the application: gunicorn, with gevent too, and uWSGI."""

import importlib.util
import os
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest
from devkafka.node import KafkaCluster
from support.connections import ConnectionWatch, assert_shared
from support.consumer import ReadRecords
from support.process import sender_processes, senders, wait_until
from web_server import WebServer, gunicorn, uwsgi, web_server

REQUESTS = 400
WORKERS = 4

if importlib.util.find_spec("gunicorn") is None or importlib.util.find_spec("gevent") is None:
    raise pytest.UsageError("these tests need gunicorn, gevent and uWSGI: pip install 'cyproducer[usage]'")


def test_nothing_is_attached_before_the_first_request(
    kafka: KafkaCluster, topic: str, runtime_dir: Path, tmp_path: Path
) -> None:
    with web_server(gunicorn("-w", 2), kafka.bootstrap_servers, topic, tmp_path / "log") as server:
        assert sender_processes(runtime_dir) == []
        assert list(runtime_dir.iterdir()) == []
        assert server.terminate() == 0


@pytest.mark.parametrize(
    "command",
    [
        gunicorn("-w", WORKERS, "--max-requests", 40, "--max-requests-jitter", 10),
        gunicorn("-w", WORKERS, "-k", "gevent", "--max-requests", 40, "--max-requests-jitter", 10),
        uwsgi(
            "--processes",
            WORKERS,
            "--max-requests",
            40,
            "--max-requests-delta",
            5,
            "--min-worker-lifetime",
            1,
        ),
    ],
    ids=["gunicorn", "gunicorn-gevent", "uwsgi"],
)
def test_every_request_arrives_over_one_sender_and_one_connection(
    command: list[str],
    kafka: KafkaCluster,
    topic: str,
    runtime_dir: Path,
    tmp_path: Path,
    arrived: Callable[..., ReadRecords],
    retired_senders: None,
) -> None:
    if command[0].endswith("uwsgi") and not os.path.exists(command[0]):
        pytest.fail(f"no {command[0]}: pip install 'cyproducer[usage]'")
    with web_server(command, kafka.bootstrap_servers, topic, tmp_path / "log") as server:
        _, who = server.ask("/")
        assert os.path.basename(who["executable"]).startswith("uwsgi" if "uwsgi" in command[0] else "python")
        status, order = server.ask("/order", b"order 0")
        assert (status, order["offset"]) == (201, 0), order
        with ConnectionWatch(kafka.bootstrap_servers, runtime_dir) as watch:
            events = server.ask_many("/event", [b"event %d" % i for i in range(REQUESTS)])
            orders = server.ask_many("/order", [b"order %d" % i for i in range(1, 40)])
            (sender,) = senders(runtime_dir)
            assert_shared(watch.now(), sender.pid)
        assert Counter(status for status, _ in events) == {202: REQUESTS}
        assert Counter(status for status, _ in orders) == {201: 39}
        pids = {answer["pid"] for _, answer in [*events, *orders]}
        wait_until(lambda: server.ask("/")[1]["pid"] not in pids, 20, "the recycling of a worker")
        assert watch.samples
        for sample in watch.samples:
            assert_shared(sample, sender.pid)
        assert not server.family() & {sender.pid, psutil.Process(sender.pid).ppid()}
        last = server.ask_many("/event", [b"last %d" % i for i in range(8)])
        assert Counter(status for status, _ in last) == {202: 8}
        assert server.terminate() == 0, server.log.read_text()
    records = arrived(topic, REQUESTS + 40 + 8)
    sent = [b"event %d" % i for i in range(REQUESTS)] + [b"order %d" % i for i in range(40)]
    assert sorted(records.value) == sorted(sent + [b"last %d" % i for i in range(8)])
    log = server.log.read_text()
    assert "Traceback" not in log, log


def test_a_stalled_broker_stalls_no_greenlet(
    kafka: KafkaCluster,
    topic: str,
    tmp_path: Path,
    arrived: Callable[..., ReadRecords],
    retired_senders: None,
) -> None:
    """First while a worker waits for metadata (none is known yet), then while requests wait for results."""
    command = gunicorn("-w", 1, "-k", "gevent")
    with (
        web_server(command, kafka.bootstrap_servers, topic, tmp_path / "log") as server,
        ThreadPoolExecutor(20) as pool,
    ):
        worker = server.ask("/")[1]["pid"]
        for wave in range(2):
            kafka.pause()
            orders = [pool.submit(server.ask, "/order", b"%d %d" % (wave, i)) for i in range(10)]
            assert_others_answer(server, worker, orders)
            kafka.resume()
            assert [order.result(60)[0] for order in orders] == [201] * 10
        assert server.terminate() == 0
    assert sorted(arrived(topic, 20).value) == sorted(b"%d %d" % (w, i) for w in range(2) for i in range(10))


def assert_others_answer(server: WebServer, worker: int, orders: list[Future[Any]]) -> None:
    """Check that the worker answers other requests for a second, and that none of the orders is done meanwhile."""
    wait_until(lambda: connections_of(server, worker) >= len(orders), 10, "the orders' arrival at the worker")
    end = time.monotonic() + 1
    while time.monotonic() < end:
        assert server.ask("/", timeout=5)[0] == 200
    assert not any(order.done() for order in orders)


def connections_of(server: WebServer, worker: int) -> int:
    """Return the connections that the worker has accepted."""
    found = psutil.Process(worker).net_connections("tcp")
    return sum(c.status == psutil.CONN_ESTABLISHED and c.laddr.port == server.port for c in found)
