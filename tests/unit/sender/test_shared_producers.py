"""Tests the rows of transactions in which several front-ends take part, and that another process ends."""

from typing import Any

import pytest
from kfake.codes import ADD_PARTITIONS_TO_TXN
from transaction_rig import Producer, Rig

from cyproducer.protocol.kafka_messages import ApiKey
from cyproducer.sender.cluster.transaction_failures import TRANSACTION_ABORTED
from cyproducer.transaction_states import TransactionState

INVALID_TXN_STATE, FENCED = 48, 90


def share(rig: Rig, **fields: Any) -> Producer:
    """Return the row of the participants in the transaction of "a"."""
    owner = rig.transactions.ids["a"]
    given = {"producer_id": owner.producer_id, "epoch": owner.epoch, "participants": 1, **fields}
    given |= {"shared": True, "state": TransactionState.IN_TRANSACTION, "failed": 0, "v2": rig.v2}
    return rig.producer(given.pop("transactional_id", "a"), **given)


def test_partitions_of_participants_are_added_and_their_transaction_is_left_open(
    rig_v1: Rig, producer_v1: Producer
) -> None:
    row = share(rig_v1)
    row.send()
    assert rig_v1.asked() == [ADD_PARTITIONS_TO_TXN]
    row.row.participants = 0
    row.row.orphaned = True  # as after a takeover
    row.event()
    rig_v1.coordinators.described = describe(row)
    rig_v1.run(59)
    assert set(rig_v1.asked()) == {ApiKey.DESCRIBE_TRANSACTIONS}
    assert rig_v1.manager.active()[0]
    assert producer_v1.ends == []
    rig_v1.run(2)
    assert rig_v1.table.removed == [row.index]
    assert not rig_v1.brokers.users


def test_a_shared_row_stays_for_the_next_participants(rig: Rig, producer: Producer) -> None:
    row = share(rig, participants=0)
    rig.coordinators.described = describe(row)
    row.event()
    rig.run(50)
    row.row.participants = 1
    rig.run(100)
    assert rig.table.removed == []
    row.row.participants = 0
    row.event()
    rig.run(50)
    assert rig.table.removed == []
    rig.run(15)
    assert rig.table.removed == [row.index]


def describe(row: Producer, epochs: int = 0, **more: Any) -> dict[str, Any]:
    """Return fields with which the coordinator describes the transaction of a row; its epoch is later by `epochs`."""
    return {"producer_id": row.row.producer_id, "producer_epoch": row.row.epoch + epochs, **more}


@pytest.mark.parametrize(
    ("epochs", "state", "more", "is_over"),
    [
        (0, "Ongoing", {}, False),
        (0, "Empty", {}, False),  # no record was sent yet
        (0, "CompleteCommit", {}, False),  # with KIP-890 the end of the transaction before
        (1, "PrepareCommit", {}, False),
        (1, "PrepareAbort", {}, False),
        (1, "PrepareEpochFence", {}, False),
        (-1, "CompleteCommit", {}, False),
        (1, "CompleteCommit", {"error_code": 105}, False),
        (1, "CompleteCommit", {"transactional_id": "other"}, False),
        (1, "CompleteCommit", {}, True),
        (1, "CompleteAbort", {}, True),
        (1, "Empty", {}, True),
        (2, "Ongoing", {}, True),
        (0, "Empty", {"producer_id": 9}, True),
    ],
)
def test_a_shared_row_without_participants_is_freed_when_the_coordinator_says_that_the_transaction_is_over(
    rig: Rig, producer: Producer, epochs: int, state: str, more: dict[str, Any], is_over: bool
) -> None:
    row = share(rig, participants=0)
    rig.coordinators.described = describe(row, epochs, transaction_state=state, **more)
    row.event()
    rig.asked()
    rig.run(4)
    assert rig.asked() == []
    rig.run(20)
    assert set(rig.asked()) == {ApiKey.DESCRIBE_TRANSACTIONS}
    assert rig.table.removed == ([row.index] if is_over else [])


@pytest.mark.parametrize("has_api", [True, False])
def test_the_newer_epoch_of_a_participant_frees_a_shared_row_only_if_it_is_true(
    rig: Rig, producer: Producer, has_api: bool
) -> None:
    """A process can give any epoch. A broker before Kafka 3.0 cannot be asked."""
    row = share(rig, participants=0)
    rig.coordinators.described = describe(row)
    if not has_api:
        del rig.brokers.versions[ApiKey.DESCRIBE_TRANSACTIONS]
        for link in rig.brokers.links.values():
            link.versions = None
    row.event()
    rig.run(1)
    share(rig, epoch=row.row.epoch + 1)
    rig.run(3)
    assert rig.table.removed == ([] if has_api else [row.index])
    rig.coordinators.described = describe(row, 1, transaction_state="Ongoing") if has_api else {}
    rig.run(2)
    assert rig.table.removed == [row.index]


