"""Tests `cyproducer sender`, `status` and `stop`, as used at a shell."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from support.process import cyproducer, kill_senders, wait_until

from cyproducer import __version__ as cyproducer_version
from cyproducer.config.settings import Settings
from cyproducer.producer.channel.attach import connect as attach
from cyproducer.producer.core.attachment import Attachment

NOWHERE = "127.0.0.1:9"


def connect(**given: object) -> Attachment:
    return attach(Settings.parse(**given), time.monotonic() + 30)


@pytest.fixture
def start(runtime_dir: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start a foreground sender and wait for its socket; end it with SIGTERM."""
    started = []

    def start(*arguments: object, socket: Path | None = None) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "cyproducer", "sender", *map(str, arguments)]
        if socket is not None:
            command += ["--socket", str(socket)]
        process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        started.append(process)
        running = sum(each.poll() is None for each in started)
        wait_until(
            lambda: (
                process.poll() is not None
                or (
                    (socket.exists() if socket is not None else list(runtime_dir.glob("*.sock")))
                    and len(list(runtime_dir.glob("*.json"))) >= running
                )
            ),
            what="the sender's socket and description",
        )
        assert process.poll() is None, process.stderr.read()
        return process

    yield start
    for process in started:
        process.terminate()
        process.communicate(timeout=30)


def test_help_and_version() -> None:
    for command in ("sender", "status", "stop", "txn"):
        shown = cyproducer(command, "--help")
        assert shown.returncode == 0
        assert f"usage: cyproducer {command}" in shown.stdout
    shown = cyproducer("--help")
    for command in ("send", "sender", "status", "stop", "txn"):
        assert f"\n    {command} " in shown.stdout
    assert cyproducer("--version").stdout.startswith("cyproducer 0.")
    assert cyproducer().returncode == 2
    assert cyproducer("dance").returncode == 2
    unknown = cyproducer("sender", "--bootstrap-servers", NOWHERE, "--compresion", "zstd")
    assert unknown.returncode == 2
    assert unknown.stderr.startswith("usage: cyproducer sender ")
    assert unknown.stderr.endswith("error: unrecognized arguments: --compresion zstd\n")


def test_status_and_stop_without_a_sender(runtime_dir: Path) -> None:
    assert cyproducer("status").stdout == "no sender of this user is running\n"
    assert json.loads(cyproducer("status", "--json").stdout) == []
    assert cyproducer("stop").stdout == "no sender of this user is running\n"
    for command in ("status", "stop"):
        failed = cyproducer(command, "--socket", runtime_dir / "none.sock")
        assert failed.returncode == 1
        assert (
            failed.stderr == f"cyproducer {command}: no sender at {runtime_dir}/none.sock (No such file or directory)\n"
        )


def test_status_of_a_started_sender() -> None:
    attachment = connect(bootstrap_servers=NOWHERE, client_id="shop", sender_idle_timeout_ms=200)
    try:
        (sender,) = json.loads(cyproducer("status", "--json").stdout)
        assert sender["sender_pid"] == attachment.sender_pid
        supervisor = psutil.Process(attachment.sender_pid).ppid()
        assert (sender["supervisor_pid"], sender["restarts"]) == (supervisor, 0)
        assert (sender["running"], sender["version"]) == (True, cyproducer_version)
        assert sender["bootstrap_servers"] == [NOWHERE]
        (front_end,) = sender["front_ends"]
        assert (front_end["pid"], front_end["uid"]) == (os.getpid(), os.geteuid())
        assert front_end["buffer_memory"] == 32 << 20
        assert 0 <= time.time() - sender["started_at"] < 60
        shown = cyproducer("status").stdout
        assert f"sender {attachment.sender_pid}, cyproducer {cyproducer_version}\n" in shown
        assert f"  socket     {sender['socket']}\n  log        {sender['log']}\n" in shown
        assert os.path.exists(sender["log"])
        assert f"supervisor {supervisor}, restarted 0 times" in shown
        assert "0.0/32.0 MiB" in shown
    finally:
        attachment.close()


def test_killed_sender_is_not_shown(runtime_dir: Path) -> None:
    attachment = connect(bootstrap_servers=NOWHERE)
    attachment.close()
    kill_senders(runtime_dir)
    assert cyproducer("status").stdout == "no sender of this user is running\n"
    for path in runtime_dir.iterdir():
        path.unlink()


def test_producers_find_a_foreground_sender_of_their_settings(
    start: Callable[..., subprocess.Popen[str]],
) -> None:
    process = start("--bootstrap-servers", NOWHERE, "--set", "sender_group=shop", "--set", "request.timeout.ms=20000")
    attachment = connect(bootstrap_servers=NOWHERE, sender_group="shop", request_timeout_ms=20000)
    assert psutil.Process(attachment.sender_pid).ppid() == process.pid
    attachment.close()
    second = cyproducer(
        "sender",
        "--bootstrap-servers",
        NOWHERE,
        "--set",
        "sender_group=shop",
        "--set",
        "request.timeout.ms=20000",
    )
    assert second.returncode == 1
    assert "another sender serves" in second.stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_drains_a_foreground_sender(
    start: Callable[..., subprocess.Popen[str]], runtime_dir: Path, number: int
) -> None:
    path = runtime_dir / "s.sock"
    process = start("--bootstrap-servers", NOWHERE, socket=path)
    attachment = connect(sender=str(path))
    process.send_signal(number)
    assert process.wait(20) == 0
    attachment.close()
    log = process.stderr.read()
    assert "msg=draining" in log
    assert all(line.startswith("ts=") for line in log.splitlines())
    assert list(runtime_dir.iterdir()) == []


