"""Tests examples/demo.py as a user runs it."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from devkafka.node import KafkaCluster
from support.consumer import ReadRecords
from support.process import run_script

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "demo.py"
Run = Callable[..., str]
Arrived = Callable[..., ReadRecords]


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    root = tmp_path / "texts"
    (root / "below").mkdir(parents=True)
    (root / "one.txt").write_bytes(b"first\nsecond\r\nno end")
    (root / "below" / os.fsdecode(b"\xff.py")).write_bytes(b"x = 1\n")
    (root / "empty").touch()
    (root / "binary").write_bytes(b"\x7fELF\0")
    return root


def test_the_demo(kafka: KafkaCluster, run_example: Run, arrived: Arrived, texts: Path, topic: str) -> None:
    for name in ("lines", "files", "texts", "directories"):
        kafka.create_topic(f"{topic}.{name}", 3)
    printed = run_example("demo.py", "--input", texts, "--topic", topic, "--set", "linger.ms=1")
    assert "sending 3 files" in printed
    assert "attached processes: 0" not in printed
    lines = arrived(f"{topic}.lines", 4)
    assert sorted(lines.value) == [b"first\n", b"no end", b"second\r\n", b"x = 1\n"]
    assert set(lines.key) == {b"one.txt", b"below/\xff.py"}
    assert sorted(map(len, arrived(f"{topic}.files", 3).value)) == [20, 20, 20]
    assert set(arrived(f"{topic}.texts", 3).key) == {b".", b"below"}
    # Without the record of the transaction that was aborted.
    assert set(arrived(f"{topic}.directories", 2).key) == {b".", b"below"}


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["127.0.0.1:9", "--topic", "no topic"], "InvalidTopicError: "),
        (["127.0.0.1:9", "--set", "no.such=1"], "KafkaConfigurationError: "),
        (["127.0.0.1:9", "--set", "linger.ms"], "KafkaConfigurationError: "),
        (["127.0.0.1:9", "--input", "/nonexistent"], "there is no text file below /nonexistent"),
    ],
)
def test_the_demo_says_in_one_line_why_it_failed(
    retired_senders: None, texts: Path, arguments: list[str], reason: str
) -> None:
    done = run_script(EXAMPLE, *arguments, *([] if "--input" in arguments else ["--input", texts]), check=False)
    assert done.returncode == 1
    assert done.stderr.startswith(f"demo.py: {reason}")
    assert len(done.stderr.splitlines()) == 1
