"""Tests the control plane's part of the commands of transactional producers: who may send them, and their fields."""

import os
import socket
from collections.abc import Callable
from typing import Any

import pytest
from control_rig import Sender

from cyproducer.host import control_messages
from cyproducer.sender.control import listening
from cyproducer.transaction_states import TransactionState

COMMAND: dict[str, Any] = {
    "op": "transaction",
    "attach_id": 1,
    "number": 1,
    "do": "commit",
    "producer_id": 7,
    "epoch": 0,
}
GROUP: dict[str, Any] = {"group_id": "g", "generation_id": 3, "member_id": "m", "group_instance_id": "i"}
ROW: list[Any] = ["t", 0, 5, -1, ""]
ANSWER = {"ok": True, "producer_id": 7, "epoch": 1}


def send_on(client: socket.socket, sender: Sender, **fields: Any) -> None:
    """Send a command with the key of its front-end."""
    control_messages.send(client, {**COMMAND, "key": sender.keys[1], **fields})


def send(sender: Sender, **fields: Any) -> socket.socket:
    client = sender.connect()
    send_on(client, sender, **fields)
    sender.turn()
    return client


def answer_to(sender: Sender, **fields: Any) -> dict[str, Any]:
    answer, _ = control_messages.receive(send(sender, **fields))
    assert answer is not None
    return answer


def carry_out(sender: Sender, client: socket.socket, number: int = -1) -> dict[str, Any] | None:
    """Let the engine answer a command. Return what its client gets."""
    sender.engine.commands[number][2](ANSWER)
    return control_messages.receive(client)[0]


@pytest.fixture
def sender(make: Callable[..., Sender]) -> Sender:
    sender = make(idle_timeout_s=None)
    sender.attach(settings={"transactional_id": "orders"})
    return sender


def test_the_answer_comes_when_the_command_is_done(sender: Sender) -> None:
    client = send(sender)
    sender.turn(10 * listening.HANDSHAKE_S)
    ((attach_id, fields, answer),) = sender.engine.commands
    assert attach_id == 1
    assert fields == {"number": 1, "do": "commit", "producer_id": 7, "epoch": 0, "group": {}, "offsets": []}
    answer(ANSWER)
    assert control_messages.receive(client) == (ANSWER, [])


@pytest.mark.parametrize("key", [None, "", 5, "0" * 32, "é"])
def test_a_process_without_the_key_may_not_command(sender: Sender, key: object) -> None:
    """Two processes of one user in PID namespaces that the sender does not see have the same pid for it: 0."""
    answer = answer_to(sender, key=key)
    assert answer["error"] == "REFUSED"
    assert "no attached front-end" in answer["message"]
    assert sender.engine.commands == []


def test_no_answer_but_that_to_the_attach_has_the_key(sender: Sender) -> None:
    assert len(sender.keys[1]) == 32
    assert sender.keys[1] not in str(sender.control.status.describe())
    sender.attach()
    assert sender.keys[2] != sender.keys[1]
    assert answer_to(sender, attach_id=2, key="")["error"] == "REFUSED"


def test_a_connection_may_send_several_commands(sender: Sender) -> None:
    client = send(sender)
    assert carry_out(sender, client) == ANSWER
    send_on(client, sender, number=2)
    sender.turn()
    assert carry_out(sender, client) == ANSWER


def has_hung_up(client: socket.socket) -> bool:
    client.setblocking(False)
    try:
        return control_messages.receive(client)[0] is None
    except BlockingIOError:
        return False


def test_a_newer_connection_replaces_one_that_waits_for_nothing(sender: Sender) -> None:
    former = send(sender)
    assert carry_out(sender, former) == ANSWER
    newer = send(sender, number=2)
    assert has_hung_up(former)
    newest = send(sender, number=2)  # the front-end repeats a command whose answer takes long
    assert carry_out(sender, newer, 1) == ANSWER
    assert has_hung_up(newer)
    assert not has_hung_up(newest)


def test_a_connection_for_commands_ends_with_its_front_end(make: Callable[..., Sender]) -> None:
    sender = make(idle_timeout_s=None)
    _, attached = sender.attach(settings={"transactional_id": "orders"})
    client = send(sender)
    assert carry_out(sender, client) == ANSWER
    attached.close()
    sender.turn()
    assert has_hung_up(client)
    assert not sender.table.peers


def test_a_connection_has_the_commands_of_one_front_end(sender: Sender) -> None:
    sender.attach(settings={"transactional_id": "invoices"})
    client = send(sender)
    send_on(client, sender, attach_id=2, key=sender.keys[2])
    sender.turn()
    answer, _ = control_messages.receive(client)
    assert answer is not None and answer["error"] == "MALFORMED"
    assert len(sender.engine.commands) == 1


