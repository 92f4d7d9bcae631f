"""Tests resource limits: how both sides of an attach compare them, refusals, and the sender's reserve."""

import errno
import json
import os
import resource
import socket
from pathlib import Path
from typing import Any

import pytest
from control_rig import SETTINGS, Sender, attach_message, close_all
from support.process import run_script, wait_until

from cyproducer.errors import SenderUnavailableError
from cyproducer.host import control_messages, limits
from cyproducer.producer.channel.spawn import LimitedSenderError
from cyproducer.sender.control.peers import RefusedError, resource_refusal
from cyproducer.sender.handover.handover import Handover
from cyproducer.sender.handover.upgrade import Predecessor
from cyproducer.shm.native import LAYOUT_VERSION

NONE = {"RLIMIT_NOFILE": 1 << 20, "RLIMIT_AS": -1, "RLIMIT_DATA": -1, "RLIMIT_FSIZE": -1}


@pytest.mark.parametrize(
    ("ours", "theirs", "shortage", "higher"),
    [
        ({}, {"RLIMIT_NOFILE": 1024}, "descriptors", True),
        ({}, {"RLIMIT_NOFILE": 1024}, "memory", False),
        ({}, {"RLIMIT_AS": 1 << 30}, "memory", True),
        ({}, {"RLIMIT_DATA": 1 << 30}, "memory", True),
        ({}, {"RLIMIT_FSIZE": 1 << 30}, "file size", True),
        ({"RLIMIT_AS": 2 << 30}, {"RLIMIT_AS": 1 << 30}, "memory", True),
        ({"RLIMIT_AS": 1 << 30}, {"RLIMIT_AS": 1 << 30}, "memory", False),
        ({"RLIMIT_AS": 1 << 30}, {}, "memory", False),
        ({"RLIMIT_AS": 1 << 30}, {"RLIMIT_NOFILE": 1024}, "descriptors", False),
        ({}, {}, "", False),
        ({}, {"RLIMIT_NOFILE": 1024}, "", True),
        ({}, {"RLIMIT_NOFILE": "1"}, "descriptors", False),
        ({"RLIMIT_NOFILE": True}, {"RLIMIT_NOFILE": 0}, "descriptors", False),
    ],
)
def test_which_limits_are_higher(ours: Any, theirs: Any, shortage: str, higher: bool) -> None:
    """A process replaces a sender only if none of the sender's limits is higher."""
    assert limits.are_higher({**NONE, **ours}, {**NONE, **theirs}, shortage) is higher
    assert not limits.are_higher({**NONE, **ours}, None, shortage)
    assert not limits.are_higher([], {**NONE, **theirs}, shortage)
    if higher:
        assert not limits.are_higher({**NONE, **theirs}, {**NONE, **ours}, shortage)


def test_which_limit_is_short() -> None:
    """The limit of the whole system is not a process limit, and neither is memory without a limit."""
    script = """
    import errno, resource
    from cyproducer.host import control_messages, limits
    for names in ((), ("AS", "NOFILE")):
        for name in names:
            resource.setrlimit(getattr(resource, "RLIMIT_" + name), (1 << 46 if name == "AS" else 500,) * 2)
        errors = [OSError(number, "") for number in (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EPERM)]
        errors += [MemoryError(), control_messages.TruncatedError(), KeyError()]
        print([limits.shortage_of(error) for error in errors])
    print(limits.describe("memory", limits.current()))
    """
    without, under, text = run_script(script).stdout.splitlines()
    if resource.getrlimit(resource.RLIMIT_AS)[1] == resource.getrlimit(resource.RLIMIT_DATA)[1] == -1:
        assert without == str(["descriptors", "", "", "", "", "descriptors", ""])
    assert under == str(["descriptors", "", "memory", "", "memory", "descriptors", ""])
    assert "RLIMIT_AS=70368744177664" in text


def replace_message(**more: Any) -> dict[str, Any]:
    return {"op": "replace", "layout": LAYOUT_VERSION, "settings": SETTINGS, **more}


