"""Tests what a sender hands to its supervisor, and in which order; an unread queue; backoff; reaping."""

import contextlib
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace

import pytest
from support import layout
from support.front_end import word
from support.process import run_script, wait_until

from cyproducer.host import control_messages
from cyproducer.observe.ledger import Ledger
from cyproducer.sender.control.peers import has_ended
from cyproducer.sender.handover import upgrade
from cyproducer.sender.handover.handover import Handover, Held, Line, received
from cyproducer.sender.process import supervisor
from cyproducer.sender.process.supervisor import Child, Supervisor, backoff_s
from cyproducer.sender.system.daemonise import PeerProcess, reap, state_of
from cyproducer.sender.system.service_manager import ServiceManager
from cyproducer.shm.native import LAYOUT_VERSION, count_undelivered, create_arena


def null() -> int:
    return os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)


@pytest.fixture
def line() -> Iterator[tuple[Line, socket.socket]]:
    mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    mine.setblocking(False)
    theirs.setblocking(False)
    sender = Line(theirs, os.getpid(), os.pidfd_open(os.getpid()))
    yield sender, mine
    sender.end()
    mine.close()


def deliver(line: tuple[Line, socket.socket], handover: Handover) -> None:
    for message, fds in received(line[1]):
        handover.apply(message, fds)


def hold(line: Line, attach_id: int, fds: list[int]) -> bool:
    return line.give({"op": "hold", "attach_id": attach_id, "meta": {"app": "a"}}, tuple(fds))


def test_handover_of_a_front_end_from_attach_to_end(line: tuple[Line, socket.socket]) -> None:
    before = len(os.listdir("/proc/self/fd"))
    handover = Handover(1.0)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    theirs.settimeout(5)
    fds = [ours.detach(), *(null() for _ in range(5))]
    assert hold(line[0], 7, fds)
    for fd in fds:
        os.close(fd)
    deliver(line, handover)
    held = handover.held[7]
    assert (held.meta, held.answered, held.ended) == ({"app": "a"}, False, False)
    assert len(handover.descriptors()) == 6
    line[0].tell({"op": "answered", "attach_id": 7})
    line[0].tell({"op": "ended", "attach_id": 7})
    line[0].tell({"op": "ended", "attach_id": 8})
    deliver(line, handover)
    assert (held.answered, held.ended, len(handover.descriptors())) == (True, True, 4)
    assert theirs.recv(1) == b""
    line[0].tell({"op": "drop", "attach_id": 7})
    deliver(line, handover)
    assert handover.held == {}
    theirs.close()
    assert len(os.listdir("/proc/self/fd")) == before


def test_queued_messages_outlive_the_sender(line: tuple[Line, socket.socket]) -> None:
    fds = [null() for _ in range(6)]
    assert hold(line[0], 1, fds)
    line[0].tell({"op": "draining", "why": "SIGTERM", "until": 5.5})
    line[0].tell({"op": "idle", "timeout_s": 9})
    line[0].tell({"op": "failures", "rows": [("a", "t", "c", 3, 1.0)]})
    line[0].end()
    for fd in fds:
        os.close(fd)
    handover = Handover(1.0)
    deliver(line, handover)
    assert list(handover.held) == [1]
    assert (handover.draining, handover.drain_until, handover.idle_timeout_s) == ("SIGTERM", 5.5, 9)
    assert handover.ledger.rows()[0]["count"] == 3
    handover.forget()
    assert handover.descriptors() == set()


def test_full_queue_refuses_descriptors_and_keeps_words_in_order(line: tuple[Line, socket.socket]) -> None:
    # The queue is short: with the descriptors of a long one, this process would reach a limit of 1024.
    line[0].socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 15)
    fds = [null() for _ in range(6)]
    taken = 0
    while hold(line[0], taken, fds):
        taken += 1
    assert taken > 10
    for attach_id in range(5):
        line[0].tell({"op": "drop", "attach_id": attach_id})
    handover = Handover(None)
    deliver(line, handover)
    assert len(handover.held) == taken
    line[0].flush()
    deliver(line, handover)
    assert sorted(handover.held) == list(range(5, taken))
    assert hold(line[0], 1000, fds)
    deliver(line, handover)
    assert 1000 in handover.held
    handover.forget()
    for fd in fds:
        os.close(fd)


LONG = [(f"приём заказов: worker {n}", "t" * 240, "KafkaTimeoutError", 1, 2.0) for n in range(1000)]


@pytest.mark.parametrize("times", [1, 5], ids=["too large for the socket", "too large for a message"])
def test_messages_that_can_never_be_sent_are_dropped(
    line: tuple[Line, socket.socket], times: int, caplog: pytest.LogCaptureFixture
) -> None:
    line[0].tell({"op": "failures", "rows": LONG * times})
    assert len(caplog.messages) == 1
    fds = [null() for _ in range(6)]
    assert hold(line[0], 1, fds)
    assert not line[0].give({"op": "hold", "attach_id": 2, "meta": LONG * times}, tuple(fds))
    handover = Handover(None)
    deliver(line, handover)
    assert list(handover.held) == [1]
    handover.forget()
    for fd in fds:
        os.close(fd)


