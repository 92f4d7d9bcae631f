"""Tests the demo as users run it, and that its check finds differences."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from confluent_kafka.admin import AdminClient
from demo import broker as demo_broker
from demo.check import Expected, TopicCheck, records_of_example, records_of_spark
from demo.input import InputError, copy_input
from devkafka.node import KafkaCluster
from support.confined import without
from support.process import script_environment, wait_until


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Make a small tree with names and contents that are easy to get wrong."""
    root = tmp_path / "a tree [x]"
    (root / "_private").mkdir(parents=True)
    (root / "__init__.py").write_bytes(b"")
    (root / "_private" / "__init__.py").write_bytes(b"import os\n")
    (root / "_private" / "b c.py").write_bytes(b"x = 1\r\n\r\ny = x\n")
    (root / os.fsdecode(b"\xff\xe9%2F.py")).write_bytes(b"no end of line")
    (root / "latin.py").write_bytes("# é ü\nname = 'ß'\n".encode("latin-1") * 3000)
    (root / "big.txt").write_bytes(b"word " * 20_000 + b"\n" + b"line\n" * 20_000)
    (root / "binary").write_bytes(b"\x7fELF\0\0")
    (root / "future.py").write_bytes(b"later\n" * 10)
    ahead = time.time() + 10 * 24 * 3600
    os.utime(root / "future.py", (ahead, ahead))
    os.utime(root / "latin.py", (1, 1))
    (root / "link.py").symlink_to("latin.py")
    return root


@pytest.fixture
def scratch(short_tmp: Path) -> Iterator[Path]:
    """Yield the TMPDIR of a demo, to see which files it leaves there."""
    path = short_tmp / "demo"
    path.mkdir()
    yield path
    shutil.rmtree(path)


