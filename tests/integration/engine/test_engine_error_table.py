"""Tests each code of section 3.4 of Kafka's Java producer: its class, whether it is sent again, and the metadata.

The rows are written out here and not taken from the table that they check.
"""

import time
from typing import NamedTuple

import pytest
from kfake.codes import INIT_PRODUCER_ID
from kfake.scripted_broker import SEQUENCE_ERRORS, Fault
from support.fault_rig import Rig
from support.transactional_front_end import TransactionalFrontEnd

from cyproducer import errors
from cyproducer.error_table import ERRORS

ABORTABLE, FATAL = "abortable", "fatal"
AGAIN, FAILS, ACKNOWLEDGED, NEW_EPOCH = "sent again", "fails", "acknowledged", "sent again in a new epoch"
NEW_ID = "sent again with another producer id"
FAR_MS = 60_000


class Row(NamedTuple):
    """What a code in a Produce response means.

    `words`: the essential ones of the message. `transaction`: what a batch that fails with the code does to its
    transaction: it must be aborted, or its producer must be closed.
    """

    code: int
    error: str
    words: str
    batch: str = AGAIN
    transaction: str = ABORTABLE
    refresh: bool = False
    may_be_appended: bool = False


ROWS = [
    Row(2, "CorruptRecordError", "wrong checksum"),
    Row(19, "NotEnoughReplicasError", "fewer replicas are in sync than min.insync.replicas requires"),
    Row(
        20,
        "NotEnoughReplicasAfterAppendError",
        "written, but to fewer in-sync replicas than min.insync.replicas",
        may_be_appended=True,
    ),
    Row(7, "RequestTimedOutError", "did not finish the request in time", may_be_appended=True),
    Row(51, "ConcurrentTransactionsError", "an earlier operation on this transaction is still in progress"),
    Row(75, "UnknownLeaderEpochError", "the leader epoch in the request is newer"),
    Row(89, "ThrottlingQuotaExceededError", "a quota of the broker is exceeded"),
    Row(3, "UnknownTopicOrPartitionError", "does not host this topic or partition", refresh=True, may_be_appended=True),
    Row(5, "LeaderNotAvailableError", "has no leader at the moment", refresh=True),
    Row(9, "ReplicaNotAvailableError", "a replica of the partition is not available", refresh=True),
    Row(
        13,
        "NetworkExceptionError",
        "the connection closed before the broker answered",
        refresh=True,
        may_be_appended=True,
    ),
    Row(56, "KafkaStorageError", "cannot access this partition's log on its disk", refresh=True, may_be_appended=True),
    Row(72, "ListenerNotFoundError", "the leader has no listener", refresh=True),
    Row(100, "UnknownTopicIdError", "does not host a topic of this id", refresh=True),
    Row(103, "InconsistentTopicIdError", "the topic id of the partition's log differs", refresh=True),
    Row(6, "NotLeaderForPartitionError", "is not the partition's leader", refresh=True, may_be_appended=True),
    Row(74, "FencedLeaderEpochError", "the leader epoch in the request is older", refresh=True, may_be_appended=True),
    Row(45, "OutOfOrderSequenceNumberError", "sequence number is not the next one", NEW_EPOCH),
    Row(59, "UnknownProducerIdError", "has no state of this producer", NEW_EPOCH),
    Row(47, "InvalidProducerEpochError", "the producer's epoch is older", NEW_EPOCH),
    Row(46, "DuplicateSequenceNumberError", "already has this batch", ACKNOWLEDGED),
    Row(10, "RecordTooLargeError", "is larger than max.message.bytes", FAILS),
    Row(48, "InvalidTxnStateError", "the transaction's state does not allow", NEW_ID),
    Row(120, "TransactionAbortableError", "must be aborted", FAILS),
    Row(90, "ProducerFencedError", "a newer producer uses the same transactional id", NEW_ID, transaction=FATAL),
    Row(
        49,
        "InvalidProducerIdMappingError",
        "the producer id does not belong to the transactional id",
        NEW_ID,
        transaction=FATAL,
    ),
    Row(31, "ClusterAuthorizationFailedError", "no permission on the cluster", FAILS, transaction=FATAL),
    Row(
        53,
        "TransactionalIdAuthorizationFailedError",
        "no permission for this transactional id",
        FAILS,
        transaction=FATAL,
    ),
    Row(35, "UnsupportedVersionError", "does not support this version", FAILS, transaction=FATAL),
    Row(17, "InvalidTopicError", "the topic's name is not valid", FAILS),
    Row(18, "RecordListTooLargeError", "larger than the topic's segment size", FAILS),
    Row(21, "InvalidRequiredAcksError", "does not accept this value of acks", FAILS),
    Row(29, "TopicAuthorizationFailedError", "no permission for this topic", FAILS),
    Row(32, "InvalidTimestampError", "timestamp is further from the broker's clock", FAILS),
    Row(43, "UnsupportedForMessageFormatError", "the message format of the topic is too old", FAILS),
    Row(44, "PolicyViolationError", "a policy of the broker refuses", FAILS),
    Row(76, "UnsupportedCompressionTypeError", "does not support this compression", FAILS),
    Row(87, "InvalidRecordError", "validation refused the record", FAILS),
    Row(-1, "UnknownError", "an unexpected error", FAILS),
    Row(42, "InvalidRequestError", "found the request malformed", FAILS),
]
ROW = pytest.mark.parametrize("row", ROWS, ids=lambda row: ERRORS[row.code].name)


