"""Tests each code of section 3.4 of Kafka's Java producer: its class, whether it is sent again, and the metadata.

The rows are written out here and not taken from the table that they check.
"""

import time
from typing import NamedTuple

import pytest
from support.fault_rig import Rig
from support.scripted_broker import INIT_PRODUCER_ID, SEQUENCE_ERRORS, Fault

from cyproducer import errors
from cyproducer.error_table import ERRORS

AGAIN, FAILS, ACKNOWLEDGED, NEW_EPOCH = "sent again", "fails", "acknowledged", "sent again in a new epoch"
FAR_MS = 60_000


class Row(NamedTuple):
    """What a code in a Produce response means."""

    code: int
    error: str
    batch: str = AGAIN
    refresh: bool = False
    may_be_appended: bool = False


ROWS = [
    Row(2, "CorruptRecordError"),
    Row(19, "NotEnoughReplicasError"),
    Row(20, "NotEnoughReplicasAfterAppendError", may_be_appended=True),
    Row(7, "RequestTimedOutError", may_be_appended=True),
    Row(51, "ConcurrentTransactionsError"),
    Row(75, "UnknownLeaderEpochError"),
    Row(89, "ThrottlingQuotaExceededError"),
    Row(3, "UnknownTopicOrPartitionError", refresh=True, may_be_appended=True),
    Row(5, "LeaderNotAvailableError", refresh=True),
    Row(9, "ReplicaNotAvailableError", refresh=True),
    Row(13, "NetworkExceptionError", refresh=True, may_be_appended=True),
    Row(56, "KafkaStorageError", refresh=True, may_be_appended=True),
    Row(72, "ListenerNotFoundError", refresh=True),
    Row(100, "UnknownTopicIdError", refresh=True),
    Row(103, "InconsistentTopicIdError", refresh=True),
    Row(6, "NotLeaderForPartitionError", refresh=True, may_be_appended=True),
    Row(74, "FencedLeaderEpochError", refresh=True, may_be_appended=True),
    Row(45, "OutOfOrderSequenceNumberError", NEW_EPOCH),
    Row(59, "UnknownProducerIdError", NEW_EPOCH),
    Row(47, "InvalidProducerEpochError", NEW_EPOCH),
    Row(46, "DuplicateSequenceNumberError", ACKNOWLEDGED),
    Row(10, "RecordTooLargeError", FAILS),
    Row(48, "InvalidTxnStateError", FAILS),
    Row(120, "TransactionAbortableError", FAILS),
    Row(90, "ProducerFencedError", FAILS),
    Row(49, "InvalidProducerIdMappingError", FAILS),
    Row(31, "ClusterAuthorizationFailedError", FAILS),
    Row(53, "TransactionalIdAuthorizationFailedError", FAILS),
    Row(35, "UnsupportedVersionError", FAILS),
    Row(17, "InvalidTopicError", FAILS),
    Row(18, "RecordListTooLargeError", FAILS),
    Row(21, "InvalidRequiredAcksError", FAILS),
    Row(29, "TopicAuthorizationFailedError", FAILS),
    Row(32, "InvalidTimestampError", FAILS),
    Row(43, "UnsupportedForMessageFormatError", FAILS),
    Row(44, "PolicyViolationError", FAILS),
    Row(76, "UnsupportedCompressionTypeError", FAILS),
    Row(87, "InvalidRecordError", FAILS),
    Row(-1, "UnknownError", FAILS),
    Row(42, "InvalidRequestError", FAILS),
]
ROW = pytest.mark.parametrize("row", ROWS, ids=lambda row: ERRORS[row.code].name)


def batches_of_log(broker) -> list[tuple]:
    return broker.partitions[0].batches


@ROW
def test_what_a_code_means_for_a_batch(row, rig, broker):
    rig.attach(delivery_timeout_ms=120_000)
    rig.send(0, 0)
    rig.settle()
    requests, asked = broker.produce_requests, broker.metadata_requests
    rig.engine._brokers.metadata.max_age_ms = 10 * FAR_MS
    broker.faults.append(Fault(code=row.code))
    rig.send(0, 0, records=1)
    rig.settle()
    expected = row.code if row.batch == FAILS else 0
    assert rig.errors(0) == [0, expected]
    assert broker.produce_requests - requests == (2 if row.batch in (AGAIN, NEW_EPOCH) else 1)
    if row.batch == ACKNOWLEDGED:
        assert rig.heard[0][1] == (-1, 0), "its offset is not known"
    else:
        assert len(broker.values(0)) == 2 + (row.batch != FAILS)
    if row.batch == NEW_EPOCH:
        assert [batch[1:3] for batch in batches_of_log(broker)] == [(0, 0), (1, 0)], "epoch and sequence"
    wanted = rig.engine._brokers.metadata.next_request_at(time.monotonic_ns() // 1_000_000)
    refreshed = broker.metadata_requests > asked or wanted is None or wanted < _now_ms() + FAR_MS
    assert refreshed == row.refresh
    rig.send(0, 0)
    rig.settle()
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
    assert error.message == ERRORS[row.code].message != ""


@pytest.mark.parametrize("row", [row for row in ROWS if row.batch == AGAIN], ids=lambda row: ERRORS[row.code].name)
def test_what_a_code_says_about_the_log(row, broker):
    """The batch is not sent again, and has no sequence that could find out whether it is in the log."""
    broker.expects_corruption = True
    with Rig(broker) as rig:
        rig.attach(enable_idempotence=False, retries=0)
        broker.faults.append(Fault(code=row.code, after_append=row.may_be_appended))
        rig.send(0, 0)
        rig.settle()
        assert rig.errors(0) == [errors.OUTCOME_UNKNOWN if row.may_be_appended else row.code]
        assert len(broker.values(0)) == 2 * row.may_be_appended


@pytest.mark.parametrize("row", [row for row in ROWS if row.may_be_appended], ids=lambda row: ERRORS[row.code].name)
def test_a_batch_that_was_appended_before_the_error_is_in_the_log_once(row, rig, broker):
    rig.attach()
    broker.faults.append(Fault(code=row.code, after_append=True))
    rig.send(0, 0)
    rig.settle()
    rig.check()
    assert rig.errors(0) == [0]
    assert len(broker.values(0)) == 2


def test_the_rows_of_sequence_errors_are_those_of_the_broker():
    assert {row.code for row in ROWS if row.batch == NEW_EPOCH} == set(SEQUENCE_ERRORS)