@pytest.mark.parametrize(
    ("replaceable", "theirs", "why"),
    [
        (True, limits.current(), "its limits are not lower"),
        (True, "none", "its limits are not lower"),
        (True, {}, "its limits are not lower"),
        (False, {**limits.current(), "RLIMIT_NOFILE": 1 << 40}, "it was started with `cyproducer sender`"),
    ],
)
def test_a_sender_judges_for_itself_whether_it_is_replaced(
    short_tmp: Path, replaceable: bool, theirs: Any, why: str
) -> None:
    """Several processes may have been refused, and one of them has already replaced the sender."""
    sender = Sender(short_tmp, replaceable=replaceable)
    answer, _, _ = sender.ask(replace_message(limits=theirs))
    assert (answer["error"], answer["message"]) == ("LIMITS", why)
    sender.close()


def test_higher_limits_get_as_far_as_the_supervisor(short_tmp: Path) -> None:
    sender = Sender(short_tmp, replaceable=True)
    answer, _, _ = sender.ask(replace_message(limits={**limits.current(), "RLIMIT_NOFILE": 1 << 40}))
    assert answer["error"] == "DRAINING"  # it has none here
    sender.close()


def test_answer_to_one_whose_connection_takes_the_last_descriptor(short_tmp: Path) -> None:
    """The process is accepted and gets the limits. The listener is not polled in a busy loop meanwhile."""
    script = """
    import json, os, resource, socket, sys, time
    from pathlib import Path
    from control_rig import Sender, attach_message
    from cyproducer.host import control_messages
    sender = Sender(Path(sys.argv[1]), replaceable=True)
    fds, message = attach_message()
    clients = [socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(8)]
    for client in clients:
        client.settimeout(5)
        client.connect(sender.path)
        control_messages.send(client, message, fds)
    limit = max(map(int, os.listdir("/proc/self/fd"))) + 10
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
    filler = []
    try:
        while True:
            filler.append(os.dup(0))
    except OSError:
        pass
    def held():
        return sum(os.path.exists(f"/proc/self/fd/{fd}") for fd in range(limit))
    before = held()
    for client in clients:
        sender.turn(1.0)
        print(json.dumps(control_messages.receive(client)[0]))
        for _ in range(1000):
            if held() == before:
                break
            time.sleep(0.01)    # a thread closes what may take long to close
            sender.turn()
        else:
            raise AssertionError((held(), before))
    for fd in filler:
        os.close(fd)    # a thread that the end of the interpreter finds calls pthread_exit(), which opens libgcc_s
    os.unlink(sender.path)
    """
    answers = [json.loads(line) for line in run_script(script, short_tmp).stdout.splitlines()]
    assert len(answers) == 8
    for answer in answers:
        assert (answer["error"], answer["shortage"], answer["replaceable"]) == ("REFUSED", "descriptors", True)
        assert f"RLIMIT_NOFILE={answer['limits']['RLIMIT_NOFILE']}" in answer["message"]