@ROW
def test_what_a_code_means_for_a_batch(row, rig, broker):
    rig.begin(delivery_timeout_ms=120_000)
    requests, asked = broker.produce_requests, broker.metadata_requests
    rig.engine._cluster.max_age_ms = 10 * FAR_MS
    broker.faults.append(Fault(code=row.code))
    rig.deliver(0, 0, records=1)
    expected = row.code if row.batch == FAILS else 0
    assert rig.errors(0) == [0, expected]
    assert broker.produce_requests - requests == (2 if row.batch in (AGAIN, NEW_EPOCH, NEW_ID) else 1)
    if row.batch == ACKNOWLEDGED:
        assert rig.heard[0][1] == (-1, 0), "its offset is not known"
    else:
        assert len(broker.values(0)) == 2 + (row.batch != FAILS)
    ids = {NEW_EPOCH: [(1001, 0), (1001, 1)], NEW_ID: [(1001, 0), (1002, 0)]}
    if row.batch in ids:
        assert [(batch.producer_id, batch.epoch) for batch in broker.partitions[0].batches] == ids[row.batch]
        assert [batch.first for batch in broker.partitions[0].batches] == [0, 0]
    wanted = rig.engine._cluster.next_request_at(time.monotonic_ns() // 1_000_000)
    refreshed = broker.metadata_requests > asked or wanted is None or wanted < _now_ms() + FAR_MS
    assert refreshed == row.refresh
    rig.deliver(0, 0)
    assert rig.errors(0)[-1] == 0, "the producer goes on"
    assert INIT_PRODUCER_ID not in [api for _, _, api in broker.requests[-2:]]


def _now_ms() -> int:
    return time.monotonic_ns() // 1_000_000


@ROW
def test_what_a_code_means_for_a_future(row):
    error = errors.for_code(row.code)
    assert type(error).__name__ == row.error
    assert error.retriable == isinstance(error, errors.RetriableError) == (row.batch == AGAIN)
    assert error.invalid_metadata == isinstance(error, errors.InvalidMetadataError) == row.refresh
    assert row.words in error.message
    assert str(error) == error.message


@pytest.fixture
def transactional(rig, broker):
    """Return ``transactional(**settings)``: a front-end with a producer id that a coordinator has given."""
    broker.coordinate(version=2)
    made = []

    def make(**settings):
        made.append(TransactionalFrontEnd(rig.engine, broker.topic, "a", **settings))
        assert made[0].do("init")["ok"]
        return made[0]

    yield make
    for front_end in made:
        front_end.close()


@ROW
def test_what_a_code_means_for_a_transaction(row, broker, transactional):
    front_end = transactional()
    broker.faults.append(Fault(code=row.code))
    front_end.send(b"v")
    answer = front_end.commit()
    if row.batch in (AGAIN, ACKNOWLEDGED):
        assert answer["ok"], answer
    else:
        assert (answer["ok"], answer["kind"], answer["code"]) == (False, row.transaction, row.code)
        assert row.words in answer["message"]
    front_end.send(b"next")
    (error,) = front_end.errors()
    assert (error == 0) == answer["ok"]
    again = front_end.abort()
    assert again["ok"] == (row.transaction == ABORTABLE), again
    if again["ok"]:
        front_end.send(b"after")
        assert front_end.errors() == [0]


@pytest.mark.parametrize("row", [row for row in ROWS if row.batch == AGAIN], ids=lambda row: ERRORS[row.code].name)
def test_a_code_that_stays_makes_a_transaction_abortable(row, broker, transactional):
    """What may be in the log is not committed, so its record ends as one of an aborted transaction."""
    front_end = transactional(retries=1)
    broker.faults.extend(Fault(code=row.code) for _ in range(2))
    front_end.send(b"v")
    assert front_end.errors() == [errors.TRANSACTION_ABORTED if row.may_be_appended else row.code]
    answer = front_end.commit()
    assert (answer["ok"], answer["kind"], answer["code"]) == (False, ABORTABLE, row.code)
    assert front_end.abort()["ok"]


@pytest.mark.parametrize("row", [row for row in ROWS if row.batch == AGAIN], ids=lambda row: ERRORS[row.code].name)
def test_what_a_code_says_about_the_log(row, broker):
    """The batch is not sent again, and has no sequence that could find out whether it is in the log."""
    broker.expects_corruption = True
    with Rig(broker) as rig:
        rig.attach(enable_idempotence=False, retries=0)
        broker.faults.append(Fault(code=row.code, after_append=row.may_be_appended))
        rig.deliver(0, 0)
        assert rig.errors(0) == [errors.OUTCOME_UNKNOWN if row.may_be_appended else row.code]
        assert len(broker.values(0)) == 2 * row.may_be_appended


@pytest.mark.parametrize("row", [row for row in ROWS if row.may_be_appended], ids=lambda row: ERRORS[row.code].name)
def test_a_batch_that_was_appended_before_the_error_is_in_the_log_once(row, rig, broker):
    rig.attach()
    broker.faults.append(Fault(code=row.code, after_append=True))
    rig.send(0, 0)
    rig.finish()
    assert rig.errors(0) == [0]
    assert len(broker.values(0)) == 2


def test_the_rows_of_sequence_errors_are_those_of_the_broker():
    assert {row.code for row in ROWS if row.batch == NEW_EPOCH} == set(SEQUENCE_ERRORS)
