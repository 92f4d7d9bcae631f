"""Tests when a sender ends: idle, drained, told to stop. The control plane runs around a fake engine."""

import contextlib
import os
import socket
from collections.abc import Callable

import pytest
from control_rig import Sender, hung_up

from cyproducer.host import control_messages
from cyproducer.sender.control import ending, facts, listening


def test_idle_exit_waits_for_the_largest_timeout_asked_for(make: Callable[..., Sender]) -> None:
    sender = make(idle_timeout_s=0.5)
    _, first = sender.attach(settings={"sender_idle_timeout_ms": 7000})
    _, second = sender.attach(settings={"sender_idle_timeout_ms": 10})
    first.close()
    second.close()
    sender.turn()
    assert 6900 < sender.server.timeout_ms() <= 7001
    sender.turn(6.9)
    assert not sender.server.finished
    sender.turn(0.2)
    assert sender.server.finished


def test_no_idle_exit_with_a_front_end_or_undelivered_batches(make: Callable[..., Sender]) -> None:
    sender = make(idle_timeout_s=0.0)
    sender.connect()
    sender.turn()
    assert not sender.server.finished  # a process is in the middle of a handshake
    _, client = sender.attach()
    sender.turn(100)
    assert not sender.server.finished
    assert sender.server.timeout_ms() == -1
    sender.engine.pending = 3
    client.close()
    sender.turn(100)
    assert not sender.server.finished
    assert 0 < sender.server.timeout_ms() <= 51
    sender.engine.pending = 0
    sender.turn()
    sender.turn(1.1)
    assert sender.server.finished


def test_sender_waits_for_its_first_front_end(make: Callable[..., Sender]) -> None:
    sender = make(idle_timeout_s=0.0)
    sender.turn()
    assert not sender.server.finished
    assert sender.server.timeout_ms() > 500
    sender.turn(1.1)
    assert sender.server.finished


def test_sender_without_idle_timeout_stays(make: Callable[..., Sender]) -> None:
    sender = make(idle_timeout_s=None)
    _, client = sender.attach(settings={"sender_idle_timeout_ms": 0})
    client.close()
    sender.turn(1e6)
    assert not sender.server.finished
    assert sender.server.timeout_ms() == -1


def test_process_that_connects_at_the_last_moment_is_served(make: Callable[..., Sender]) -> None:
    sender = make(idle_timeout_s=1.0)
    sender.connect()  # in the listener's queue
    sender.now += 1.5
    sender.server.turn([])
    assert not sender.server.finished


def test_drain_refuses_and_serves_until_all_are_gone(make: Callable[..., Sender]) -> None:
    sender = make()
    _, client = sender.attach()
    sender.engine.pending = 1
    sender.ending.drain("SIGTERM")
    assert sender.attach()[0]["error"] == "DRAINING"
    control_messages.send(client, {"op": "want", "topic": "t"})
    sender.turn(1)
    assert sender.engine.wanted == [(1, "t")]
    client.close()
    sender.turn(1)
    assert not sender.server.finished
    sender.engine.pending = 0
    sender.turn()
    assert sender.server.finished


def test_drain_ends_beside_front_ends_that_have_nothing_undelivered(make: Callable[..., Sender]) -> None:
    """It does not end before their arenas were closed and the records found there are delivered."""
    sender = make()
    _, client = sender.attach()
    sender.ending.drain("SIGTERM")
    sender.engine.closing = True
    sender.turn()
    assert sender.engine.released == [1]
    sender.engine.closing, sender.engine.pending = False, 1
    sender.turn()
    assert not sender.server.finished
    assert 0 < sender.server.timeout_ms() <= ending.DRAIN_POLL_S * 1000 + 1
    sender.engine.pending = 0
    sender.turn()
    assert sender.server.finished
    assert sender.engine.released == [1]
    sender.server.close()
    sender.server.close = lambda: []
    assert control_messages.receive(client)[0] == {"op": "ended"}


@pytest.mark.parametrize("brokers", ["answer", "do not answer"])
def test_busy_front_ends_are_released_if_the_brokers_answer(make: Callable[..., Sender], brokers: str) -> None:
    """A released front-end waits in send(): if the brokers do not answer, none is released before the deadline."""
    sender = make()
    sender.attach()
    sender.engine.pending, sender.engine.records = 1, 7
    sender.ending.drain("SIGTERM")
    sender.turn(ending.RELEASE_AFTER_S / 2)
    assert sender.engine.released == []
    sender.engine.records += brokers == "answer"
    sender.turn(ending.RELEASE_AFTER_S)
    assert sender.engine.released == ([1] if brokers == "answer" else [])
    assert not sender.server.finished


