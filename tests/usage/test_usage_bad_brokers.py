"""Tests brokers that are missing, not Kafka, hanging, stalling or restarting, and wrong senders and directories."""

import contextlib
import http.server
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from devkafka.node import KafkaCluster, free_ports
from numbered import numbers_by_key
from support.consumer import ReadRecords
from support.process import run_script, script_environment, sender_processes, wait_until

from cyproducer import errors

SECRET = "pa55-of-the-broker"


@contextlib.contextmanager
def http_server() -> Iterator[int]:
    """Yield the port of a web server."""

    class Quiet(http.server.BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Quiet) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


@contextlib.contextmanager
def silent_server() -> Iterator[int]:
    """Yield the port of a socket that listens and accepts no connection."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


@contextlib.contextmanager
def no_listener() -> Iterator[int]:
    """Yield a port without a listener."""
    yield free_ports(1)[0]


@pytest.mark.parametrize(
    ("broker", "words"),
    [(no_listener, ["refused"]), (http_server, ["Kafka"]), (silent_server, ["request_timeout_ms"])],
    ids=["no listener", "http", "silent"],
)
def test_no_broker_at_the_address(
    broker: Callable[[], contextlib.AbstractContextManager[int]],
    words: list[str],
    make_producer: Callable[..., Any],
) -> None:
    with broker() as port:
        address = f"127.0.0.1:{port}"
        producer = make_producer(bootstrap_servers=address, max_block_ms=1500, request_timeout_ms=300)
        started = time.monotonic()
        with pytest.raises(errors.KafkaTimeoutError) as caught:
            producer.send("some-topic", b"value")
        assert time.monotonic() - started < 10
        for word in ["some-topic", "1500 ms", address, *words]:
            assert word in str(caught.value)
        assert not producer.bootstrap_connected()
        producer.flush(5)
        producer.close()


def test_a_full_buffer_while_the_broker_stalls(
    kafka: KafkaCluster, make_producer: Callable[..., Any], topic: str, arrived: Callable[..., ReadRecords]
) -> None:
    producer = make_producer(buffer_memory=1 << 20, max_block_ms=1500)
    producer.send(topic, b"first").result(30)
    kafka.pause()
    futures = []
    with pytest.raises(errors.BufferExhaustedError) as caught:
        for _ in range(1000):
            started = time.monotonic()
            futures.append(producer.send(topic, bytes(10_000)))
    assert time.monotonic() - started >= 1.5
    for word in ["buffer_memory=1048576", "max_block_ms=1500"]:
        assert word in str(caught.value)
    assert 50 < len(futures) < 110
    kafka.resume()
    for future in futures:
        future.result(30)
    producer.send(topic, b"last").result(30)
    arrived(topic, len(futures) + 2)


@pytest.mark.parametrize("ending", ["restart", "kill"])
def test_a_broker_that_restarts_in_mid_stream(
    ending: str,
    kafka: KafkaCluster,
    make_producer: Callable[..., Any],
    topic: str,
    arrived: Callable[..., ReadRecords],
) -> None:
    producer = make_producer()
    producer.send(topic, key=b"0", value=b"0").result(30)
    restarted = threading.Event()
    futures = []

    def stream() -> None:
        number = 1
        while not restarted.is_set() or number % 50:
            futures.append(producer.send(topic, key=b"%d" % (number % 5), value=b"%d" % number))
            number += 1
            time.sleep(0.001)

    sender = threading.Thread(target=stream)
    sender.start()
    time.sleep(0.2)
    if ending == "kill":
        kafka.kill()
    kafka.restart()  # in this thread: the node ends with the thread that starts it
    restarted.set()
    sender.join()
    for future in futures:
        future.result(60)
    assert len(futures) > 1000
    total = len(futures) + 1
    found = numbers_by_key(arrived(topic, total, 60))
    assert found == {b"%d" % i: list(range(i, total, 5)) for i in range(5)}


def test_an_explicit_sender_with_other_settings_is_refused(
    kafka: KafkaCluster,
    make_producer: Callable[..., Any],
    topic: str,
    runtime_dir: Path,
    arrived: Callable[..., ReadRecords],
) -> None:
    path = runtime_dir / "named.sock"
    command = [sys.executable, "-m", "cyproducer", "sender", "--socket", str(path)]
    command += ["--bootstrap-servers", kafka.bootstrap_servers]
    with subprocess.Popen(command, env=script_environment(), stderr=subprocess.PIPE, text=True) as process:
        try:
            wait_until(path.exists, 20, "the named sender's socket")
            other = make_producer(sender=str(path), request_timeout_ms=1234)
            with pytest.raises(errors.KafkaConfigurationError) as caught:
                other.send(topic, b"never")
            for word in [str(path), "request_timeout_ms", "1234", "30000"]:
                assert word in str(caught.value)
            same = make_producer(sender=str(path), request_timeout_ms=30_000)
            same.send(topic, b"value").result(30)
            same.close()
            assert [p.pid for p in sender_processes(runtime_dir)] == []
        finally:
            process.send_signal(signal.SIGTERM)
            _, log = process.communicate(timeout=30)
        assert process.returncode == 0, log
    arrived(topic, 1)


def test_no_sender_at_the_given_socket(make_producer: Callable[..., Any], runtime_dir: Path) -> None:
    path = runtime_dir / "missing.sock"
    producer = make_producer(sender=str(path), max_block_ms=300)
    with pytest.raises(errors.SenderUnavailableError) as caught:
        producer.send("topic", b"value")
    for word in [str(path), "cyproducer sender --socket"]:
        assert word in str(caught.value)
    assert sender_processes(runtime_dir) == []


@pytest.mark.parametrize(
    "settings",
    [
        "sasl_plain_password=SECRET, sasl_mechanism='PLAIN'",
        "ssl_keyfile_password=SECRET",
        "bootstrap_servers='user:' + SECRET + '@localhost:9092'",
        "client_idd=SECRET",
        "linger_ms='password=' + SECRET",
        "sasl_jaas_config='password=' + SECRET, acks=7",
        "**{'sasl.plain.password': SECRET, 'linger.ms': SECRET}",
    ],
)
def test_a_secret_in_a_wrong_setting_is_never_printed(settings: str, runtime_dir: Path) -> None:
    run = run_script(
        f"""
        import os
        from cyproducer import KafkaProducer
        SECRET = os.environ["BROKER_PASSWORD"]
        KafkaProducer({settings})
        """,
        env={"BROKER_PASSWORD": SECRET},
        check=False,
    )
    assert run.returncode == 1
    assert "KafkaConfigurationError" in run.stderr
    assert SECRET not in run.stdout + run.stderr


WRONG_DIRECTORIES: dict[str, tuple[Callable[[Path], object], str]] = {
    "a file": (lambda path: path.write_text(""), "not a directory"),
    "open to others": (lambda path: (path.mkdir(), path.chmod(0o755)), "Use a separate directory"),
    "a symbolic link": (lambda path: path.symlink_to(path.parent), "symbolic link"),
    "below a file": (lambda path: path.parent.rmdir() or path.parent.write_text(""), "Not a directory"),
}


@pytest.mark.parametrize("name", WRONG_DIRECTORIES)
def test_a_runtime_directory_that_cannot_be_used(
    name: str, short_tmp: Path, monkeypatch: pytest.MonkeyPatch, make_producer: Callable[..., Any]
) -> None:
    make, words = WRONG_DIRECTORIES[name]
    path = Path(tempfile.mkdtemp(dir=short_tmp)) / "run"
    make(path)
    monkeypatch.setenv("CYPRODUCER_RUNTIME_DIR", str(path))
    producer = make_producer(bootstrap_servers="127.0.0.1:9")
    with pytest.raises(errors.KafkaConfigurationError) as caught:
        producer.send("topic", b"value")
    for word in ["CYPRODUCER_RUNTIME_DIR", str(path), words]:
        assert word in str(caught.value)


def test_a_runtime_directory_of_another_user() -> None:
    """Also if no directory is writable: the default directories are tried, and the error names them."""
    run = run_script(
        """
        import os, sys
        from unittest import mock
        from cyproducer import KafkaProducer, errors
        producer = KafkaProducer(bootstrap_servers="127.0.0.1:9")
        with mock.patch("os.mkdir", side_effect=PermissionError(13, "Permission denied")):
            try:
                producer.send("topic", b"value")
            except errors.KafkaConfigurationError as error:
                print(error)
        """,
        env={"CYPRODUCER_RUNTIME_DIR": None},
    )
    for word in ["Permission denied", "/tmp/cyproducer-", "/run/user/", "/dev/shm", "CYPRODUCER_RUNTIME_DIR"]:
        assert word in run.stdout
