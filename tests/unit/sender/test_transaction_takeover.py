"""Tests what becomes of transactions when their front-end or the sender ends, at each step of the control plane."""

from collections.abc import Callable
from typing import Any

import pytest
from kfake.codes import ADD_PARTITIONS_TO_TXN, END_TXN, INIT_PRODUCER_ID
from transaction_rig import GROUP, NODES, Producer, Rig, SenderEndedError

from cyproducer.codes import PRODUCER_FENCED
from cyproducer.protocol.kafka_messages import ApiKey
from cyproducer.sender.cluster.transaction_failures import TRANSACTION_ABORTED
from cyproducer.transaction_states import TransactionState

COORDINATOR_LOAD_IN_PROGRESS, COORDINATOR_NOT_AVAILABLE, INVALID_TXN_STATE, FENCED = 14, 15, 48, 90
STEPS_MAX = 60


# ---------------------------------------------------------------------------- front-ends that end


def test_an_open_transaction_of_an_ended_front_end_is_aborted(
    rig: Rig, producer: Producer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    producer.send()
    rig.asked()
    producer.end()
    rig.run(1)
    assert rig.table.removed == [producer.index]
    assert rig.transactions.ids["a"].ends == ["abort"]
    assert rig.asked() == ([END_TXN] if rig.v2 else [END_TXN, INIT_PRODUCER_ID])
    assert "aborted the transaction of a, whose process has ended" in caplog.text
    assert not rig.brokers.users


@pytest.mark.parametrize("began", [True, False], ids=["open at the broker", "nothing added yet"])
def test_a_late_request_of_a_killed_sender_begins_no_transaction_after_the_end(
    rig: Rig, producer: Producer, began: bool
) -> None:
    """It was left in a socket, and arrives after the front-end has ended and its transaction, too."""
    if began:
        producer.send()
    producer.row.state = TransactionState.IN_TRANSACTION
    known = {"transactional_id": "a", "producer_id": producer.known[0], "producer_epoch": producer.known[1]}
    producer.end()
    rig.run(1)
    assert rig.table.removed == [producer.index]
    late = {**known, "topics": [{"name": "t", "partitions": [1]}]}
    rig.transactions.answer(ADD_PARTITIONS_TO_TXN, 3, late, 0)
    rig.transactions.verify("a", *producer.known, 12, ("t", 1))
    assert rig.transactions.ids["a"].state != "Ongoing"


def test_a_newer_producer_may_have_fenced_the_ended_one_already(rig: Rig, producer: Producer) -> None:
    producer.send()
    rig.codes(INIT_PRODUCER_ID, PRODUCER_FENCED)
    producer.end()
    rig.run(1)
    assert rig.table.removed == [producer.index]
    assert not rig.brokers.users


@pytest.mark.parametrize(
    "state", [TransactionState.UNINITIALIZED, TransactionState.READY, TransactionState.FATAL_ERROR]
)
def test_a_row_without_a_transaction_is_freed_without_a_request(
    rig: Rig, producer: Producer, state: TransactionState
) -> None:
    producer.row.state = state
    producer.row.in_use = True
    producer.end()
    rig.run(1)
    assert rig.table.removed == []
    producer.row.in_use = False
    rig.run(1)
    assert rig.table.removed == [producer.index]
    assert rig.asked() == []


def test_an_abort_waits_for_batches_in_flight(rig: Rig, producer: Producer) -> None:
    producer.send()
    producer.row.busy = True
    producer.end()
    rig.run(1)
    assert rig.transactions.ids["a"].ends == []
    producer.come_to_rest(0.2)
    assert rig.transactions.ids["a"].ends == ["abort"]


@pytest.mark.parametrize("do", ["commit", "abort"])
def test_what_ends_a_transaction_is_finished_after_the_end_of_its_front_end(
    rig: Rig, producer: Producer, do: str
) -> None:
    producer.send()
    rig.codes(ApiKey.END_TXN, *[COORDINATOR_LOAD_IN_PROGRESS] * 5)
    answers = producer.ask(do)
    rig.run(0.2)
    producer.end()
    rig.run(10)
    assert rig.transactions.ids["a"].ends == [do]
    assert rig.table.removed == [producer.index]
    assert answers[0]["ok"]


@pytest.mark.parametrize(("do", "api"), [("init", ApiKey.INIT_PRODUCER_ID), ("offsets", ApiKey.TXN_OFFSET_COMMIT)])
def test_a_command_without_effect_is_stopped_when_its_front_end_ends(
    rig: Rig, producer: Producer, do: str, api: ApiKey
) -> None:
    rig.codes(api, *[COORDINATOR_LOAD_IN_PROGRESS] * 50)
    answers = producer.ask(do, offsets=[("t", 0, 5, -1, "")], group=GROUP)
    rig.run(0.5)
    producer.end()
    rig.run(1)
    assert rig.table.removed == [producer.index]
    assert answers[0]["error"] == "REFUSED"
    assert len(rig.coordinators.codes[api]) > 40


def test_partitions_are_not_added_for_an_ended_front_end() -> None:
    rig = Rig(v2=False)
    producer = rig.producer()
    producer.do("init")
    rig.codes(ApiKey.ADD_PARTITIONS_TO_TXN, *[COORDINATOR_LOAD_IN_PROGRESS] * 50)
    producer.row.to_add = [("t", 0)]
    producer.event()
    rig.run(2)
    producer.end()
    rig.run(10)
    assert rig.table.removed == [producer.index]
    assert rig.transactions.ids["a"].ends == []


def test_an_end_that_is_fenced_is_logged_and_the_row_is_freed(
    rig: Rig, producer: Producer, caplog: pytest.LogCaptureFixture
) -> None:
    producer.send()
    rig.codes(ApiKey.END_TXN, 49)
    producer.end()
    rig.run(1)
    assert "the transaction of a, whose process has ended, has no known end: INVALID_PRODUCER_ID_MAPPING" in caplog.text
    assert rig.table.removed == [producer.index]


@pytest.mark.parametrize("down", [(2,), NODES], ids=["the coordinator", "all brokers"])
def test_the_end_of_a_transaction_is_given_up_when_its_time_is_over(
    rig: Rig, producer: Producer, caplog: pytest.LogCaptureFixture, down: tuple[int, ...]
) -> None:
    producer.send()
    rig.brokers.down.update(down)
    for node in down:
        rig.close(node)
    producer.end()
    rig.run(55)
    assert rig.table.removed == []
    rig.run(10)
    assert rig.table.removed == [producer.index]
    assert "could not be ended: the broker aborts it" in caplog.text
    assert not rig.brokers.users


@pytest.mark.parametrize("fault", ["all brokers are down", "no coordinator"])
def test_a_producer_that_ended_before_it_had_a_producer_id_leaves_nothing(rig: Rig, fault: str) -> None:
    if fault == "no coordinator":
        rig.codes(ApiKey.FIND_COORDINATOR, *[COORDINATOR_NOT_AVAILABLE] * 1000)
    else:
        rig.brokers.down.update(NODES)
    producer = rig.producer()
    producer.ask("init")
    rig.run(5)
    assert rig.table.rows()
    producer.end()
    rig.run(300)
    assert rig.table.rows() == []


def test_an_init_waits_for_the_end_of_the_former_transaction(rig: Rig, producer: Producer) -> None:
    producer.send()
    rig.codes(ApiKey.END_TXN, *[COORDINATOR_LOAD_IN_PROGRESS] * 20)
    producer.ask("commit")
    rig.run(0.1)
    producer.end()
    other = rig.producer()
    answers = other.ask("init")
    rig.run(1)
    assert answers == []
    rig.run(5)
    assert answers[0]["ok"]
    assert rig.transactions.ids["a"].ends == ["commit"]


def test_a_row_that_is_used_again_has_a_state_of_its_own(rig: Rig, producer: Producer) -> None:
    producer.send()
    producer.do("commit")
    producer.end()
    rig.run(1)
    producer.rig.manager.on_event(producer.index)  # an event about the row that is free
    other = rig.producer("b")
    assert other.index == 0
    assert other.do("init")["ok"] and other.number == 1


# ---------------------------------------------------------------------------- another sender, without the state


def at_another_sender(rig: Rig, producer: Producer, known: tuple[int, int]) -> Producer:
    """Return the producer at a sender without the state of the former one. It knows this producer id and epoch."""
    del rig.table.table[producer.index]
    rig.successor()
    again = rig.producer()
    again.known = known
    return again


@pytest.mark.parametrize("is_done", [False, True], ids=["not done", "done already"])
@pytest.mark.parametrize("do", ["commit", "abort"])
def test_another_sender_takes_the_end_of_a_transaction_up(rig: Rig, producer: Producer, do: str, is_done: bool) -> None:
    producer.send()
    known = producer.known
    if is_done:
        producer.row.needs_epoch = do == "abort"
        assert producer.do(do)["ok"]
    again = at_another_sender(rig, producer, known)
    answer = again.do(do)
    assert answer["ok"] and rig.transactions.ids["a"].ends == [do]
    assert answer["epoch"] > known[1]  # this sender does not know the sequences
    assert (again.row.state, again.row.failed, again.row.v2) == (TransactionState.READY, 0, rig.v2)
    again.send()
    assert again.do("commit")["ok"]


def test_an_abort_is_fenced_by_a_newer_producer_at_another_sender(rig: Rig, producer: Producer) -> None:
    producer.send()
    again, newer = at_another_sender(rig, producer, producer.known), rig.producer()
    assert newer.do("init")["ok"]
    answer = again.do("abort")
    assert (answer["kind"], answer["code"]) == ("fatal", FENCED)
    newer.send()
    assert newer.do("commit")["ok"]


@pytest.mark.parametrize("do", ["commit", "abort"])
def test_a_successor_has_raised_the_epoch_before_another_sender(rig: Rig, producer: Producer, do: str) -> None:
    """Without KIP-890, nobody can tell then what has become of the transaction: its process is told so."""
    producer.send()
    known = producer.known
    states = {"commit": TransactionState.COMMITTING_TRANSACTION, "abort": TransactionState.ABORTING_TRANSACTION}
    producer.row.state = states[do]
    rig.successor()
    rig.run(30)
    assert producer.ends == [do]
    answer = at_another_sender(rig, producer, known).do(do)
    if do == "abort" or rig.v2:
        assert answer["ok"]
    else:
        assert (answer["kind"], answer["code"]) == ("fatal", FENCED)


def test_the_transaction_has_timed_out_meanwhile(rig: Rig, producer: Producer) -> None:
    producer.send()
    rig.transactions.time_out("a", rig.v2)
    again = at_another_sender(rig, producer, producer.known)
    answer = again.do("commit")
    assert (answer["kind"], answer["code"]) == ("fatal", INVALID_TXN_STATE if rig.v2 else FENCED)


def test_an_abort_of_a_producer_that_knows_no_id_gets_one(rig: Rig) -> None:
    producer = rig.producer()
    assert producer.do("abort") == {"ok": True, "producer_id": 7001, "epoch": 0}
    assert rig.asked() == [INIT_PRODUCER_ID]


# ---------------------------------------------------------------------------- senders that end at each step


def end_sender_at(rig: Rig, step: int) -> None:
    """Let the sender end at a step: before or after a change of the table, or before or after a request arrives."""
    left = step

    def count() -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise SenderEndedError

    rig.table.on_change = rig.brokers.on_request = count


def killed_at(rig: Rig, producer: Producer, do: str, step: int, **fields: Any) -> bool:
    """Kill the sender at a step of the command, let a successor continue, and repeat the command; False: it had ended.

    The row is marked as failed before an abort, as the front-end does.
    """
    end_sender_at(rig, step)
    try:
        answers = producer.ask(do, **fields)
        rig.run(60, until=lambda: bool(answers))
    except SenderEndedError:
        rig.successor()
        return True
    rig.table.on_change = rig.brokers.on_request = lambda: None
    return False


def at_each_step(
    make: Callable[[], Rig], prepare: Callable[[Producer], None], do: str, **fields: Any
) -> list[tuple[Rig, Producer]]:
    """Return a rig for each step at which its sender was killed."""
    found = []
    for step in range(STEPS_MAX):
        rig = make()
        producer = rig.producer()
        producer.do("init")
        prepare(producer)
        if not killed_at(rig, producer, do, step, **fields):
            assert len(found) > 4
            return found
        found.append((rig, producer))
    raise AssertionError("too many steps")


def begin(producer: Producer) -> None:
    producer.send()


def begin_and_upgrade(producer: Producer) -> None:
    producer.send()
    producer.rig.v2 = True


def begin_and_fail(producer: Producer) -> None:
    producer.send()
    producer.row.failed, producer.row.needs_epoch = TRANSACTION_ABORTED, True


CASES = [
    ("commit", begin, True),
    ("commit", begin, False),
    ("commit", begin_and_upgrade, False),
    ("abort", begin, True),
    ("abort", begin, False),
    ("abort", begin_and_upgrade, False),
    ("abort", begin_and_fail, True),
    ("abort", begin_and_fail, False),
]


@pytest.mark.parametrize("waits", [False, True], ids=["at once", "after the successor"])
@pytest.mark.parametrize(("do", "prepare", "v2"), CASES)
def test_a_successor_finishes_what_ends_a_transaction(
    do: str, prepare: Callable[[Producer], None], v2: bool, waits: bool
) -> None:
    for rig, producer in at_each_step(lambda: Rig(v2=v2), prepare, do):
        if waits:
            rig.run(30)
            assert producer.row.state in (TransactionState.READY, TransactionState.IN_TRANSACTION)
        answer = producer.do(do, number=producer.number)
        assert answer["ok"], (answer, rig.table.stored)
        assert producer.ends == [do]
        assert producer.row.v2 is rig.v2
        producer.send()
        assert producer.do("commit")["ok"]
        assert producer.ends == [do, "commit"]


@pytest.mark.parametrize(("do", "prepare", "v2"), CASES)
def test_a_successor_finishes_it_although_the_front_end_has_ended(
    do: str, prepare: Callable[[Producer], None], v2: bool
) -> None:
    ends = set()
    for rig, producer in at_each_step(lambda: Rig(v2=v2), prepare, do):
        producer.row.orphaned = True
        rig.run(60)
        assert rig.table.removed == [producer.index]
        (end,) = rig.transactions.ids["a"].ends
        ends.add(end)
    assert ends == {do, "abort"}  # aborted if the commit had not begun


@pytest.mark.parametrize("v2", [True, False])
@pytest.mark.parametrize("prepare", [begin, lambda producer: None])
def test_an_init_is_repeated_after_a_takeover(v2: bool, prepare: Callable[[Producer], None]) -> None:
    for rig, producer in at_each_step(lambda: Rig(v2=v2), prepare, "init"):
        rig.run(30)
        assert producer.do("init", number=producer.number)["ok"]
        assert "commit" not in producer.ends
        producer.send()
        assert producer.do("commit")["ok"]


@pytest.mark.parametrize("v2", [True, False])
def test_offsets_are_repeated_after_a_takeover(v2: bool) -> None:
    fields = {"offsets": [("t", 0, 5, -1, "")], "group": GROUP}
    for rig, producer in at_each_step(lambda: Rig(v2=v2), lambda producer: None, "offsets", **fields):
        rig.run(5)
        assert producer.do("offsets", number=producer.number, **fields)["ok"]
        assert producer.do("commit")["ok"]
        assert rig.transactions.ids["a"].offsets == {("g", "t", 0): 5}


@pytest.mark.parametrize("step", range(4))
def test_partitions_are_added_after_a_takeover(step: int) -> None:
    rig = Rig(v2=False)
    producer = rig.producer()
    producer.do("init")
    end_sender_at(rig, step)
    try:
        producer.send()
    except SenderEndedError:
        rig.successor()
        rig.run(1)
    assert producer.row.added == [("t", 0)]
    producer.row.busy = False
    assert producer.do("commit")["ok"]
    assert producer.ends == ["commit"]


def test_a_fatal_error_is_known_to_a_successor(rig: Rig, producer: Producer) -> None:
    producer.send()
    rig.codes(ApiKey.END_TXN, FENCED)
    first = producer.do("commit")
    rig.successor()
    assert producer.do("commit", number=producer.number) == first
    assert producer.do("abort")["kind"] == "fatal"


def test_an_old_broker_cannot_tell_whether_the_predecessor_has_raised_the_epoch() -> None:
    rig = Rig(v2=False)
    producer = rig.producer()
    producer.do("init")
    producer.send()
    rig.transactions.ids["a"].epoch += 1  # another producer, or the predecessor
    producer.row.state = TransactionState.ABORTING_TRANSACTION
    rig.successor()
    rig.brokers.versions[ApiKey.INIT_PRODUCER_ID] = 1
    rig.run(5)
    assert (producer.row.state, producer.row.failed) == (TransactionState.FATAL_ERROR, FENCED)
    assert INIT_PRODUCER_ID not in rig.asked()


def test_lost_events_are_made_up_for(rig: Rig, producer: Producer) -> None:
    producer.send()
    producer.row.orphaned = True
    rig.run(5)
    assert rig.table.removed == []
    rig.manager.on_lost_events()
    rig.run(5)
    assert rig.table.removed == [producer.index]