def demo(scratch: Path, *options: str, timeout: float = 100, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the demo, as root without the right to look into every process."""
    return subprocess.run(
        [*without("sys_ptrace"), sys.executable, "-m", "demo", *options],
        capture_output=True,
        text=True,
        timeout=timeout,
        env=script_environment({"TMPDIR": str(scratch), **environment}),
    )


def row_of(output: str, name: str) -> list[str]:
    """Return the cells of a line of the table."""
    return next(line for line in output.splitlines() if line.strip().startswith(name)).split()


def assert_all_arrived(done: subprocess.CompletedProcess[str]) -> None:
    assert done.returncode == 0, done.stdout + done.stderr
    assert row_of(done.stdout, "senders ")[-1] == "1"


def assert_arrived(output: str, topic: str, records: int) -> None:
    """Check a row of the table: the number of records, and that there is no difference."""
    row = row_of(output, f"{topic} ")
    assert (row[1], row[-1]) == (f"{records:,}", "0")


def topics_of(kafka: KafkaCluster) -> set[str]:
    return set(AdminClient({"bootstrap.servers": kafka.bootstrap_servers}).list_topics(timeout=30).topics)


@pytest.mark.timeout(200)
def test_the_example_is_read_back(kafka: KafkaCluster, tree: Path, scratch: Path) -> None:
    done = demo(scratch, "--bootstrap-servers", kafka.bootstrap_servers, "--no-spark", "--input", str(tree))
    assert_all_arrived(done)
    assert "attached processes: " in done.stdout
    for topic, records in {"lines": 26_016, "files": 7, "texts": 7, "directories": 2}.items():
        assert_arrived(done.stdout, topic, records)
    assert "1 files (not a text file)" in done.stdout
    assert [name for name in topics_of(kafka) if name.startswith("cyproducer-demo")] == []
    assert list(scratch.iterdir()) == []


@pytest.mark.long
@pytest.mark.timeout(400)
def test_with_spark(kafka: KafkaCluster, tree: Path, scratch: Path) -> None:
    done = demo(scratch, "--bootstrap-servers", kafka.bootstrap_servers, "--input", str(tree), timeout=300)
    assert_all_arrived(done)
    assert_arrived(done.stdout, "identifiers", 11)
    assert_arrived(done.stdout, "stream", 26_016)
    assert list(scratch.iterdir()) == []


@pytest.mark.timeout(200)
def test_without_java(tree: Path, scratch: Path) -> None:
    done = demo(scratch, "--input", str(tree), PATH=str(tree), JAVA_HOME="")
    assert_all_arrived(done)
    assert "mock cluster" in done.stdout
    assert "openjdk" in done.stdout
    assert "The Spark part is skipped" in done.stdout
    assert_arrived(done.stdout, "lines", 26_016)


def _workers_of(pid: int) -> list[psutil.Process]:
    """Return the processes below the demo once its workers are among them, else none."""
    found: list[psutil.Process] = psutil.Process(pid).children(recursive=True)
    return found if len(found) >= 5 else []


@pytest.mark.timeout(200)
def test_interrupt_stops_all_that_was_started(scratch: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "demo"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=script_environment({"TMPDIR": str(scratch)}),
        start_new_session=True,
    )
    try:
        for line in process.stdout:
            if line.startswith("sending"):
                break
        # Not after a pause: the workers send everything within a second.
        started = wait_until(lambda: _workers_of(process.pid), 30, "the start of the workers")
        # The signal goes to the whole process group, as a terminal sends it.
        os.killpg(process.pid, signal.SIGINT)
        rest = process.stdout.read()
        assert process.wait(60) == 130, rest
    finally:
        process.stdout.close()
        process.kill()
        process.wait()
    assert "Traceback" not in rest
    assert "stopped" in rest
    assert psutil.wait_procs(started, timeout=10)[1] == []
    assert list(scratch.iterdir()) == []


def test_a_taken_port_is_named(scratch: Path, tree: Path) -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = str(holder.getsockname()[1])
        done = demo(scratch, "--no-spark", "--input", str(tree), "--port", port)
    assert done.returncode == 1
    assert f"port {port}" in done.stderr
    assert "--port" in done.stderr
    assert "--bootstrap-servers" in done.stderr


def test_no_broker_at_the_address_of_the_demo(scratch: Path, tree: Path) -> None:
    done = demo(scratch, "--no-spark", "--input", str(tree), "--bootstrap-servers", "127.0.0.1:9,[::1]:9")
    assert done.returncode == 1
    assert "no broker can be reached at 127.0.0.1:9,[::1]:9 (127.0.0.1:9: Connection refused; ::1:9: " in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("servers", ["127.0.0.1:99999", "x" * 64 + ".example:9", "[::1", ","])
def test_an_address_that_cannot_be_one(servers: str) -> None:
    with pytest.raises(demo_broker.BrokerError, match="no broker can be reached at "):
        with demo_broker.open_broker(servers, None, print):
            pass


def test_no_kafka_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo_broker, "_ADMIN_TIMEOUT_S", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as other:
        servers = f"127.0.0.1:9,127.0.0.1:{other.getsockname()[1]}"
        with demo_broker.open_broker(servers, None, print) as broker:
            with pytest.raises(demo_broker.BrokerError, match=f"{servers} does not create the demo's topics: "):
                with demo_broker.demo_topics(broker, ["any"], keep=False):
                    pass


def test_no_input_there(scratch: Path, tmp_path: Path, kafka: KafkaCluster) -> None:
    done = demo(
        scratch, "--no-spark", "--input", str(tmp_path / "nowhere"), "--bootstrap-servers", kafka.bootstrap_servers
    )
    assert done.returncode == 1
    assert "nowhere" in done.stderr


def test_the_script_names_a_missing_compiler(tmp_path: Path) -> None:
    script = Path(__file__).parents[3] / "demo"
    done = subprocess.run(
        [str(script)],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHON": sys.executable, "CC": "no-such-compiler", "XDG_CACHE_HOME": str(tmp_path)},
    )
    assert done.returncode == 1
    assert "no-such-compiler" in done.stderr
    assert "apt-get install gcc" in done.stderr
    assert list(tmp_path.iterdir()) == []


# ---------------------------------------------------------------- input


def test_the_copy_has_the_text_files(tree: Path, tmp_path: Path) -> None:
    found = copy_input(tree, tmp_path / "copy", None)
    assert found.left_out == {"not a text file": 1}
    assert {file.relative_to(found.root) for file in found.files} == {
        file.relative_to(tree) for file in tree.rglob("*") if file.is_file() and not file.is_symlink()
    } - {Path("binary")}
    assert found.lines == 26_016
    assert found.files[0].stat().st_mtime == (tree / found.files[0].relative_to(found.root)).stat().st_mtime


def test_lines_beyond_the_limit_are_left_out(tree: Path, tmp_path: Path) -> None:
    found = copy_input(tree, tmp_path / "copy", 100)
    assert found.lines <= 100
    assert found.left_out["more lines than the mock cluster can keep"] == 2


def test_no_text_file(tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"\0")
    with pytest.raises(InputError, match="contains no text file"):
        copy_input(tmp_path, tmp_path / "copy", None)


# ---------------------------------------------------------------- the check finds what differs


class Message:
    """A message as a consumer returns it."""

    def __init__(self, key: bytes, value: bytes, headers: Any) -> None:
        self.said = {"key": key, "value": value, "headers": headers}

    def __getattr__(self, name: str) -> Any:
        return lambda: self.said[name]


def sent(expected: dict[bytes, Iterator[Expected]]) -> list[Message]:
    return [
        Message(key, record.value, record.headers or None) for key, records in expected.items() for record in records
    ]


@pytest.mark.parametrize("topic", ["lines", "files", "texts", "directories", "identifiers", "stream"])
def test_the_check_accepts_what_is_right(tree: Path, tmp_path: Path, topic: str) -> None:
    copy = copy_input(tree, tmp_path / "copy", None)

    def expected() -> dict[bytes, Iterator[Expected]]:
        return (records_of_example(copy) | records_of_spark(copy, {"0.txt": copy.files[-1]}))[topic]

    check, messages = TopicCheck(topic, expected()), sent(expected())
    for message in messages:
        check.compare(message)
    check.finish()
    assert check.differences == []
    assert check.records == len(messages) > 0


@pytest.mark.parametrize("damage", ["lost", "doubled", "swapped", "value", "headers", "key"])
def test_the_check_finds(damage: str) -> None:
    rows = {b"k": [Expected(b"%d" % number, [("line", b"%d" % number)]) for number in range(3)]}
    messages = [Message(b"k", row.value, row.headers) for row in rows[b"k"]]
    if damage == "lost":
        messages.pop()
    elif damage == "doubled":
        messages.append(messages[-1])
    elif damage == "swapped":
        messages[0], messages[1] = messages[1], messages[0]
    else:
        messages[1].said[damage] = {"value": b"?", "headers": None, "key": b"other"}[damage]
    check = TopicCheck("rows", {key: iter(records) for key, records in rows.items()})
    for message in messages:
        check.compare(message)
    check.finish()
    assert check.differences
    assert check.count >= len(check.differences)


def test_identifiers_are_counted_over_all_files(tree: Path, tmp_path: Path) -> None:
    copy = copy_input(tree, tmp_path / "copy", None)
    found = records_of_spark(copy, {})["identifiers"]
    counted = Counter({key: int(next(records).value) for key, records in found.items()})
    assert counted[b"later"] == 10
    assert counted[b"word"] == 20_000
    assert counted[b"line"] == 20_001