@pytest.mark.parametrize("at_once", [False, True])
def test_only_a_flood_of_commands_is_paused(sender: Sender, at_once: bool) -> None:
    """A command that waits for brokers cannot come in a flood."""
    client = send(sender)
    sender.engine.commands.pop()[2](ANSWER)
    if at_once:
        sender.engine.command_transaction = lambda attach_id, fields, answer: answer(ANSWER)
    for number in range(2, 200):
        send_on(client, sender, number=number)
        sender.turn()
        for _, _, answer in sender.engine.commands:
            answer(ANSWER)
        sender.engine.commands.clear()
        if sender.table._budget.until:
            break
    assert bool(sender.table._budget.until) is at_once


def test_a_hang_up_is_not_passed_on(sender: Sender) -> None:
    send(sender).close()
    sender.turn()
    other = sender.connect()  # it may get the same descriptor
    sender.turn()
    sender.engine.commands[0][2](ANSWER)
    other.setblocking(False)
    with pytest.raises(BlockingIOError):
        control_messages.receive(other)


def test_offsets_come_with_their_group(sender: Sender) -> None:
    rows = [["t", 0, 5, -1, ""], ["t", 1, 2**63 - 1, 2**31 - 1, "x" * 32_767]]
    send(sender, do="offsets", group={**GROUP, "more": 1}, offsets=rows)
    send(sender, do="offsets", number=2, group={**GROUP, "group_instance_id": None}, offsets=rows)
    first, second = (fields for _, fields, _ in sender.engine.commands)
    assert first["group"] == GROUP
    assert first["offsets"] == [tuple(row) for row in rows]
    assert second["group"]["group_instance_id"] is None


@pytest.mark.parametrize("name", ["attach_id", "number", "do", "producer_id", "epoch"])
@pytest.mark.parametrize("value", [None, "1", 1.0, True, -2, 1 << 63, [], {}])
def test_each_field_is_checked(sender: Sender, name: str, value: object) -> None:
    answer = answer_to(sender, **{name: value})
    assert answer["error"] == "MALFORMED"
    assert answer["message"].endswith(f"no valid {name}")
    assert sender.engine.commands == []


@pytest.mark.parametrize(("name", "value"), [("epoch", 1 << 15), ("number", 0), ("attach_id", 0), ("do", "begin")])
def test_each_field_has_a_range(sender: Sender, name: str, value: object) -> None:
    assert answer_to(sender, **{name: value})["message"].endswith(f"no valid {name}")


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("group_id", [None, 5, "x" * 32_768, "\ud800"]),
        ("generation_id", [None, "1", True, -2, 1 << 31]),
        ("member_id", [None, 5, "é" * 20_000]),
        ("group_instance_id", [5, "\ud800"]),
    ],
)
def test_each_field_of_a_group_is_checked(sender: Sender, name: str, values: list[Any]) -> None:
    for value in values:
        answer = answer_to(sender, do="offsets", offsets=[ROW], group={**GROUP, name: value})
        assert answer["message"].endswith(f"no valid {name}")
    assert answer_to(sender, do="offsets", offsets=[ROW], group=[])["message"].endswith("no valid group")


@pytest.mark.parametrize(
    "rows",
    [
        None,
        {},
        [],
        [[]],
        [ROW, ROW],
        [[*ROW, 1]],
        [ROW[:4]],
        [["a b", 0, 5, -1, ""]],
        [[None, 0, 5, -1, ""]],
        [["t", -1, 5, -1, ""]],
        [["t", 1 << 31, 5, -1, ""]],
        [["t", 0, -1, -1, ""]],
        [["t", 0, 1 << 63, -1, ""]],
        [["t", 0, 5, -2, ""]],
        [["t", 0, 5, 1.5, ""]],
        [["t", 0, True, -1, ""]],
        [["t", 0, 5, -1, None]],
        [["t", 0, 5, -1, "x" * 32_768]],
        [["t", 0, 5, -1, "\udfff"]],
    ],
)
def test_each_offset_is_checked(sender: Sender, rows: object) -> None:
    assert answer_to(sender, do="offsets", offsets=rows, group=GROUP)["message"].endswith("no valid offsets")
    assert sender.engine.commands == []


