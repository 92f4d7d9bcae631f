"""Tests that a transaction waits until the former one is complete at the coordinator, with KIP-890."""

import pytest
from kfake.codes import END_TXN, INIT_PRODUCER_ID
from transaction_rig import Producer, Rig

from cyproducer.protocol.kafka_messages import ApiKey
from cyproducer.transaction_states import TransactionState

DESCRIBE = ApiKey.DESCRIBE_TRANSACTIONS


@pytest.fixture
def rig() -> Rig:
    return Rig(v2=True)


@pytest.fixture
def producer(rig: Rig) -> Producer:
    """Return a producer that has committed a transaction."""
    producer = rig.producer()
    producer.do("init")
    producer.send()
    assert rig.asked() == [INIT_PRODUCER_ID]  # nothing came before the first transaction
    producer.do("commit")
    assert rig.asked() == [END_TXN]
    return producer


def states(rig: Rig, *found: str) -> None:
    """Let the coordinator describe the transaction by these states, one after the other."""
    rig.coordinators.states.clear()
    rig.coordinators.states.extend(found)


def test_records_wait_until_the_former_transaction_is_complete(rig: Rig, producer: Producer) -> None:
    states(rig, *["PrepareCommit"] * 5, "CompleteCommit")
    before_ms = rig.now_ms
    producer.send()
    assert rig.asked() == [DESCRIBE] * 6
    assert rig.now_ms - before_ms == 0 + 0 + 1 + 2 + 4
    assert (producer.row.state, producer.row.held) == (TransactionState.IN_TRANSACTION, False)
    assert producer.do("commit")["ok"]
    assert producer.ends == ["commit"] * 2


def test_an_abort_is_followed_in_the_same_way(rig: Rig, producer: Producer) -> None:
    producer.send()
    producer.do("abort")
    rig.asked()
    states(rig, "PrepareAbort", "CompleteAbort")
    producer.send()
    assert rig.asked() == [DESCRIBE] * 2


def test_a_commit_waits_with_its_records(rig: Rig, producer: Producer) -> None:
    states(rig, "PrepareCommit", "CompleteCommit")
    row = producer.row
    row.busy = True
    answers = producer.ask("commit")
    rig.run(10, lambda: not row.held)
    assert rig.asked() == [DESCRIBE] * 2
    assert answers == []
    producer.send()
    producer.come_to_rest(1)
    assert answers[0]["ok"]
    assert rig.asked() == [END_TXN]


def test_nobody_is_asked_when_no_record_waits(rig: Rig, producer: Producer) -> None:
    rig.run(1)
    assert producer.do("commit")["ok"]
    assert producer.do("abort")["ok"]
    assert rig.asked() == []


def test_after_a_tenth_of_a_second_the_records_are_sent(rig: Rig, producer: Producer) -> None:
    states(rig, "PrepareCommit")
    before_ms = rig.now_ms
    producer.send()
    assert 100 <= rig.now_ms - before_ms < 100 + 8
    assert set(rig.asked()) == {DESCRIBE}
    producer.do("commit")
    rig.run(0.1)
    rig.asked()
    producer.send()
    assert rig.asked() == []


def test_a_coordinator_without_an_answer_does_not_hold_up_records(rig: Rig, producer: Producer) -> None:
    rig.brokers.mute = {1, 2, 3}
    before_ms = rig.now_ms
    producer.send()
    assert rig.now_ms - before_ms == 100
    assert producer.row.state == TransactionState.IN_TRANSACTION


@pytest.mark.parametrize("how", ["an error", "too old", "unreadable", "closed"])
def test_an_error_does_not_hold_up_records(rig: Rig, producer: Producer, how: str) -> None:
    before_ms = rig.now_ms
    if how == "an error":
        rig.codes(DESCRIBE, 53)
        states(rig, "")
    elif how == "too old":
        for link in rig.brokers.links.values():
            link.versions = {api: last for api, last in rig.brokers.versions.items() if api != DESCRIBE}
    elif how == "unreadable":
        rig.brokers.unreadable = {DESCRIBE}
    else:
        rig.brokers.on_request = lambda: rig.brokers.mute.add(2)
        row = producer.row
        row.holds_up = row.busy = True
        producer.event()
        rig.run(0.01)
        assert row.held
        rig.close(2)
        rig.run(0)
        assert not row.held
        row.busy = False
    producer.send()
    assert rig.now_ms - before_ms <= 10
    assert producer.row.state == TransactionState.IN_TRANSACTION


def test_a_process_that_ends_meanwhile_is_ended(rig: Rig, producer: Producer) -> None:
    states(rig, "PrepareCommit")
    row = producer.row
    row.holds_up = True
    producer.event()
    rig.run(0.01)
    producer.end()
    rig.run(1)
    assert rig.table.removed == [producer.index]
    assert not rig.brokers.users
    assert row.held