def test_message_for_which_there_is_no_memory(short_tmp: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is read with the memory of the reserve; a larger message is refused, and other front-ends are served."""
    received = control_messages.receive_sized
    failures = [1]

    def receive(sock: socket.socket) -> Any:
        if failures[0] > 0:
            failures[0] -= 1
            raise MemoryError
        return received(sock)

    sender = Sender(short_tmp, replaceable=True)
    fds, message = attach_message()
    for left, answered in ((1, True), (2, False), (0, True)):
        client = sender.connect()
        control_messages.send(client, message if answered else {"op": "status"}, fds if answered else [])
        failures[0] = left
        with monkeypatch.context() as patch:
            patch.setattr(control_messages, "receive_sized", receive)
            sender.turn()
        answer, got, _ = received(client)
        close_all(got)
        assert answer is not None
        text = answer.get("message", "")
        assert answer["ok"] is answered or "too few resources" in text or "attached already" in text
    close_all(fds)
    sender.close()


@pytest.mark.parametrize("needs_token", [True, False])
def test_a_sender_that_gets_tokens_of_producers_says_so(
    short_tmp: Path, monkeypatch: pytest.MonkeyPatch, needs_token: bool
) -> None:
    """Nothing replaces it: `cyproducer sender` cannot get tokens at a socket that is not named."""
    sender = Sender(short_tmp)
    sender.control.attaching.needs_token = needs_token
    for peer_answer in (resource_refusal(OSError(errno.EMFILE, "")), RefusedError("REFUSED", "text")):
        client = sender.connect()
        sender.turn()
        (peer,) = sender.table.peers.values()
        sender.control.attaching.refuse(peer, peer_answer)
        found, _ = control_messages.receive(client)
        assert found is not None
        assert found.get("needs_token", False) is (needs_token and bool(peer_answer.shortage))
    sender.close()


def test_reserve_is_held_again_when_there_is_room(short_tmp: Path) -> None:
    sender = Sender(short_tmp)
    before = len(os.listdir("/proc/self/fd"))
    with sender.server._reserve.released():
        assert len(os.listdir("/proc/self/fd")) == before - 4
    assert len(os.listdir("/proc/self/fd")) == before
    assert sender.server._reserve.give_descriptor()
    sender.turn()
    wait_until(lambda: len(os.listdir("/proc/self/fd")) == before, what="the reserve")
    sender.close()


def answer(**more: Any) -> dict[str, Any]:
    ours = {**limits.reachable(), "RLIMIT_NOFILE": 30}
    return {"message": "no room", "shortage": "descriptors", "limits": ours, "replaceable": True, **more}


def test_which_refusals_are_worth_a_replacement() -> None:
    LimitedSenderError("/s", answer(), named=False).check(0)
    for given, named, replacements, text in (
        (answer(), True, 0, "named by the setting `sender`"),
        (answer(replaceable=False), False, 0, "cyproducer sender --replace"),
        (answer(replaceable=False, needs_token=True), False, 0, "end it with `cyproducer stop --socket /s`"),
        (answer(limits=limits.reachable()), False, 0, "a sender that this process starts would have no more"),
        (answer(limits={}), False, 0, "would have no more"),
        (answer(), False, 3, "reached their limits as well"),
    ):
        with pytest.raises(SenderUnavailableError, match=text):
            LimitedSenderError("/s", given, named).check(replacements)


@pytest.mark.parametrize(
    ("by_limits", "ours", "theirs", "kept"),
    [(True, 1.0, 9.0, 9.0), (True, 9.0, 1.0, 9.0), (False, 1.0, 9.0, 1.0), (False, None, 9.0, None)],
)
def test_idle_timeout_of_a_replacement(by_limits: bool, ours: float | None, theirs: float, kept: float | None) -> None:
    """The longest idle timeout that the front-ends of both have asked for; a command line's own value is kept."""
    predecessor = Predecessor(Handover(ours), by_limits)
    predecessor.apply({"op": "facts", "draining": "", "deaths": [], "ledger": [], "idle_timeout_s": theirs}, [])
    assert predecessor.handover.idle_timeout_s == kept


def test_descriptors_in_flight_of_processes_that_wait(monkeypatch: pytest.MonkeyPatch, short_tmp: Path) -> None:
    """Processes in the listener's queue get a closed connection, and the handover goes on."""
    from cyproducer.sender.handover import upgrade

    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(str(short_tmp / "l"))
    listener.listen()
    listener.setblocking(False)
    waiting = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    waiting.settimeout(10)
    waiting.connect(str(short_tmp / "l"))
    control_messages.send(waiting, {"op": "attach"}, [0, 1])
    mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    sent, refused = control_messages.send, [OSError(errno.ETOOMANYREFS, "")]

    def send(sock: socket.socket, message: dict[str, Any], fds: Any = ()) -> None:
        if refused:
            raise refused.pop()
        sent(sock, message, fds)

    post = type("Post", (), {"listener": listener})()
    with monkeypatch.context() as patch:
        patch.setattr(control_messages, "send", send)
        upgrade._give(mine, post, {"op": "x"}, [0])
    message, fds = control_messages.receive(theirs)
    close_all(fds)
    assert message == {"op": "x"}
    assert control_messages.receive(waiting) == (None, [])
    for sock in (listener, waiting, mine, theirs):
        sock.close()