def test_only_the_process_of_the_front_end_may_send_its_commands(
    sender: Sender, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert answer_to(sender, attach_id=2)["error"] == "REFUSED"
    uid = os.getuid()
    monkeypatch.setattr(control_messages, "peer_credentials", lambda sock: (os.getpid() + 1, uid, uid))
    assert answer_to(sender)["error"] == "REFUSED"
    for pid, other in ((0, uid + 1), (os.getpid(), uid + 1), (0, uid)):
        found = pid, other, uid
        monkeypatch.setattr(control_messages, "peer_credentials", lambda sock, found=found: found)
        assert answer_to(sender)["error"] == "REFUSED"
    assert sender.engine.commands == []
    monkeypatch.undo()
    send(sender)
    assert len(sender.engine.commands) == 1


def test_commands_from_a_pid_namespace_that_is_not_visible(
    make: Callable[..., Sender], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel says pid 0. A process that has the claimed pid here is another one."""
    uid = os.getuid()
    sender = make(idle_timeout_s=None, allow_uids=[uid + 1])
    monkeypatch.setattr(control_messages, "peer_credentials", lambda sock: (0, uid, uid))
    sender.attach(settings={"transactional_id": "orders"})
    assert sender.control.status.describe()["front_ends"][0]["pid"] == os.getpid()
    for found in ((os.getpid(), uid, uid), (0, uid + 1, uid)):
        monkeypatch.setattr(control_messages, "peer_credentials", lambda sock, found=found: found)
        assert answer_to(sender)["error"] == "REFUSED"
    monkeypatch.setattr(control_messages, "peer_credentials", lambda sock: (0, uid, uid))
    send(sender)
    assert len(sender.engine.commands) == 1


def test_a_front_end_does_not_send_commands_on_its_own_connection(sender: Sender) -> None:
    _, client = sender.attach()
    send_on(client, sender, attach_id=2)
    sender.turn()
    answer, _ = control_messages.receive(client)
    assert answer is not None and answer["error"] == "MALFORMED"


def test_commands_are_taken_during_a_drain(sender: Sender) -> None:
    sender.engine.transactional = {1: True}
    sender.ending.drain("SIGTERM")
    sender.turn()
    client = send(sender)
    assert carry_out(sender, client) == ANSWER


@pytest.mark.parametrize(
    "settings",
    [
        {"transactional_id": ""},
        {"transactional_id": "x" * 256},
        {"transactional_id": "é" * 128},
        {"transactional_id": 7},
        {"transactional_id": "\ud800"},
        {"transactional_id": "a", "acks": 1},
        {"transactional_id": "a", "enable_idempotence": False},
        {"transaction_timeout_ms": 0},
        {"transaction_timeout_ms": 1 << 31},
        {"transaction_timeout_ms": 1.5},
        {"transaction_timeout_ms": None},
        {"joined_transaction": [7, 0, True]},
        {"transactional_id": "a", "joined_transaction": {}},
        {"transactional_id": "a", "joined_transaction": [7, 0]},
        {"transactional_id": "a", "joined_transaction": [-1, 0, True]},
        {"transactional_id": "a", "joined_transaction": [1 << 63, 0, True]},
        {"transactional_id": "a", "joined_transaction": [7, 1 << 15, True]},
        {"transactional_id": "a", "joined_transaction": [7, 0, 1]},
    ],
)
def test_settings_of_transactions_are_checked(make: Callable[..., Sender], settings: dict[str, Any]) -> None:
    answer, _ = make().attach(settings=settings)
    assert answer["error"] == "MALFORMED"
    assert any(name in answer["message"] for name in settings)


def test_settings_of_transactions_reach_the_engine(
    make: Callable[..., Sender], monkeypatch: pytest.MonkeyPatch
) -> None:
    sender = make()
    real, found = sender.engine.attach, []
    monkeypatch.setattr(sender.engine, "attach", lambda *given: found.append(given[2]) or real(*given))
    sender.attach()
    sender.attach(settings={"transactional_id": "x" * 255, "transaction_timeout_ms": 5})
    sender.attach(settings={"transactional_id": "a", "joined_transaction": [7, 3, True]})
    names = ("transactional_id", "transaction_timeout_ms", "joined_transaction")
    assert [tuple(given[name] for name in names) for given in found] == [
        (None, 60_000, None),
        ("x" * 255, 5, None),
        ("a", 60_000, [7, 3, True]),
    ]


def test_a_full_table_of_transactions_is_a_refusal(
    make: Callable[..., Sender], monkeypatch: pytest.MonkeyPatch
) -> None:
    sender = make()

    def refuse(*given: Any) -> None:
        os.close(given[0])
        os.close(given[3])
        raise OverflowError("too many transactional producers: one sender handles at most 1024")

    monkeypatch.setattr(sender.engine, "attach", refuse)
    answer, _ = sender.attach(settings={"transactional_id": "a"})
    assert answer["error"] == "REFUSED"
    assert answer["message"].startswith("too many transactional producers")


def test_the_status_has_the_transactions(sender: Sender) -> None:
    shown = {"transactional_id": "orders", "phase": "open", "phase_ms": 20, "participants": None}
    row = {"transactional_id": "orders", "attach_id": 1, "state_ms": 20, "failed": 0, "participants": None}
    row["state"] = TransactionState.IN_TRANSACTION
    sender.engine.transactions = [
        row,
        {**row, "attach_id": 9, "failed": 90},
        {**row, "attach_id": 0, "participants": 3},
    ]
    first, second, third = sender.control.status.describe()["transactions"]
    assert first == {**shown, "app": "test", "failed": None}
    assert (second["app"], second["failed"]) == ("?", "PRODUCER_FENCED")
    assert (third["app"], third["participants"]) == (None, 3)