@pytest.mark.parametrize("how", ["option", "environment"])
def test_a_log_of_json(
    start: Callable[..., subprocess.Popen[str]], runtime_dir: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """The option counts, if both are given."""
    monkeypatch.setenv("CYPRODUCER_LOG_FORMAT", "json" if how == "environment" else "logfmt")
    path = runtime_dir / "s.sock"
    options = ["--log-format", "json"] if how == "option" else []
    process = start("--bootstrap-servers", NOWHERE, *options, socket=path)
    process.terminate()
    assert process.wait(20) == 0
    lines = [json.loads(line) for line in process.stderr.read().splitlines()]
    assert {"listening", "draining", "ended"} <= {line["message"] for line in lines}
    (listening,) = [line for line in lines if line["message"] == "listening"]
    assert listening["fields"] == {"socket": str(path), "servers": [NOWHERE]}
    assert listening["level"] == "info"
    assert {line["pid"] for line in lines} > {process.pid}


def test_foreground_sender_stays_when_idle_unless_a_timeout_is_set(
    start: Callable[..., subprocess.Popen[str]], runtime_dir: Path
) -> None:
    staying, leaving = runtime_dir / "a.sock", runtime_dir / "b.sock"
    first = start("--bootstrap-servers", NOWHERE, socket=staying)
    second = start("--bootstrap-servers", NOWHERE, "--set", "sender_idle_timeout_ms=50", socket=leaving)
    connect(sender=str(staying), sender_idle_timeout_ms=0).close()
    assert second.wait(20) == 0
    assert first.poll() is None


def test_stop_needs_a_name_if_several_run(start: Callable[..., subprocess.Popen[str]], runtime_dir: Path) -> None:
    paths = [runtime_dir / "a.sock", runtime_dir / "b.sock"]
    processes = [start("--bootstrap-servers", NOWHERE, socket=path) for path in paths]
    refused = cyproducer("stop")
    assert refused.returncode == 2
    assert all(str(path) in refused.stderr for path in paths)
    assert cyproducer("stop", "--socket", paths[0]).stdout == f"stopped {paths[0]}\n"
    assert not paths[0].exists()
    assert cyproducer("stop").stdout == f"stopped {paths[1]}\n"
    assert [process.wait(20) for process in processes] == [0, 0]


def test_status_in_a_pipe_that_closes(start: Callable[..., subprocess.Popen[str]], runtime_dir: Path) -> None:
    start("--bootstrap-servers", NOWHERE, socket=runtime_dir / "s.sock")
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "cyproducer", "status", "--json"]
    ended = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True)
    os.close(writer)
    assert ended.stderr == ""


def test_config_file(start: Callable[..., subprocess.Popen[str]], runtime_dir: Path, tmp_path: Path) -> None:
    config = tmp_path / "sender.properties"
    config.write_text(f"# a comment\n\nbootstrap.servers = {NOWHERE}\nsender_group=from-file\n")
    config.chmod(0o600)
    start("--config", config, socket=runtime_dir / "s.sock")
    connect(sender=str(runtime_dir / "s.sock"), sender_group="from-file").close()


SECRET = "hunter2-of-the-test"


@pytest.mark.parametrize(
    ("mode", "text", "expected"),
    [
        (0o644, f"bootstrap.servers={NOWHERE}", "the mode is 0644, so other users may read the secrets in the file"),
        (0o640, f"bootstrap.servers={NOWHERE}", "0640"),
        (0o600, "no assignment " + SECRET, "line 1: write name=value"),
        (0o600, f"bootstrap.servers={NOWHERE}\nsecurity.protocol=SASL_SSL\nsasl.plain.password={SECRET}", "sasl"),
        (0o600, f"bootstrap.servers={NOWHERE}\nrequest.timeout.ms={SECRET}", "request.timeout.ms"),
        (0o600, f"bootstrap.servers={NOWHERE}\nlinger.ms=5", "linger_ms is a setting of the producer"),
        (0o600, "client_id=x", "bootstrap_servers is missing"),
        (0o600, f"bootstrap.servers={NOWHERE}\ncolour=red", "colour"),
    ],
)
def test_wrong_config_file(tmp_path: Path, mode: int, text: str, expected: str) -> None:
    config = tmp_path / "sender.properties"
    config.write_text(text)
    config.chmod(mode)
    failed = cyproducer("sender", "--config", config)
    assert failed.returncode == 2
    assert expected in failed.stderr
    assert len(failed.stderr.splitlines()) == 1
    assert "chmod" not in failed.stderr
    if "password" in text or "assignment" in text:
        assert SECRET not in failed.stderr


def test_secret_on_the_command_line_is_refused(tmp_path: Path) -> None:
    failed = cyproducer("sender", "--bootstrap-servers", NOWHERE, "--set", f"sasl_plain_password={SECRET}")
    assert failed.returncode == 2
    assert "--config FILE" in failed.stderr
    assert SECRET not in failed.stderr
    missing = cyproducer("sender", "--config", tmp_path / "none")
    assert missing.stderr == f"cyproducer sender: {tmp_path}/none: No such file or directory\n"


def test_wrong_identifier_is_wrong_usage() -> None:
    assert cyproducer("sender", "--allow-uid", "root").returncode == 2
    assert cyproducer("sender", "--allow-gid", "-1").returncode == 2