def test_failures_are_handed_over_in_pieces(line: tuple[Line, socket.socket]) -> None:
    line[0].tell_failures(LONG)
    handover = Handover(None)
    while len(handover.ledger.rows()) < len(LONG):
        messages = received(line[1])
        assert messages
        for message, fds in messages:
            handover.apply(message, fds)
        line[0].flush()
    assert {row["count"] for row in handover.ledger.rows()} == {1}


def test_a_long_ledger_is_handed_over() -> None:
    handover = Handover(None, regions=[null(), null()], draining="SIGTERM", deaths={3: 2})
    for row in LONG:
        handover.ledger.add(*row)
    mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with mine, theirs, socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as lock:
        post = SimpleNamespace(election=SimpleNamespace(lock_fd=lock.fileno()), listener=listener)
        predecessor = upgrade.Predecessor(Handover(None))
        theirs.settimeout(10)
        successor = threading.Thread(target=upgrade._receive_all, args=(theirs, predecessor, ""))
        successor.start()
        assert upgrade.hand_over(mine, post, handover)
        successor.join()
    taken = predecessor.handover
    assert taken.ledger.rows() == handover.ledger.rows()
    assert (taken.draining, taken.deaths) == ("SIGTERM", {3: 2})
    predecessor.drop()
    handover.forget()


def test_without_a_supervisor_everything_succeeds() -> None:
    alone = Line()
    assert alone.give({"op": "hold"}, (0,))
    alone.tell({"op": "drop"})
    assert not alone.send_last({"op": "finished"})
    mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    widowed = Line(theirs, 1, -1)
    mine.close()
    assert widowed.give({"op": "hold"}, (0,))
    widowed.tell({"op": "drop"})
    assert not widowed.send_last({"op": "finished"})
    widowed.end()


def test_damaged_messages_are_passed_over(line: tuple[Line, socket.socket]) -> None:
    assert line[0].socket is not None
    line[0].socket.send(b"{")
    line[0].tell({"op": "dance"})
    line[0].tell({"op": "drop", "attach_id": 3})
    messages = received(line[1])
    assert [message["op"] for message, _ in messages] == ["dance", "drop"]
    handover = Handover(None)
    for message, fds in messages:
        handover.apply(message, fds)


def test_backoff() -> None:
    assert [backoff_s(n, False) for n in range(1, 11)] == [0, 0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5, 5]
    assert backoff_s(10_000, False) == 5
    assert [backoff_s(n, True) for n in (1, 2, 5, 6, 100)] == [0, 0.05, 0.4, 0.5, 0.5]


def test_ledger_goes_on_where_another_ended() -> None:
    first, second = Ledger(), Ledger()
    first.add("a", "t", "c", 3, 10.0)
    first.add("a", "t", "c", 1, 20.0)
    for row in first.rows():
        second.restore(row)
    assert second.rows() == first.rows()
    assert second.next_warning_in(20.0) is None
    second.add("a", "t", "c", 2, 200.0)
    assert [notice.text for notice in second.warnings(200.0)] == ["2 records of a for topic t failed: c"]


def test_which_builds_may_replace_a_sender() -> None:
    settings = {"client_id": "c", "gone": 1}
    asked = {"layout": LAYOUT_VERSION, "settings": {"client_id": "c", "new": 2}}
    assert upgrade.refusal_reason(asked, settings) is None
    assert upgrade.refusal_reason({**asked, "layout": 99}, settings)[0] == "LAYOUT"
    assert upgrade.refusal_reason({**asked, "settings": {"client_id": "d"}}, settings) == (
        "SETTINGS",
        "client_id is 'c' in the running sender and 'd' in this process",
    )
    assert upgrade.refusal_reason({"layout": LAYOUT_VERSION}, settings)[0] == "MALFORMED"


def test_peeked_message_stays() -> None:
    left, right = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    right.setblocking(False)
    with pytest.raises(BlockingIOError):
        control_messages.peek(right)
    control_messages.send(left, {"op": "want"}, [0])
    assert control_messages.peek(right) == control_messages.peek(right) == {"op": "want"}
    message, (fd,) = control_messages.receive(right)
    os.close(fd)
    assert message == {"op": "want"}
    left.send(b"[1]")
    assert control_messages.peek(right) is None
    right.recv(10)
    left.close()
    assert control_messages.peek(right) is None
    right.close()