def test_front_ends_are_released_only_after_the_supervisor_knows_of_the_drain(make: Callable[..., Sender]) -> None:
    """A successor that does not drain would not serve released front-ends."""
    sender = make()
    sender.attach()
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setblocking(False)
    sender.line.begin(ours, os.getpid(), -1)
    with contextlib.suppress(BlockingIOError):
        while True:
            control_messages.send(ours, {"op": "answered", "attach_id": 0})
    sender.ending.drain("SIGTERM")
    sender.turn()
    assert sender.engine.released == []
    while control_messages.receive(theirs)[0]["op"] != "draining":
        sender.turn()
    sender.turn()
    assert sender.engine.released == [1]
    sender.line.end()
    theirs.close()


def test_processes_that_come_during_the_drain_wait_on_their_connection(
    make: Callable[..., Sender], caplog: pytest.LogCaptureFixture
) -> None:
    sender = make()
    sender.engine.pending = 1
    sender.ending.drain("SIGTERM")
    with caplog.at_level("INFO"):
        waiting = [sender.attach() for _ in range(3)]
        sender.turn(2 * listening.HANDSHAKE_S)
        assert [answer["error"] for answer, _ in waiting] == ["DRAINING"] * 3
        for _, client in waiting:
            client.setblocking(False)
            with pytest.raises(BlockingIOError):
                client.recv(1)
        sender.server.close()
        sender.server.close = lambda: []
    assert all(hung_up(client) for _, client in waiting)
    (record,) = [record for record in caplog.records if "waits for the end" in record.getMessage()]
    assert record.levelname == "INFO"
    assert not any("a connection was closed" in record.getMessage() for record in caplog.records)


def test_drain_has_a_deadline(make: Callable[..., Sender], caplog: pytest.LogCaptureFixture) -> None:
    sender = make()
    sender.attach()
    sender.engine.pending = 1
    sender.ending.drain("SIGTERM")
    sender.turn(facts.DRAIN_S - 0.1)
    assert not sender.server.finished
    sender.turn(0.2)
    assert sender.server.finished
    assert "the drain reached its time limit" in caplog.text


def test_waiting_connections_of_an_ending_sender_are_told_to_try_again(make: Callable[..., Sender]) -> None:
    sender = make()
    late = sender.connect()
    sender.server.close()
    assert control_messages.receive(late)[0]["error"] == "DRAINING"
    sender.server.close = lambda: []  # it is closed


def test_stop_drains_and_hangs_up_last(make: Callable[..., Sender]) -> None:
    sender = make()
    answer, _, client = sender.ask({"op": "stop"})
    assert answer == {"ok": True}
    sender.turn()
    assert sender.server.finished
    (peer,) = sender.server.close()
    sender.server.close = lambda: []
    client.setblocking(False)
    with pytest.raises(BlockingIOError):
        client.recv(10)
    peer.close()
    assert client.recv(10) == b""


def test_no_idle_exit_while_the_transaction_of_an_ended_process_is_aborted(make: Callable[..., Sender]) -> None:
    sender = make(idle_timeout_s=0.0)
    _, client = sender.attach()
    client.close()
    sender.engine.transactional = {1: True}
    sender.turn(100)
    assert not sender.server.finished
    assert 0 < sender.server.timeout_ms() <= 51
    sender.engine.transactional = {}
    sender.turn()
    sender.turn(1.1)
    assert sender.server.finished


def test_a_drain_waits_for_open_transactions(make: Callable[..., Sender]) -> None:
    """A transactional producer is released between two transactions, and the others when no transaction is open."""
    sender = make()
    for _ in range(3):
        sender.attach()
    sender.engine.transactional = {1: True, 2: False, 0: True}
    sender.ending.drain("SIGTERM")
    sender.turn(1)
    assert sender.engine.released == [2]
    sender.turn(1)
    assert not sender.server.finished
    sender.engine.transactional = {1: False, 2: False, 0: True}
    sender.turn(1)
    assert sorted(sender.engine.released) == [1, 2, 3]
    sender.turn()
    assert sender.server.finished


def test_open_transactions_are_waited_for_until_the_deadline(
    make: Callable[..., Sender], caplog: pytest.LogCaptureFixture
) -> None:
    sender = make()
    sender.attach()
    sender.attach()
    sender.engine.transactional = {1: True}
    sender.ending.drain("SIGTERM")
    sender.turn(facts.DRAIN_S - ending.RELEASE_BEFORE_S - 0.1)
    assert sender.engine.released == []
    sender.turn(0.2)
    assert sender.engine.released == [2]
    assert not sender.server.finished
    sender.turn(ending.RELEASE_BEFORE_S)
    assert sender.server.finished
    assert "open transactions fail" in caplog.text
