"""Tests web frameworks on real servers: FastAPI, Starlette, Flask and Django on uvicorn and gunicorn."""

import importlib.util
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from devkafka.node import KafkaCluster
from support.connections import ConnectionWatch, assert_shared
from support.consumer import ReadRecords
from support.process import kill9, run_script, senders, wait_until
from web_server import EXAMPLES, WebServer, gunicorn, uvicorn, web_server

REQUESTS = 100

if any(importlib.util.find_spec(name) is None for name in ("fastapi", "uvicorn", "flask", "django", "tornado")):
    raise pytest.UsageError("these tests need web frameworks: pip install 'cyproducer[usage]'")

COMMANDS = {
    "fastapi-uvicorn": uvicorn("fastapi_app:app", "--workers", 2),
    "fastapi-gunicorn-asgi": gunicorn("-w", 2, "-k", "asgi", application="fastapi_app:app"),
    "starlette-uvicorn": uvicorn("starlette_app:app", "--workers", 2),
    "flask-gunicorn-sync": gunicorn("-w", 2, application="flask_app:app"),
    "flask-gunicorn-gthread": gunicorn("-w", 2, "-k", "gthread", "--threads", 4, application="flask_app:app"),
    "flask-gunicorn-gevent": gunicorn("-w", 2, "-k", "gevent", application="flask_app:app"),
    "flask-gunicorn-gevent_pywsgi": gunicorn("-w", 2, "-k", "gevent_pywsgi", application="flask_app:app"),
    "flask-gunicorn-tornado": gunicorn("-w", 2, "-k", "tornado", application="flask_app:app"),
    "django-gunicorn-sync": gunicorn("-w", 2, application="django_app:application"),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_a_killed_worker_loses_nothing(
    name: str,
    kafka: KafkaCluster,
    topic: str,
    runtime_dir: Path,
    tmp_path: Path,
    arrived: Callable[..., ReadRecords],
    retired_senders: None,
) -> None:
    log = tmp_path / "log"
    with web_server(COMMANDS[name], kafka.bootstrap_servers, topic, log) as server:
        status, order = server.ask("/order", b"order")
        assert (status, order["offset"]) == (201, 0), order
        before = publish(server, "before")
        (sender,) = senders(runtime_dir)
        kill9(before[-1])
        wait_until(lambda: server.ask("/")[1]["pid"] not in before, 60, "another worker")
        after = publish(server, "after")
        assert set(after) != set(before)
        with ConnectionWatch(kafka.bootstrap_servers, runtime_dir) as watch:
            assert_shared(watch.now(), sender.pid)
        assert [process.pid for process in senders(runtime_dir)] == [sender.pid]
        if "uvicorn" in name:  # the one that answered may have been the second of the first two
            wait_until(lambda: log.read_text().count("Application startup complete.") == 3, 60, "a third worker")
        server.terminate()
    sent = [b"order", *(b"%s %d" % (when, i) for when in (b"before", b"after") for i in range(REQUESTS))]
    assert sorted(arrived(topic, len(sent)).value) == sorted(sent)
    text = log.read_text()
    assert "Traceback" not in text, text
    if "uvicorn" in name:
        # The lifespan has ended in both workers.
        assert text.count("Application shutdown complete.") == 2, text


def publish(server: WebServer, when: str) -> list[int]:
    """Publish REQUESTS records; return the processes that have answered."""
    answers = server.ask_many("/event", [f"{when} {i}".encode() for i in range(REQUESTS)])
    assert Counter(status for status, _ in answers) == {202: REQUESTS}, answers
    return [answer["pid"] for _, answer in answers]


def test_django_publishes_after_its_commit_only(
    kafka: KafkaCluster,
    topic: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arrived: Callable[..., ReadRecords],
    retired_senders: None,
) -> None:
    monkeypatch.setenv("DATABASE", str(tmp_path / "orders.sqlite3"))
    run_script(EXAMPLES / "django_app.py")
    command = gunicorn("-w", 2, application="django_app:application")
    with web_server(command, kafka.bootstrap_servers, topic, tmp_path / "log") as server:
        answers = server.ask_many("/buy", [b"%d" % (i % 20) for i in range(40)], clients=2)
        assert Counter(status for status, _ in answers) == {201: 20, 409: 20}, answers
        server.terminate()
    assert sorted(arrived(topic, 20).value) == sorted(b"%d" % i for i in range(20))
