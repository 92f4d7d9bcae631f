"""Tests `cyproducer health`, and what `cyproducer metrics --port` serves beside the metrics; the page in Chromium."""

import json
import re
import shutil
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from devkafka.node import KafkaCluster, free_ports
from support.process import cyproducer, wait_until
from support.supervised import Foreground

NOWHERE = "127.0.0.1:9"


@pytest.fixture
def url(runtime_dir: Path) -> Iterator[str]:
    """Start `cyproducer metrics --port` on a free port. Yield the URL of its page."""
    (port,) = free_ports(1)
    command = [sys.executable, "-m", "cyproducer", "metrics", "--port", str(port), "--until-end-of-input"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stderr is not None
        said = process.stderr.readline()
        found = re.search(r"(http://127\.0\.0\.1:\d+/) \(only from this host\)", said)
        assert found, said
        yield found[1]
        process.stdin.close()
        assert process.wait(30) == 0


def get(url: str, method: str = "GET") -> tuple[int, str, str]:
    """Return (status, content type, text)."""
    try:
        with urllib.request.urlopen(urllib.request.Request(url, method=method), timeout=30) as answer:
            return answer.status, answer.headers["Content-Type"], answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.headers["Content-Type"], error.read().decode()


def test_no_sender(url: str) -> None:
    assert get(url + "health") == (200, "application/json", "[]")
    assert get(url + "status.json") == (200, "application/json", "[]")
    assert get(url + "metrics")[0] == 200
    assert get(url + "other")[0] == 404
    assert get(url, "POST")[0] == 405
    assert get(url, "HEAD") == (200, "text/html; charset=utf-8", "")
    shown = cyproducer("health")
    assert (shown.returncode, shown.stdout) == (0, "no sender of this user is running\n")


def test_a_sender_that_works(url: str, make_producer: Callable[..., Any], topic: str) -> None:
    make_producer().send(topic, b"value").result(30)
    (shown,) = json.loads(cyproducer("health", "--json").stdout)
    assert (shown["ok"], shown["state"], shown["front_ends"], shown["last_error"]) == (True, "running", 1, "")
    code, _, text = get(url + "health")
    assert code == 200
    assert json.loads(text)[0]["socket"] == shown["socket"]
    (sender,) = json.loads(get(url + "status.json")[2])
    assert sender["metrics"]["producer-metrics"]["record-send-total"] == 1
    line = cyproducer("health", "--socket", shown["socket"])
    assert line.returncode == 0
    assert line.stdout.startswith(f"running: {shown['socket']}, processes: 1, batches to deliver: 0, ")


def test_a_sender_without_a_broker(url: str, make_producer: Callable[..., Any], runtime_dir: Path) -> None:
    sender = Foreground(runtime_dir / "s", NOWHERE, runtime_dir / "s.log").ready()
    with pytest.raises(Exception, match="t"):
        make_producer(sender=str(sender.socket), max_block_ms=500).send("t", b"value")
    shown = wait_until(lambda: (found := cyproducer("health")).returncode and found, 30, "the sender is disconnected")
    assert shown.stdout.startswith(f"disconnected: {sender.socket}")
    assert NOWHERE in shown.stdout
    assert get(url + "health")[0] == 503
    sender.end()


def test_a_sender_that_does_not_answer_and_one_that_is_missing(short_tmp: Path) -> None:
    missing = cyproducer("health", "--socket", short_tmp / "missing")
    assert missing.returncode == 1
    assert "no sender at" in missing.stderr
    path = short_tmp / "s"
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(path))
        listener.listen()
        shown = cyproducer("health", "--socket", path, "--timeout", "0.2")
    path.unlink()
    assert shown.returncode == 1
    assert shown.stdout.startswith(f"silent: {path}; ")


def test_the_page(url: str, make_producer: Callable[..., Any], kafka: KafkaCluster, topic: str, tmp_path: Path) -> None:
    """Chromium runs the page for some seconds while records are sent, on the screen of a phone and on a wide one."""
    program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    assert program, "Chromium is missing (Debian: apt-get install chromium)"
    producer = make_producer()
    for width in (360, 1280):
        # The time of the page passes as fast as it can, but not while the page waits for an answer.
        command = [program, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--dump-dom"]
        command += [f"--user-data-dir={tmp_path / str(width)}", f"--window-size={width},800"]
        with subprocess.Popen(
            [*command, "--virtual-time-budget=9000", url], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        ) as browser:
            while browser.poll() is None:
                producer.send(topic, b"value").result(30)
            assert browser.stdout is not None
            text = browser.stdout.read()
        assert '<span id="state" role="status" class="good">running</span>' in text, text[-3000:]
        assert re.search(rf'<td class="left">{topic}</td><td>[\d.,]+</td>', text), text[-3000:]
        assert kafka.bootstrap_servers.split(",")[0] in text
        assert re.search(r'<path id="curve" d="M[\d.]+,[\d.]+L', text)
