"""Tests that the messages between processes are built and read as they were, byte for byte.

message_bytes.txt has a name and the text of a message on each line, as commit 0ba580b has built them. Processes of
different versions use one sender, and a supervisor of one version takes over from one of another.
"""

import contextlib
import os
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import control_rig
import pytest
from control_rig import Sender, attach_message, close_all

from cyproducer import metric_table
from cyproducer.config.settings import Settings
from cyproducer.errors import SenderUnavailableError
from cyproducer.host import control_messages, limits
from cyproducer.observe.ledger import Ledger
from cyproducer.producer.channel import attach as attaching
from cyproducer.producer.channel.address import Address
from cyproducer.sender.handover import upgrade
from cyproducer.sender.handover.handover import Handover, Held, Line, received
from cyproducer.sender.process.supervisor import Child, Supervisor
from cyproducer.sender.system.daemonise import PeerProcess

STORED = dict(
    line.split("\t", 1) for line in (Path(__file__).parent / "message_bytes.txt").read_text().splitlines() if line
)
#: What differs between two runs: processes, namespaces, memory, the build.
VARIABLE = re.compile(
    r'"(pid|sender_pid|supervisor_pid|time_namespace|network_namespace|layout|version|command_key|challenge|proof'
    r'|started_at|totals_since|socket|log|sender_state)":("[^"]*"|[0-9.]+|null)'
)
LIMITS = {"RLIMIT_NOFILE": 1024, "RLIMIT_AS": -1, "RLIMIT_DATA": -1, "RLIMIT_FSIZE": -1}
LEDGER = [("app", "t", "MESSAGE_TOO_LARGE", 3, 5.5)]
META = {"app": "a", "pid": 7, "slots": 4, "settings": {"acks": -1}}
TOKEN = {"value": "x.y.z", "expires_at": 9.5, "extensions": {"k": "v"}, "issued_at": 1.5}


def fixed(text: str) -> str:
    """Return a message without what differs between two runs."""
    return VARIABLE.sub(r'"\1":*', text)


class Recorder:
    """Keeps the text of each message that is sent, with the number of descriptors that it has."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.texts: list[str] = []
        send_encoded = control_messages.send_encoded

        def record(sock: socket.socket, data: bytes, fds: Any = ()) -> None:
            self.texts.append(f"{len(fds)} {fixed(data.decode())}")
            send_encoded(sock, data, fds)

        monkeypatch.setattr(control_messages, "send_encoded", record)

    def take(self) -> list[str]:
        texts, self.texts = self.texts, []
        return texts


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    monkeypatch.setattr(limits, "current", lambda: LIMITS)
    return Recorder(monkeypatch)


def expect(recorder: Recorder, *names: str) -> None:
    """Compare what was sent since the last call with the stored messages."""
    assert recorder.take() == [STORED[name] for name in names]


@contextlib.contextmanager
def supervised(sender: Sender) -> Iterator[socket.socket]:
    """Give the sender a supervisor, whose end of the queue this yields."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setblocking(False)
    theirs.setblocking(False)
    sender.line.begin(ours, os.getpid(), -1)
    try:
        yield theirs
    finally:
        for _, fds in received(theirs):
            close_all(fds)
        sender.line.end()
        theirs.close()


def attach(sender: Sender, **settings: Any) -> None:
    """Attach with the code of a front-end, which then refuses the regions of the fake engine and hangs up."""
    parsed = Settings.parse(sender=sender.path, **settings)
    until = time.monotonic() + 10

    def run() -> None:
        with contextlib.suppress(SenderUnavailableError):
            attaching.attach(parsed, Address(parsed), sender.path, until, attaching.AttachProgress())

    thread = threading.Thread(target=run)
    thread.start()
    while thread.is_alive():
        sender.turn()
        thread.join(0.002)


def test_an_attach(make: Callable[..., Sender], recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["orders.py"])
    sender = make()
    with supervised(sender):
        attach(sender)
        sender.turn()
        expect(recorder, "attach", "hold", "attached", "answered", "ended front-end", "drop")