@pytest.mark.parametrize(
    ("end", "text"), [("sys.exit(3)", "status 3"), ("os.kill(os.getpid(), 9)", "SIGKILL"), ("os.abort()", "SIGABRT")]
)
def test_how_a_child_ended(end: str, text: str) -> None:
    child = subprocess.Popen([sys.executable, "-c", f"import os, sys; {end}"], stderr=subprocess.DEVNULL)
    pidfd = os.pidfd_open(child.pid)
    wait_until(lambda: has_ended(pidfd))
    assert reap(pidfd) == text
    assert reap(pidfd) == ""
    os.close(pidfd)
    child.returncode = 0


def test_state_of_a_process() -> None:
    with subprocess.Popen(["/bin/sleep", "60"]) as child:
        child.send_signal(signal.SIGSTOP)
        wait_until(lambda: state_of(child.pid) == "T", what="the stop")
        child.kill()
    assert state_of(child.pid) == ""


def test_closing_all_but_some() -> None:
    script = """
    import os
    from cyproducer.sender.system.daemonise import close_others
    kept = [os.dup(0) for _ in range(20)][3::5]
    os.dup2(0, 200)
    close_others(kept)
    print(sorted(fd for fd in range(256) if os.path.exists(f"/proc/self/fd/{fd}")) == [0, 1, 2, *kept])
    """
    assert run_script(script).stdout == "True\n"


def test_records_of_an_arena_are_counted_without_mapping_it() -> None:
    arena, slots = create_arena(1 << 20)
    fd = os.dup(arena.fd)
    arena.close()
    rows_at = layout.read_from(fd, "cyp_arena_header", 0, "slots_offset")
    assert count_undelivered(fd, slots) == 0
    for slot, (state, records) in enumerate([(1, 5), (2, 7), (3, 11), (2, 13), (0, 17), (4, 19), (5, 23)]):
        row = rows_at + slot * layout.size("cyp_slot_row")
        layout.write_to(fd, "cyp_slot_row", row, word=word(state, 0, records, 0))
    assert count_undelivered(fd, slots) == 5 + 7 + 11 + 13
    with pytest.raises(ValueError, match="slots"):
        count_undelivered(fd, 3)
    os.close(fd)


def test_held_is_closed_once() -> None:
    before = len(os.listdir("/proc/self/fd"))
    held = Held(1, {}, [-1, *(null() for _ in range(5))])
    held.close()
    held.close()
    assert len(os.listdir("/proc/self/fd")) == before


# ---------------------------------------------------------------- a sender whose process does not end

ENDLESS = """
import ctypes, sys, threading
threading.Thread(target=sys.stdin.read).start()
if sys.argv[1] == "main thread ends":
    ctypes.CDLL(None).pthread_exit(None)
"""


class Endless(Child):
    """A process that SIGKILL does not end, as if a thread of it waited in close()."""

    def kill(self) -> None:
        pass


@pytest.fixture
def endless() -> Iterator[Callable[[str], Endless]]:
    with contextlib.ExitStack() as opened:

        def start(how: str) -> Endless:
            process = opened.enter_context(
                subprocess.Popen([sys.executable, "-c", ENDLESS, how], stdin=subprocess.PIPE)
            )
            mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            mine.setblocking(False)
            opened.enter_context(theirs)
            opened.enter_context(mine)
            if how == "main thread ends":
                wait_until(lambda: state_of(process.pid) == "Z", 20, "the end of the main thread")
            return Endless(PeerProcess(process.pid, os.pidfd_open(process.pid), mine, None), started=True)

        yield start


def supervisor_of(child: Child) -> Supervisor:
    found = Supervisor.__new__(Supervisor)
    found.child, found.log, found.over, found.came_up = child, logging.getLogger("test"), False, True
    found.handover = Handover(1.0)
    found.post = SimpleNamespace()  # type: ignore[assignment]
    found.service_manager = ServiceManager("", 0.0, found.log)
    found.delay_s = 0.0
    return found


def test_takeover_from_a_sender_whose_process_does_not_end(
    endless: Callable[[str], Endless], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The sender may still send records if its main thread has not ended: then nobody takes over."""
    handed: list[socket.socket] = []
    monkeypatch.setattr(supervisor, "END_S", 0.1)
    monkeypatch.setattr(upgrade, "hand_over", lambda successor, post, handover: handed.append(successor))
    for how, taken in (("main thread ends", True), ("main thread stays", False)):
        handed.clear()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        child = endless(how)
        found = supervisor_of(child)
        found._hand_over(child, theirs)
        with ours:
            ours.settimeout(5)
            assert ours.recv(1) == b""
        assert [bool(handed), found.child is None] == [taken, taken]
        assert "its process does not end" in caplog.text
        caplog.clear()
        if not taken:
            child.close()


def test_sender_whose_process_does_not_end_is_replaced(
    endless: Callable[[str], Endless], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "END_S", 0.0)
    monkeypatch.setattr(supervisor, "LOOK_S", 0.0)
    child = endless("main thread ends")
    found = supervisor_of(child)
    found._check_liveness(child)
    assert found.child is child
    found._check_liveness(child)
    assert found.child is None and found.handover.restarts == 1
