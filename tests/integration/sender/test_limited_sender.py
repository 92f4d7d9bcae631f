"""Tests that a sender started under low hard limits is replaced by one of a process without them."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from kfake.scripted_broker import Fault, ScriptedBroker
from support.confined import without
from support.leftovers import remove_spawn_locks
from support.process import (
    is_running,
    kill9,
    script_command,
    script_environment,
    sender_processes,
    supervisors,
    wait_until,
)
from support.supervised import pair, the_sender

#: Arguments: broker, JSON {limit: value} of the process, buffer_memory, JSON of more settings. On standard input: lines
#: to send; "wait" prints the offsets of all that were sent, or the error.
CLIENT = """
    import json, resource, sys
    servers, limits, buffer_memory, more = sys.argv[1:]
    for name, value in json.loads(limits).items():
        resource.setrlimit(getattr(resource, name), (value, value))
    from cyproducer import KafkaProducer, errors
    settings = {"bootstrap_servers": servers, "sender_idle_timeout_ms": 300, "max_block_ms": 40_000}
    settings |= {"buffer_memory": int(buffer_memory), "linger_ms": 0, **json.loads(more)}
    with KafkaProducer(**settings) as producer:
        futures = []
        for line in sys.stdin:
            if line != "wait\\n":
                try:
                    futures.append(producer.send("t", line.strip().encode(), partition=0))
                except errors.KafkaError as error:
                    print(type(error).__name__, error, flush=True)
            else:
                print(json.dumps([future.result(60).offset for future in futures]), flush=True)
