"""Tests `cyproducer send` as users run it: lines in, records out, and a reliable exit status."""

import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from devkafka.node import KafkaCluster
from support.consumer import read_topic

Run = Callable[..., "subprocess.CompletedProcess[bytes]"]


def command(kafka: KafkaCluster, topic: str, *options: str) -> list[str]:
    """Run the command line; its sender ends soon after it."""
    return [
        sys.executable,
        "-m",
        "cyproducer",
        "send",
        topic,
        "--bootstrap-servers",
        kafka.bootstrap_servers,
        "--set",
        "sender.idle.timeout.ms=200",
        *options,
    ]


@pytest.fixture
def send(kafka: KafkaCluster, topic: str) -> Run:
    def run(lines: bytes, *options: str) -> "subprocess.CompletedProcess[bytes]":
        return subprocess.run(command(kafka, topic, *options), input=lines, capture_output=True, timeout=60)

    return run


@pytest.fixture
def started(kafka: KafkaCluster, topic: str) -> Iterator[Callable[..., "subprocess.Popen[bytes]"]]:
    processes = []

    def start(*options: str, **pipes: int) -> "subprocess.Popen[bytes]":
        pipes = {"stdin": subprocess.PIPE, "stderr": subprocess.PIPE, **pipes}
        processes.append(subprocess.Popen(command(kafka, topic, *options), **pipes))
        return processes[-1]

    yield start
    for process in processes:
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stderr):
            if pipe is not None:
                pipe.close()


def test_lines_become_records(send: Run, kafka: KafkaCluster, topic: str) -> None:
    lines = [b"%d %s" % (number, b"x" * (number % 200)) for number in range(100_000)]
    done = send(b"\n".join(lines) + b"\n", "--partition", "1")
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    read = read_topic(kafka.bootstrap_servers, topic, len(lines))
    assert read.values_of(1) == lines
    assert set(read.key) == {None}


def test_keys_headers_and_odd_lines(send: Run, kafka: KafkaCluster, topic: str) -> None:
    done = send(
        b"a::1\n\nno key\n::2\nb::\r\n\xff\x00::3::4",
        "--key-separator",
        "::",
        "--header",
        "h=1",
        "--header",
        "h=",
        "--partition",
        "0",
    )
    assert done.returncode == 0, done.stderr
    read = read_topic(kafka.bootstrap_servers, topic, 6)
    assert read.key == [b"a", None, None, b"", b"b", b"\xff\x00"]
    assert read.value == [b"1", b"", b"no key", b"2", b"\r", b"3::4"]
    assert all(headers == [("h", b"1"), ("h", b"")] for headers in read.headers)


def test_a_key_chooses_the_partition(send: Run, kafka: KafkaCluster, topic: str) -> None:
    assert send(b"".join(b"k%d:v\n" % (n % 10) for n in range(1000)), "--key-separator", ":").returncode == 0
    read = read_topic(kafka.bootstrap_servers, topic, 1000)
    places = set(zip(read.key, read.partition, strict=True))
    assert len(places) == 10
    assert len({partition for _, partition in places}) > 1


def test_no_line_is_no_record(send: Run) -> None:
    done = send(b"")
    assert (done.returncode, done.stderr) == (0, b"")


def test_lines_go_out_before_the_end(
    started: Callable[..., "subprocess.Popen[bytes]"], kafka: KafkaCluster, topic: str
) -> None:
    process = started()
    process.stdin.write(b"one\ntwo\n")
    process.stdin.flush()
    assert sorted(read_topic(kafka.bootstrap_servers, topic, 2).value) == [b"one", b"two"]
    process.stdin.close()
    assert process.wait(30) == 0


def test_a_line_that_is_too_long_fails_alone(send: Run, kafka: KafkaCluster, topic: str) -> None:
    done = send(b"before\n" + b"x" * 3_000_000 + b"\nafter\n" + b"y" * 1_048_570 + b"\nlast", "--partition", "2")
    assert done.returncode == 1
    assert b"3 of 5 lines were acknowledged" in done.stderr
    assert b"2 x RecordTooLargeError" in done.stderr
    assert b"line 2" in done.stderr
    assert read_topic(kafka.bootstrap_servers, topic, 3).value == [b"before", b"after", b"last"]


def test_interrupt_delivers_what_was_accepted(
    started: Callable[..., "subprocess.Popen[bytes]"], kafka: KafkaCluster, topic: str
) -> None:
    # Only the flush can end a linger time of this length.
    process = started("--set", "linger.ms=60000", "--partition", "0")
    process.stdin.write(b"".join(b"%d\n" % number for number in range(1000)))
    process.stdin.flush()
    deadline = time.monotonic() + 30
    while b"cyproducer-arena" not in mapped(process.pid):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    assert process.wait(30) == 130
    told = process.stderr.read()
    assert b"interrupted after 1000 lines" in told
    assert b"Traceback" not in told
    assert read_topic(kafka.bootstrap_servers, topic, 1000).value == [b"%d" % n for n in range(1000)]


def mapped(pid: int) -> bytes:
    """Return the memory mappings of the process."""
    return Path(f"/proc/{pid}/maps").read_bytes()


def test_unknown_topic(kafka: KafkaCluster) -> None:
    done = subprocess.run(
        command(kafka, "there-is-no-such-topic", "--set", "max.block.ms=10000"),
        input=b"line\n",
        capture_output=True,
        timeout=60,
    )
    assert done.returncode == 1
    assert b"there-is-no-such-topic" in done.stderr
    assert b"UNKNOWN_TOPIC_OR_PARTITION" in done.stderr
    assert b"Traceback" not in done.stderr


def test_partition_out_of_range(send: Run) -> None:
    done = send(b"line\n", "--partition", "99", "--set", "max_block_ms=4000")  # the start of a sender counts
    assert done.returncode == 1
    assert b"Partition 99 of topic" in done.stderr
    assert b"Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--set", "sasl_password=hush"], "--config"),
        (["--set", "linger.ms"], "NAME=VALUE"),
        (["--set", "linger.ms=soon"], "linger"),
        (["--set", "no.such=1"], "no.such"),
        (["--header", "novalue"], "novalue"),
        (["--key-separator", ""], "--key-separator"),
    ],
)
def test_wrong_options_are_named(send: Run, options: list[str], expected: str) -> None:
    done = send(b"", *options)
    assert done.returncode == 2
    assert expected in done.stderr.decode()
    assert "hush" not in done.stderr.decode()
    assert b"Traceback" not in done.stderr


def test_settings_from_a_file(send: Run, tmp_path: Path) -> None:
    config = tmp_path / "config"
    config.write_text("# a comment\nlinger.ms=1\n")
    config.chmod(0o600)
    assert send(b"line\n", "--config", str(config)).returncode == 0
    config.chmod(0o644)
    refused = send(b"line\n", "--config", str(config))
    assert refused.returncode == 2
    assert b"mode is 0644" in refused.stderr and b"with mode 0600" in refused.stderr


def test_progress_on_a_terminal(started: Callable[..., "subprocess.Popen[bytes]"]) -> None:
    ours, theirs = pty.openpty()
    try:
        process = started(stderr=theirs)
        process.stdin.write(b"line\n" * 1000)
        process.stdin.close()
        assert process.wait(30) == 0
        assert b"1000 lines, 0.0 MB, 1000 acknowledged" in os.read(ours, 65536)
    finally:
        os.close(ours)
        os.close(theirs)