@pytest.mark.parametrize("fault", ["no API", "no permission", "no broker", "no answer", "unreadable"])
def test_a_shared_row_has_its_time_limit_when_the_coordinator_does_not_answer(
    rig: Rig, producer: Producer, fault: str
) -> None:
    row = share(rig, participants=0)
    rig.coordinators.described = describe(row, 1, transaction_state="CompleteCommit")
    if fault == "no API":
        del rig.brokers.versions[ApiKey.DESCRIBE_TRANSACTIONS]
    elif fault == "no permission":
        rig.codes(ApiKey.FIND_COORDINATOR, *[53] * 100)
    elif fault == "no broker":
        rig.brokers.down.update(rig.brokers.links)
    elif fault == "no answer":
        rig.brokers.mute.update(rig.brokers.links)
    else:
        rig.brokers.unreadable.add(ApiKey.DESCRIBE_TRANSACTIONS)
    for link in rig.brokers.links.values():
        link.versions = None
    row.event()
    if fault != "unreadable":
        rig.run(55)
        assert rig.table.removed == []
        assert row.row.failed == 0
    rig.run(40)
    assert rig.table.removed == [row.index]
    assert not rig.brokers.users


def test_a_shared_row_is_freed_when_the_epoch_is_over() -> None:
    rig = Rig(v2=True)
    producer = rig.producer()
    producer.do("init")
    row = share(rig, participants=0)
    rig.coordinators.described = describe(row)
    row.event()
    producer.send()
    rig.run(5)
    assert rig.table.removed == []
    producer.do("commit")
    rig.run(2)
    assert rig.table.removed == [row.index]


@pytest.mark.parametrize("code", [FENCED, INVALID_TXN_STATE, 29])
def test_an_error_fails_a_shared_row_and_leaves_its_state(rig_v1: Rig, producer_v1: Producer, code: int) -> None:
    row = share(rig_v1)
    rig_v1.codes(ApiKey.ADD_PARTITIONS_TO_TXN, code)
    row.send()
    assert (row.row.failed, row.row.state) == (code, TransactionState.IN_TRANSACTION)


def test_an_init_does_not_wait_for_participants(rig: Rig, producer: Producer) -> None:
    share(rig, orphaned=True)
    assert producer.do("init")["ok"]


def test_sharing_opens_the_transaction_and_tells_what_participants_need(rig: Rig, producer: Producer) -> None:
    known = {"ok": True, "producer_id": 7001, "epoch": 0, "v2": rig.v2}
    assert producer.do("share") == known
    assert producer.row.state == TransactionState.IN_TRANSACTION
    assert producer.do("share", number=producer.number) == known
    assert rig.asked() == []
    producer.do("fail")
    answer = producer.do("share")
    assert (answer["ok"], answer["kind"], answer["code"]) == (False, "abortable", TRANSACTION_ABORTED)
    producer.do("abort")
    assert producer.row.state == TransactionState.READY


def test_before_init_nothing_can_be_shared(rig: Rig) -> None:
    producer = rig.producer()
    assert producer.do("share")["kind"] == "abortable"
    assert producer.row.state == TransactionState.UNINITIALIZED


@pytest.mark.parametrize("end", ["commit", "abort", "end"])
def test_a_shared_row_is_freed_although_the_one_that_ends_its_transaction_is_freed_at_once(end: str) -> None:
    rig = Rig(v2=True)
    producer = rig.producer()
    producer.do("init")
    producer.do("share")
    row = share(rig, participants=0, in_use=True)
    row.event()
    row.send()
    if end != "end":
        producer.do(end)
    producer.end()
    rig.run(0.5, lambda: producer.index in rig.table.removed)
    assert rig.table.removed == [producer.index]
    row.row.in_use = False
    rig.run(2)
    assert rig.table.removed == [producer.index, row.index]
    assert not rig.brokers.users


@pytest.mark.parametrize("end", ["commit", "abort"])
@pytest.mark.parametrize("takes_over", [False, True])
def test_a_shared_row_is_freed_with_the_process_that_has_ended_its_transaction(
    rig_v1: Rig, producer_v1: Producer, end: str, takes_over: bool
) -> None:
    """Before KIP-890 the next transaction of that process has the same epoch, and continues the sequences."""
    producer_v1.do("share")
    row = share(rig_v1, participants=0)
    row.event()
    rig_v1.coordinators.described = describe(row, transaction_state="CompleteCommit")
    row.send()
    producer_v1.do(end)
    rig_v1.run(20)
    assert rig_v1.table.removed == []
    if takes_over:
        rig_v1.successor()
        rig_v1.run(2)
    assert producer_v1.row.epoch == row.row.epoch
    producer_v1.end()
    rig_v1.run(2)
    assert rig_v1.table.removed == [producer_v1.index, row.index]
    assert not rig_v1.brokers.users


@pytest.mark.parametrize("fields", [{"epoch": 1}, {"producer_id": 9}, {"transactional_id": "b"}, {"participants": 1}])
def test_a_shared_row_of_another_owner_stays_when_a_process_has_ended(
    rig_v1: Rig, producer_v1: Producer, fields: dict[str, Any]
) -> None:
    row = share(rig_v1, **{"participants": 0, **fields})
    rig_v1.coordinators.described = describe(row)
    row.event()
    producer_v1.end()
    rig_v1.run(20)
    assert rig_v1.table.removed == [producer_v1.index]
    row.row.participants = 0
    row.event()
    rig_v1.run(20)
    assert rig_v1.table.removed == [producer_v1.index, *[row.index] * ("participants" in fields)]