def test_an_attach_of_a_transactional_producer(
    make: Callable[..., Sender], recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["orders.py"])
    sender = make(idle_timeout_s=0.5)
    with supervised(sender):
        attach(sender, transactional_id="orders", sender_idle_timeout_ms=2000)
        names = ("attach transactional", "hold transactional", "attached transactional", "answered", "idle")
        sender.turn()
        expect(recorder, *names, "ended front-end", "drop")


def test_refusals_of_an_attach(
    make: Callable[..., Sender], recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    sender = make()
    for name, changes in {
        "refused slots": {"slots": 0},
        "refused setting": {"sender_settings": {"sender_group": "d"}},
        "refused transactional id": {"settings": {"transactional_id": ""}},
    }.items():
        sender.attach(**changes)
        assert recorder.take()[1] == STORED[name], name

    def fails(_: Any, arena_fd: int, slot_count: int, settings: Any, wake_fd: int) -> None:
        close_all([arena_fd, wake_fd])
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(control_rig.Engine, "attach", fails)
    fds, message = attach_message()
    sender.ask(message, fds)
    close_all(fds)
    assert recorder.take()[1] == STORED["refused resources"]
    sender.ask({"op": "dance"})
    assert recorder.take()[1] == STORED["refused op"]
    sender.ask({"op": "attach", "layout": message["layout"], "challenge": True})
    assert recorder.take()[1] == STORED["challenge"]
    sender.ending.drain("SIGTERM")
    sender.ask({"op": "attach"})
    assert recorder.take()[1] == STORED["refused drain"]


@pytest.mark.breaks_protocol
def test_what_a_sender_tells_its_front_ends(make: Callable[..., Sender], recorder: Recorder) -> None:
    sender = make()
    _, first = sender.attach()
    _, second = sender.attach()
    recorder.take()
    sender.log.warning("watch out")
    expect(recorder, "warning", "warning")
    control_messages.send_encoded(first, STORED["want"][2:].encode())
    sender.turn()
    assert sender.engine.wanted == [(1, "t")]
    recorder.take()

    def full(*_: Any) -> None:
        raise OverflowError("the table is full")

    sender.engine.want_topic = full
    control_messages.send_encoded(first, STORED["want"][2:].encode().replace(b'"t"', b'"u"'))
    control_messages.send_encoded(second, STORED["close"][2:].encode())
    recorder.take()
    sender.turn()
    texts = recorder.take()
    assert texts[0] == STORED["refused topic"]
    assert all(peer.orderly == (attach_id == 2) for attach_id, peer in sender.table.front_ends.items())
    sender.engine.violations = [(1, "it is wrong")]
    sender.turn()
    assert recorder.take()[-1] == STORED["detached"]
    sender.server.close()
    sender.server.close = lambda: []
    expect(recorder, "ended")


def test_answers_to_requests(make: Callable[..., Sender], recorder: Recorder) -> None:
    sender = make()
    with supervised(sender):
        for name in ("client_instance_id", "status", "stop"):
            client = sender.connect()
            control_messages.send_encoded(client, STORED[name][2:].encode())
            recorder.take()
            sender.turn()
            texts = recorder.take()
            if name == "stop":
                texts[2] = texts[2].replace(f"pid {os.getpid()}", "pid 1")
                assert texts == [STORED["waiting"], STORED["answer to stop"], STORED["draining after stop"]]
            else:
                assert texts == [STORED[f"answer to {name}"]]


def test_the_document_of_a_status(make: Callable[..., Sender]) -> None:
    sender = make(started_at=1.5, restarts=2, cluster_id="c1")
    sender.attach()
    sender.engine.failures = [(1, "t", 10, 3)]
    status = sender.control.status.describe()
    assert status.pop("counts") == metric_table.nothing()
    status["ledger"][0].update(first=5.5, last=5.5)
    text = fixed(re.sub(r'"uid":\d+', '"uid":0', control_messages.encode(status).decode()))
    assert text == STORED["status document"]


class Tokens:
    """Takes each token, and needs another one."""

    current = None

    def __init__(self) -> None:
        self.taken: list[tuple[Any, ...]] = []

    def accept_new(self, value: str, expires_at: Any, extensions: dict[str, str], then: Callable[[Any], None]) -> None:
        self.taken.append((value, expires_at, extensions))
        then(None)

    def for_successor(self) -> dict[str, Any]:
        return TOKEN

    def end_late_checks(self) -> None:
        pass

    def due_in_s(self) -> float:
        return 0.0

    def on_not_supplied(self, text: str) -> None:
        pass

    def patience_s(self) -> float:
        return 10.0

    def next_check_ends_in_s(self) -> None:
        return None


def test_tokens(make: Callable[..., Sender], recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = Tokens()
    monkeypatch.setattr(control_rig.Engine, "supplied_tokens", lambda engine: tokens)
    sender = make()
    with supervised(sender):
        client = sender.connect()
        control_messages.send_encoded(client, STORED["token of a process"][2:].encode())
        recorder.take()
        sender.turn()
        assert tokens.taken == [("x.y.z", 9.5, {"k": "v"})]
        expect(recorder, "token", "answer to a token", "request of a token")


def test_what_a_supervisor_tells_its_sender(recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    post = Post()
    made = Supervisor.__new__(Supervisor)
    made.post, made.election, made.handover, made._names_unsent = post, post.election, Handover(1.0), True
    made.child = Child(PeerProcess(os.getpid(), os.pidfd_open(os.getpid()), ours, None), started=True)
    made.names = SimpleNamespace(missing=lambda: False)
    made._on_signal("SIGTERM")
    made._restore_names(made.child)
    expect(recorder, "signal", "names")
    made.child.close()
    theirs.close()
    post.close()


COMMANDS = ("init", "fail", "share", "commit", "abort", "offsets")


@pytest.mark.parametrize("do", COMMANDS)
def test_a_command_of_a_transactional_producer_is_read(
    make: Callable[..., Sender], recorder: Recorder, do: str
) -> None:
    sender = make(idle_timeout_s=None)
    sender.attach(settings={"transactional_id": "orders"})
    client = sender.connect()
    data = STORED[f"command {do}"][2:].replace("KEY", sender.keys[1])
    control_messages.send_encoded(client, data.encode())
    recorder.take()
    sender.turn()
    ((attach_id, fields, answer),) = sender.engine.commands
    assert attach_id == 1
    assert control_messages.encode(fields).decode() == STORED[f"fields {do}"]
    answer({"ok": True, "producer_id": 7, "epoch": 0})
    expect(recorder, "answer to a command")


@pytest.mark.parametrize("do", ["list", "describe", "abort"])
def test_a_question_about_transactions_is_read(make: Callable[..., Sender], recorder: Recorder, do: str) -> None:
    sender = make()
    data = STORED[f"question {do}"][2:]
    client = sender.connect()
    control_messages.send_encoded(client, data.encode())
    recorder.take()
    sender.turn()
    ((question, answer),) = sender.engine.questions
    assert {"op": "transactions", **question} == control_messages.json.loads(data)
    answer({"transactions": []})
    expect(recorder, "answer to a question")


def descriptors(count: int) -> list[int]:
    """Return the descriptors of a front-end: a connection, a pidfd, and others."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    theirs.close()
    others = [os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC) for _ in range(count - 2)]
    return [ours.detach(), os.pidfd_open(os.getpid()), *others]


def test_what_a_sender_tells_its_supervisor(recorder: Recorder) -> None:
    """The supervisor reads the stored messages as its sender builds them."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setblocking(False)
    theirs.setblocking(False)
    line, handover = Line(ours, os.getpid()), Handover(1.0)
    fds = descriptors(6)
    assert line.give({"op": "hold", "attach_id": 3, "meta": META}, tuple(fds))
    line.tell({"op": "answered", "attach_id": 3})
    line.tell({"op": "draining", "why": "SIGTERM", "until": 5.5})
    line.tell({"op": "idle", "timeout_s": 9.5})
    line.tell({"op": "cluster", "id": "c1"})
    line.tell_failures(LEDGER)
    line.tell({"op": "token", "token": TOKEN})
    assert line.give({"op": "regions"}, tuple(fds[4:]))
    assert line.give({"op": "waiting"}, (fds[0],))
    names = "hold of a front-end", "answered of a front-end", "draining", "idle timeout", "cluster", "failures"
    expect(recorder, *names, "token", "regions", "waiting")
    close_all(fds)
    for message, its_fds in received(theirs):
        handover.apply(message, its_fds)
    held = handover.held[3]
    assert (held.meta, held.answered, held.ended) == (META, True, False)
    assert (handover.draining, handover.drain_until, handover.idle_timeout_s) == ("SIGTERM", 5.5, 9.5)
    assert (handover.cluster_id, handover.token) == ("c1", TOKEN)
    assert len(handover.regions) == 2 and len(handover.waiting) == 1
    (row,) = handover.ledger.rows()
    assert (row["app"], row["topic"], row["cause"], row["count"]) == ("app", "t", "MESSAGE_TOO_LARGE", 3)
    handover.forget()
    line.end()
    theirs.close()


class Post:
    """What a supervisor hands over besides its state."""

    def __init__(self) -> None:
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.listener.setblocking(False)
        self.election = self
        self.lock_fd = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)

    def close(self) -> None:
        self.listener.close()
        os.close(self.lock_fd)


def handed_over() -> Handover:
    """Return a handover with something of each kind."""
    handover = Handover(4.5, cluster_id="c1", draining="SIGTERM", deaths={3: 1}, ledger=Ledger())
    handover.ledger.add(*LEDGER[0])
    handover.regions = descriptors(2)
    for attach_id, holders, ended in (
        (3, handover.held, False),
        (4, handover.held, True),
        (5, handover.quarantined, True),
    ):
        fds = descriptors(6)
        if ended:
            close_all(fds[:2])
            fds[:2] = [-1, -1]
        held = holders[attach_id] = Held(attach_id, META, fds)
        held.answered, held.ended = True, ended
    handover.waiting = [socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)[0].detach()]
    return handover


def test_a_handover_to_another_supervisor(recorder: Recorder) -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    theirs.settimeout(10)
    post, handover, predecessor = Post(), handed_over(), upgrade.Predecessor(Handover(1.0), by_limits=True)
    given = []
    giver = threading.Thread(target=lambda: given.append(upgrade.hand_over(ours, post, handover)))
    giver.start()
    while True:
        message, fds = control_messages.receive(theirs)
        assert message is not None
        if message["op"] == "yours":
            break
        if message["op"] == "all":
            control_messages.send(theirs, {"op": "taken"})
        else:
            predecessor.apply(message, fds)
    giver.join()
    assert given == [True]
    names = ("post", "regions", "hold to a successor", "hold of an ended one", "quarantined", "waiting", "facts")
    expect(recorder, *names, "all", "taken", "yours")
    found = predecessor.handover
    assert predecessor.listener is not None and predecessor.lock_fd >= 0
    assert (sorted(found.held), sorted(found.quarantined)) == ([3, 4], [5])
    assert [held.ended for held in found.held.values()] == [False, True]
    assert (found.draining, found.deaths, found.cluster_id) == ("SIGTERM", {3: 1}, "c1")
    assert found.idle_timeout_s == 4.5
    assert found.ledger.rows() == handover.ledger.rows()
    assert len(found.regions) == 2 and len(found.waiting) == 1
    predecessor.drop()
    handover.forget()
    post.close()
    ours.close()
    theirs.close()


def test_a_request_to_replace_a_sender(make: Callable[..., Sender], recorder: Recorder) -> None:
    settings = {**control_rig.SETTINGS}
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    assert upgrade._ask(theirs, "path", settings, by_limits=True)
    expect(recorder, "replace")
    request = control_messages.receive_alone(ours)
    assert request is not None
    ours.close()
    theirs.close()
    request["limits"] = {**LIMITS, "RLIMIT_NOFILE": 4096}
    sender = make(replaceable=True)
    with supervised(sender):
        client = sender.connect()
        control_messages.send(client, request)
        recorder.take()
        sender.turn()
        assert recorder.take() == [STORED["replace to a supervisor"]]
