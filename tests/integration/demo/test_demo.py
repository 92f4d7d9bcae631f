"""Tests the demo as users run it, and that its check finds differences."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from confluent_kafka.admin import AdminClient
from demo import broker as demo_broker
from demo.arrays import Row
from demo.check import IdentifiersCheck, LinesCheck, SequenceCheck
from demo.input import (
    InputError,
    distribute,
    identifiers,
    identifiers_by_words,
    read_tree,
    split_lines,
    standard_library,
)
from demo.spark import name_of, quoted
from demo.workers import Placed
from devkafka.node import KafkaCluster
from support.confined import without
from support.process import command_of, script_environment

NOW_MS = 1_700_000_000_000


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
    assert row_of(done.stdout, "connections at the broker")[-1] in {"1", "2"}  # the second one: slow partitions
    assert row_of(done.stdout, "senders")[-1] == "1"
    assert row_of(done.stdout, "differences")[-1] == "0"
    assert "\r" not in done.stdout, "a progress line that overwrites itself is only for terminals"


def topics_of(kafka: KafkaCluster) -> set[str]:
    return set(AdminClient({"bootstrap.servers": kafka.bootstrap_servers}).list_topics(timeout=30).topics)


@pytest.mark.timeout(200)
def test_arrays_and_workers(kafka: KafkaCluster, tree: Path, scratch: Path) -> None:
    done = demo(scratch, "--bootstrap-servers", kafka.bootstrap_servers, "--no-spark", "--input", str(tree))
    assert_all_arrived(done)
    assert row_of(done.stdout, "lines: send() in 4 processes")[5] == "26,016"
    for topic in ("files", "heads", "texts"):
        assert " 7 " in " ".join(row_of(done.stdout, f"{topic}: "))
    assert "1 files (not a text file)" in done.stdout
    assert [name for name in topics_of(kafka) if name.startswith("cyproducer-demo")] == []
    assert list(scratch.iterdir()) == []


@pytest.mark.long
@pytest.mark.timeout(400)
def test_with_spark(kafka: KafkaCluster, tree: Path, scratch: Path) -> None:
    done = demo(scratch, "--bootstrap-servers", kafka.bootstrap_servers, "--input", str(tree), timeout=300)
    assert_all_arrived(done)
    for topic in ("identifiers: PySpark batch job", "stream: Structured Streaming"):
        assert int(row_of(done.stdout, topic)[4 if topic.startswith("i") else 3].replace(",", "")) > 5
    assert list(scratch.iterdir()) == []


@pytest.mark.timeout(200)
def test_without_java(tree: Path, scratch: Path) -> None:
    done = demo(scratch, "--input", str(tree), PATH=str(tree), JAVA_HOME="")
    assert_all_arrived(done)
    assert "mock cluster" in done.stdout
    assert "openjdk" in done.stdout
    assert "The Spark part is skipped" in done.stdout


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
            if line.startswith("Sending"):
                break
        time.sleep(1.5)
        started = psutil.Process(process.pid).children(recursive=True)
        assert len(started) >= 5
        [spark] = [each for each in started if "demo.spark" in " ".join(command_of(each))]
        # Only in a directory below does the demo remove what PySpark leaves if it is killed while it starts.
        assert scratch in Path(spark.environ()["TMPDIR"]).parents
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
                with demo_broker.demo_topics(broker, keep=False):
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


def test_tree(tree: Path) -> None:
    found = read_tree(tree, NOW_MS)
    assert len(found.files) == 7
    assert found.left_out == {"not a text file": 1}
    by_name = {file.key: file for file in found.files}
    assert by_name[b"_private/b c.py"].lines == 3
    assert by_name[b"future.py"].first_timestamp == NOW_MS - 10
    assert by_name[b"latin.py"].first_timestamp == 1000
    assert sorted(file.name for share in distribute(found.files, 4) for file in share) == sorted(
        file.name for file in found.files
    )


def test_changed_file_is_named(tree: Path) -> None:
    file = next(file for file in read_tree(tree, NOW_MS).files if file.name == "latin.py")
    (tree / "latin.py").write_bytes(b"another\n")
    with pytest.raises(InputError, match=r"latin\.py"):
        file.read()


def test_two_ways_to_count_identifiers_agree() -> None:
    files = read_tree(standard_library(), NOW_MS, ".py", 30_000).files
    assert len(files) > 10
    for file in files:
        data = file.read()
        assert identifiers(data) == identifiers_by_words(data)
    assert identifiers(b"a1 1a a_b \xe9x 0x1f") == {b"a1": 1, b"a_b": 1, b"x": 1}


@pytest.mark.parametrize("name", ["__init__.py", "a/_b/c d.py", os.fsdecode(b"\xff%2F[x].py"), "é.py"])
def test_names_for_spark_come_back(name: str) -> None:
    assert not quoted(name).startswith(("_", "."))
    assert name_of("file:/some/where/" + quoted(name)) == os.fsencode(name)


# ---------------------------------------------------------------- the check finds what differs


class Message:
    """A message as a consumer returns it."""

    def __init__(
        self, key: bytes, value: bytes, headers: Any, timestamp: int, offset: int = 0, partition: int = 0
    ) -> None:
        self.said = {"key": key, "value": value, "headers": headers, "timestamp": (1, timestamp)}
        self.said |= {"offset": offset, "partition": partition}

    def __getattr__(self, name: str) -> Any:
        return lambda: self.said[name]


def lines_of(tree: Path, name: str) -> tuple[LinesCheck, list[Message]]:
    file = next(file for file in read_tree(tree, NOW_MS).files if file.name == name)
    lines = split_lines(file.read())
    messages = [
        Message(file.key, line, [("line", b"%d" % (at + 1))], file.first_timestamp + at, at)
        for at, line in enumerate(lines)
    ]
    return LinesCheck("lines", [file], {file.key: Placed(0, sum(range(len(lines))))}), messages


def differences(check: Any, messages: list[Message]) -> list[str]:
    for message in messages:
        check.take(message)
    check.finish()
    return check.differences


def test_lines_check_accepts_what_is_right(tree: Path) -> None:
    check, messages = lines_of(tree, "_private/b c.py")
    assert differences(check, messages) == []
    assert (check.records, check.bytes) == (3, 15 + 3 * 15)


@pytest.mark.parametrize("damage", ["lost", "doubled", "swapped", "value", "header", "timestamp", "offset", "foreign"])
def test_lines_check_finds(tree: Path, damage: str) -> None:
    check, messages = lines_of(tree, "_private/b c.py")
    if damage == "lost":
        messages.pop()
    elif damage == "doubled":
        messages.insert(1, messages[0])
    elif damage == "swapped":
        messages[0], messages[1] = messages[1], messages[0]
    elif damage == "foreign":
        messages.append(Message(b"foreign", b"", [], 0))
    else:
        wrong = {"value": b"?", "headers": [], "timestamp": (1, 0), "offset": 7}
        name = "headers" if damage == "header" else damage
        messages[1].said[name] = wrong[name]
    assert differences(check, messages)


@pytest.mark.parametrize("damage", ["", "lost", "doubled", "swapped", "value", "headers", "timestamp", "offset"])
def test_sequence_check(damage: str) -> None:
    rows = [Row(b"k", b"%d" % at, (("file", b"%d" % at),), 1000 + at, (0, at)) for at in range(3)]
    messages = [Message(r.key, r.value, list(r.headers), r.timestamp, at) for at, r in enumerate(rows)]
    if damage == "lost":
        messages.pop()
    elif damage == "doubled":
        messages.append(messages[-1])
    elif damage == "swapped":
        messages[0], messages[1] = messages[1], messages[0]
    elif damage:
        messages[1].said[damage] = {"value": b"?", "headers": None, "timestamp": (1, 0), "offset": 7}[damage]
    assert bool(differences(SequenceCheck("rows", rows), messages)) is bool(damage)


@pytest.mark.parametrize("damage", ["", "lost", "doubled", "swapped", "value", "text", "headers", "timestamp"])
def test_identifiers_check(tree: Path, damage: str) -> None:
    file = next(file for file in read_tree(tree, NOW_MS).files if file.name == "_private/b c.py")
    messages = [
        Message(file.key, b'{"identifier":"%s","count":%d}' % pair, [("job", b"batch")], 5)
        for pair in [(b"x", 2), (b"y", 1)]
    ]
    if damage == "lost":
        messages.pop()
    elif damage == "doubled":
        messages.append(messages[-1])
    elif damage == "swapped":
        messages.reverse()
    elif damage == "text":
        messages[1].said["value"] = b"no JSON"
    elif damage:
        wrong = {"value": b'{"identifier":"y","count":2}', "headers": None, "timestamp": (1, 0)}
        messages[1].said[damage] = wrong[damage]
    check = IdentifiersCheck("identifiers", "batch", [file], {file.key: 5})
    assert bool(differences(check, messages)) is bool(damage)