"""
MIB = 1 << 20
#: Limits under which a sender starts and has resources for a few front-ends (it needs 150 MiB and 24 descriptors), and
#: the buffer_memory of these.
DESCRIPTORS = {"RLIMIT_NOFILE": 36}, MIB
MEMORY = {"RLIMIT_AS": 400 * MIB}, 32 * MIB


class Client:
    """A process with a producer, without the right to raise its hard limits."""

    def __init__(self, servers: str, limits: dict[str, int], buffer_memory: int, **settings: Any) -> None:
        command = script_command(CLIENT, servers, json.dumps(limits), buffer_memory, json.dumps(settings))
        self.process = subprocess.Popen(
            [*unprivileged(), *command],
            env=script_environment(),
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )

    def say(self, *lines: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("".join(line + "\n" for line in lines))
        self.process.stdin.flush()

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def end(self) -> None:
        with contextlib.suppress(BrokenPipeError):
            self.process.communicate(timeout=60)


def unprivileged() -> list[str]:
    """Return the prefix of a command that runs without the capabilities that lift limits."""
    return without("sys_resource", "sys_admin")  # the latter lifts the limit on descriptors in flight


@pytest.fixture
def broker() -> Iterator[ScriptedBroker]:
    with ScriptedBroker(partitions=1, nodes=1) as broker:
        yield broker
    assert not broker.complaints


@pytest.fixture
def client(broker: ScriptedBroker) -> Iterator[Callable[..., Client]]:
    """Return ``client(limits, buffer_memory)``: a process with a producer, ended with the test."""
    made: list[Client] = []

    def start(limits: dict[str, int], buffer_memory: int, **settings: Any) -> Client:
        made.append(Client(broker.bootstrap_servers, limits, buffer_memory, **settings))
        return made[-1]

    yield start
    for one in made:
        one.end()


def log_of(runtime_dir: Path) -> str:
    return "".join(path.read_text() for path in runtime_dir.glob("*.log"))


def fill(client: Callable[..., Client], limits: dict[str, int], buffer_memory: int) -> tuple[list[Client], str]:
    """Start processes under limits until one is refused; return (the attached ones, the error)."""
    attached: list[Client] = []
    for number in range(60):
        one = client(limits, buffer_memory)
        one.say(f"attached {number}", "wait")
        answer = one.line()
        if not answer.startswith("["):
            return attached, answer
        attached.append(one)
    raise AssertionError("none was refused")


@pytest.mark.parametrize(("limits", "buffer_memory"), [DESCRIPTORS, MEMORY], ids=["descriptors", "memory"])
def test_processes_without_limits_replace_a_limited_sender(
    limits: dict[str, int], buffer_memory: int, client: Callable[..., Client], broker: ScriptedBroker, runtime_dir: Path
) -> None:
    """Many processes that come at once are all served, and a record of the first process in flight arrives once."""
    first = client(limits, buffer_memory)
    first.say("first 0", "wait")
    assert first.line() == "[0]"
    former = the_sender()["supervisor_pid"]
    with broker.lock:
        broker.faults.append(Fault(hang="appended"))
    first.say(*(f"first {number}" for number in range(1, 50)))
    wait_until(lambda: not broker.faults, 30, "a request that is not answered")
    others = [client({}, buffer_memory) for _ in range(30)]
    for number, other in enumerate(others):
        other.say(f"other {number}", "wait")
    answers = [other.line() for other in others]
    assert all(answer.startswith("[") for answer in answers), answers
    first.say(*(f"first {number}" for number in range(50, 100)), "wait")
    offsets = json.loads(first.line())
    assert offsets == sorted(offsets)
    values = broker.values(0)
    assert [values[offset] for offset in offsets] == [b"first %d" % number for number in range(100)]
    assert sorted(values) == sorted([b"first %d" % n for n in range(100)] + [b"other %d" % n for n in range(30)])
    assert the_sender()["supervisor_pid"] != former
    assert len(the_sender()["front_ends"]) == 31
    assert log_of(runtime_dir).count("has taken over from a sender with lower limits") == 1
    assert log_of(runtime_dir).count("msg=replaced") == 1
    assert "level=error" not in log_of(runtime_dir)


def test_connections_that_wait_do_not_prevent_the_replacement(client: Callable[..., Client], runtime_dir: Path) -> None:
    """Their requests hold more descriptors than the limited sender may have in unread messages (ETOOMANYREFS)."""
    limits, buffer_memory = DESCRIPTORS
    first = client(limits, buffer_memory)
    first.say("first", "wait")
    assert first.line() == "[0]"
    sender = the_sender()
    os.kill(sender["sender_pid"], signal.SIGSTOP)
    try:
        others = [client({}, buffer_memory) for _ in range(30)]
        for other in others:
            other.say("other", "wait")
        for other in others:
            wait_until(lambda pid=other.process.pid: has_arena(pid), 60, "a request")
    finally:
        os.kill(sender["sender_pid"], signal.SIGCONT)
    assert sorted(json.loads(other.line()) for other in others) == [[offset] for offset in range(1, 31)]
    assert log_of(runtime_dir).count("has taken over from a sender with lower limits") == 1
    assert log_of(runtime_dir).count("cannot accept connections") == 1


def test_requests_with_too_many_descriptors_for_a_user_are_sent_later(client: Callable[..., Client]) -> None:
    """Many processes attach at once, before the sender reads: those that the kernel refuses try again."""
    first = client({}, MIB)
    first.say("first", "wait")
    assert first.line() == "[0]"
    sender = the_sender()["sender_pid"]
    os.kill(sender, signal.SIGSTOP)
    try:
        others = [client({"RLIMIT_NOFILE": 64}, MIB) for _ in range(30)]  # a request has three
        for other in others:
            other.say("other", "wait")
        waiting = [other.process.pid for other in others]
        wait_until(lambda: sum(map(has_arena, waiting)) >= 20, 60, "the requests that the kernel takes")
        time.sleep(1)  # the other requests are refused meanwhile
    finally:
        os.kill(sender, signal.SIGCONT)
    answers = [other.line() for other in others]
    assert all(answer.startswith("[") for answer in answers), answers


def test_a_sender_starts_beside_too_many_descriptors_of_the_user(
    client: Callable[..., Client], runtime_dir: Path
) -> None:
    """Other processes of the user have not read them yet: the new sender waits until the kernel takes its own."""
    writer, reader = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with writer, reader:
        socket.send_fds(writer, [b"descriptors"], [0] * 60)
        first = client(*DESCRIPTORS)
        first.say("first", "wait")
        wait_until(lambda: sender_processes(runtime_dir), 60, "a sender")
        time.sleep(1)  # it is refused meanwhile
    assert first.line() == "[0]"


def has_arena(pid: int) -> bool:
    """Return whether the process maps an arena, which its request to a sender takes along."""
    return "cyproducer-arena" in Path(f"/proc/{pid}/maps").read_text()


def test_two_at_once_start_one_replacement(
    client: Callable[..., Client], broker: ScriptedBroker, runtime_dir: Path
) -> None:
    """Also without the lock that makes one of them wait: a sender is not replaced by one with the same limits."""
    attached, _ = fill(client, *DESCRIPTORS)
    racing = [client({}, MIB) for _ in range(2)]
    for one in racing:
        one.say("racing", "wait")
    assert all(one.line().startswith("[") for one in racing)
    assert log_of(runtime_dir).count("has taken over from a sender with lower limits") == 1
    for one in attached:
        one.say("again", "wait")
        assert len(json.loads(one.line())) == 2


def test_replacements_come_to_an_end(client: Callable[..., Client], runtime_dir: Path) -> None:
    """Processes with two limits alternate: the sender with the lower one is replaced once, the other one never."""
    attached = []
    for number in range(40):
        one = client({"RLIMIT_NOFILE": 36 if number % 2 == 0 else 60}, MIB)
        one.say(f"{number}", "wait")
        answer = one.line()
        if answer.startswith("["):
            attached.append(one)
        elif "RLIMIT_NOFILE=60" in answer:
            break
    assert answer.startswith("SenderUnavailableError")
    assert len(attached) > 3
    for one in attached:
        one.say("again", "wait")
        assert len(json.loads(one.line())) == 2
    assert log_of(runtime_dir).count("has taken over from a sender with lower limits") == 1


@pytest.mark.parametrize(
    ("limits", "buffer_memory", "named"),
    [(*DESCRIPTORS, "RLIMIT_NOFILE=36"), (*MEMORY, f"RLIMIT_AS={400 * MIB}")],
    ids=["descriptors", "memory"],
)
def test_process_of_the_same_limits_replaces_nothing(
    limits: dict[str, int], buffer_memory: int, named: str, client: Callable[..., Client], runtime_dir: Path
) -> None:
    """It gets an error that names the limit, at once. Attached processes go on, and free resources when they end."""
    attached, refusal = fill(client, limits, buffer_memory)
    assert len(attached) > 1
    assert refusal.startswith("SenderUnavailableError")
    assert "too few resources for another front-end" in refusal
    assert f"this process has {named}" in refusal
    assert "ulimit -H" in refusal
    attached.pop().end()
    wait_until(lambda: len(the_sender()["front_ends"]) == len(attached), 30, "the end of one")
    again = client(limits, buffer_memory)
    again.say("again", "wait")
    assert again.line().startswith("[")
    for one in attached:
        one.say("again", "wait")
        assert len(json.loads(one.line())) == 2
    assert "has taken over" not in log_of(runtime_dir)
    assert log_of(runtime_dir).count("msg=listening") == 1


@pytest.mark.parametrize("named", [True, False], ids=["named", "at the default place"])
def test_sender_that_was_started_on_purpose_is_not_replaced(
    named: bool, client: Callable[..., Client], broker: ScriptedBroker, runtime_dir: Path
) -> None:
    """The refusal says what to do, and a replacement that is started explicitly lets all go on."""
    path = str(runtime_dir / "s.sock") if named else None
    settings = {"sender": path} if path else {}
    clients: list[Client] = []
    with foreground(broker, path, {"RLIMIT_NOFILE": 36}) as sender:
        for number in range(20):
            clients.append(client({}, MIB, **settings))
            clients[-1].say(f"x {number}", "wait")
            answer = clients[-1].line()
            if not answer.startswith("["):
                break
        assert answer.startswith("SenderUnavailableError")
        assert "RLIMIT_NOFILE=36" in answer
        assert "cyproducer sender --replace" in answer
        assert sender.poll() is None
        with foreground(broker, path, {}, replace=True) as next_sender:
            assert sender.wait(30) == 0
            clients.append(client({}, MIB, **settings))
            clients[-1].say("after", "wait")
            assert clients[-1].line().startswith("[")
            for one in clients:
                one.end()
            next_sender.terminate()
            assert next_sender.wait(30) == 0


@contextlib.contextmanager
def foreground(
    broker: ScriptedBroker, path: str | None, limits: dict[str, int], replace: bool = False
) -> Iterator["subprocess.Popen[bytes]"]:
    """Run `cyproducer sender` under limits that it cannot raise; it listens."""
    script = f"""
    import resource
    for name, value in {limits!r}.items():
        resource.setrlimit(getattr(resource, name), (value, value))
    from cyproducer.foreground import run_sender
    run_sender({{"bootstrap_servers": {broker.bootstrap_servers!r}}}, {path!r}, replace={replace})
    """
    former = pair()
    with subprocess.Popen([*unprivileged(), *script_command(script)], env=script_environment()) as process:
        try:
            wait_until(lambda: (pair() or former) != former, 30, "the sender")
            yield process
        finally:
            process.terminate()


@pytest.mark.parametrize("when", ["begun", "taken over"])
def test_kill_of_the_replacement(
    when: str, client: Callable[..., Client], broker: ScriptedBroker, runtime_dir: Path
) -> None:
    """The former sender goes on, or front-ends find another: nothing is lost or duplicated, the error is clear."""
    first = client(*DESCRIPTORS)
    first.say("first 0", "wait")
    assert first.line() == "[0]"
    fill(client, *DESCRIPTORS)
    former = {process.pid for process in supervisors(runtime_dir)}
    unlimited = client({}, MIB)
    unlimited.say("unlimited", "wait")
    successor = wait_until(
        lambda: [process.pid for process in supervisors(runtime_dir) if process.pid not in former], 30, "a replacement"
    )[0]
    if when == "taken over":
        wait_until(lambda: "has taken over" in log_of(runtime_dir), 30, "the take-over")
    kill9(successor)
    answer = unlimited.line()
    assert answer.startswith(("[", "SenderUnavailableError")), answer
    assert answer.startswith("[") or "cannot be replaced" in answer, answer
    first.say("first 1", "wait")
    assert len(json.loads(first.line())) == 2
    assert [value for value in broker.values(0) if value.startswith(b"first")] == [b"first 0", b"first 1"]


def test_kill_of_the_process_that_starts_the_replacement(
    client: Callable[..., Client], broker: ScriptedBroker, runtime_dir: Path
) -> None:
    """The replacement goes on without it, and another process attaches to it."""
    attached, _ = fill(client, *DESCRIPTORS)
    former = {process.pid for process in sender_processes(runtime_dir)}
    unlimited = client({}, MIB)
    unlimited.say("unlimited", "wait")
    wait_until(lambda: {process.pid for process in sender_processes(runtime_dir)} - former, 30, "a replacement")
    unlimited.process.kill()
    unlimited.process.wait()
    remove_spawn_locks(runtime_dir)
    another = client({}, MIB)
    another.say("another", "wait")
    assert another.line().startswith("[")
    for one in attached:
        one.say("again", "wait")
        assert len(json.loads(one.line())) == 2
    assert not any(map(is_running, former))
    values = broker.values(0)
    assert len(values) == len(set(values)) + values.count(b"again") - 1
