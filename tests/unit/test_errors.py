"""Tests errors: the table of codes, what each class carries, copies and pickles."""

import copy
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cyproducer import ArrayMetadata, RecordMetadata, TopicPartition, errors
from cyproducer.error_table import ERRORS

ALL_CLASSES = [
    value for value in vars(errors).values() if isinstance(value, type) and issubclass(value, errors.KafkaError)
]


def _same(left, right):
    assert type(left) is type(right)
    assert (left.code, left.message, left.retriable) == (right.code, right.message, right.retriable)
    assert (str(left), left.args) == (str(right), right.args)


def test_every_broker_code_has_a_class_of_its_own_made_from_the_table():
    assert set(ERRORS) == {0, *errors.BROKER_CODES} == set(range(-1, len(ERRORS) - 1))
    assert len(set(errors.BROKER_CODES.values())) == len(errors.BROKER_CODES)
    for code, cls in errors.BROKER_CODES.items():
        assert cls.code == code
        assert issubclass(cls, errors.BrokerResponseError)
        assert getattr(errors, cls.__name__) is cls
        assert cls.__doc__
        assert (cls.kafka_name, cls.retriable, cls.invalid_metadata, cls.description) == ERRORS[code][:4]
        assert issubclass(cls, errors.RetriableError) is cls.retriable
        assert issubclass(cls, errors.InvalidMetadataError) is cls.invalid_metadata
        assert issubclass(cls, errors.AuthorizationError) is ("AUTHORIZATION" in cls.kafka_name)


@pytest.mark.parametrize(
    ("code", "name", "kafka_name", "retriable", "invalid_metadata"),
    [
        (-1, "UnknownError", "UNKNOWN_SERVER_ERROR", False, False),
        (2, "CorruptRecordError", "CORRUPT_MESSAGE", True, False),
        (3, "UnknownTopicOrPartitionError", "UNKNOWN_TOPIC_OR_PARTITION", True, True),
        (5, "LeaderNotAvailableError", "LEADER_NOT_AVAILABLE", True, True),
        (6, "NotLeaderForPartitionError", "NOT_LEADER_OR_FOLLOWER", True, True),
        (7, "RequestTimedOutError", "REQUEST_TIMED_OUT", True, False),
        (10, "RecordTooLargeError", "MESSAGE_TOO_LARGE", False, False),
        (13, "NetworkExceptionError", "NETWORK_EXCEPTION", True, True),
        (17, "InvalidTopicError", "INVALID_TOPIC_EXCEPTION", False, False),
        (19, "NotEnoughReplicasError", "NOT_ENOUGH_REPLICAS", True, False),
        (29, "TopicAuthorizationFailedError", "TOPIC_AUTHORIZATION_FAILED", False, False),
        (45, "OutOfOrderSequenceNumberError", "OUT_OF_ORDER_SEQUENCE_NUMBER", False, False),
        (47, "InvalidProducerEpochError", "INVALID_PRODUCER_EPOCH", False, False),
        (56, "KafkaStorageError", "KAFKA_STORAGE_ERROR", True, True),
        (75, "UnknownLeaderEpochError", "UNKNOWN_LEADER_EPOCH", True, False),
        (87, "InvalidRecordError", "INVALID_RECORD", False, False),
        (90, "ProducerFencedError", "PRODUCER_FENCED", False, False),
        (100, "UnknownTopicIdError", "UNKNOWN_TOPIC_ID", True, True),
        (106, "FetchSessionTopicIdError", "FETCH_SESSION_TOPIC_ID_ERROR", True, False),
    ],
)
def test_known_codes_are_kafkas(code, name, kafka_name, retriable, invalid_metadata):
    error = errors.for_code(code, "topic t, partition 3")
    assert type(error).__name__ == name
    assert errors.name_for_code(code) == kafka_name
    assert error.retriable is retriable
    assert error.invalid_metadata is invalid_metadata
    assert isinstance(error, errors.RetriableError) is retriable
    assert str(error) == error.message == "topic t, partition 3"


@pytest.mark.parametrize(
    ("code", "cls"),
    [
        (-1001, errors.DeliveryTimeoutError),
        (-1002, errors.OutcomeUnknownError),
        (-1003, errors.SenderUnavailableError),
        (-1004, errors.SenderLostError),
        (-1005, errors.InvalidBatchError),
        (-1006, errors.ProducerClosedError),
        (-1007, errors.UnknownPartitionError),
        (-1015, errors.RequestTooLargeError),
        (-1019, errors.TransactionAbortedError),
        (-1020, errors.IllegalStateError),
        (-1021, errors.PartitionerError),
        (-1022, errors.UnsupportedMethodError),
        (-1023, errors.AuthenticationFailedError),
    ],
)
def test_codes_that_travel_through_shared_memory_are_fixed(code, cls):
    error = errors.for_code(code)
    assert type(error) is cls
    assert error.code == code
    assert error.message


def test_client_codes_are_outside_kafkas_and_fit_in_an_int32():
    assert all(-(2**31) <= code < -1000 for code in errors.CLIENT_CODES)
    for code, cls in errors.CLIENT_CODES.items():
        assert cls.code == code == getattr(errors, cls.kafka_name)


def test_the_error_of_a_lost_sender():
    lost = errors.for_code(errors.SENDER_LOST)
    assert isinstance(lost, errors.SenderUnavailableError)
    assert isinstance(lost, errors.OutcomeUnknownError)
    assert not lost.retriable
    assert errors.SenderUnavailableError().retriable
    assert not errors.OutcomeUnknownError().retriable


def test_the_errors_of_an_expired_record():
    """Two codes, two texts; each tells whether the record can be sent again."""
    expired, unknown = errors.for_code(errors.DELIVERY_TIMEOUT), errors.for_code(errors.OUTCOME_UNKNOWN)
    assert isinstance(expired, errors.KafkaTimeoutError) and isinstance(expired, errors.DeliveryTimeoutError)
    assert expired.retriable
    assert "not written" in expired.message
    assert "cannot write it twice" in expired.message
    assert not isinstance(unknown, errors.KafkaTimeoutError)
    assert not unknown.retriable
    assert "may have been written" in unknown.message
    assert "may write it twice" in unknown.message


def test_an_error_names_the_one_that_led_to_it():
    error = errors.for_code(errors.DELIVERY_TIMEOUT, "topic 't', partition 0: over", 19)
    assert (
        error.message
        == str(error)
        == (
            "topic 't', partition 0: over; the last error was NOT_ENOUGH_REPLICAS: "
            "fewer replicas are in sync than min.insync.replicas requires; the records were not written"
        )
    )
    assert isinstance(error.__cause__, errors.NotEnoughReplicasError)
    assert error.code == errors.DELIVERY_TIMEOUT
    assert errors.for_code(errors.OUTCOME_UNKNOWN, cause=20).message.startswith("the record may have been written")
    assert pickle.loads(pickle.dumps(error)).message == error.message
    assert errors.for_code(19).__cause__ is None


def test_errors_are_pythons_own_kinds_where_people_catch_those():
    assert issubclass(errors.KafkaConfigurationError, ValueError)
    assert issubclass(errors.KafkaTimeoutError, TimeoutError)
    assert issubclass(errors.BufferExhaustedError, errors.KafkaTimeoutError)
    assert issubclass(errors.UnknownPartitionError, errors.UnknownTopicOrPartitionError)
    assert errors.MessageSizeTooLargeError is errors.RecordTooLargeError
    assert errors.NoBrokersAvailable is errors.KafkaTimeoutError


@pytest.mark.parametrize("cls", ALL_CLASSES, ids=lambda cls: cls.__name__)
def test_every_class_has_a_message_and_survives_pickle_and_copy(cls):
    for error in (cls(), cls("what happened"), cls("what happened", code=4711)):
        assert error.message
        _same(error, copy.deepcopy(error))
        _same(error, copy.copy(error))
        for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
            _same(error, pickle.loads(pickle.dumps(error, protocol)))


@given(st.integers(-(2**31), 2**31 - 1).filter(bool), st.text())
def test_for_code_gives_an_error_for_any_code(code, message):
    error = errors.for_code(code, message)
    assert error.code == code
    assert error.message == (message or error.message) != ""
    assert errors.name_for_code(code)
    if code not in errors.BROKER_CODES and code not in errors.CLIENT_CODES:
        assert type(error) is errors.UnknownError
        assert message or str(code) in error.message


def test_success_is_no_error():
    assert errors.name_for_code(0) == "NONE"
    with pytest.raises(ValueError, match="success"):
        errors.for_code(0)


def test_record_metadata_has_a_tuples_ways():
    fields = ("t", 3, 17, 1_700_000_000_000, -1, 5)
    record = RecordMetadata(*fields)
    topic, *rest = record
    assert (topic, *rest) == tuple(record) == fields
    assert (record == fields, record != fields, fields == record, record == None) == (True, False, True, False)  # noqa: E711
    assert hash(record) == hash(fields) and {record: 1}[fields] == 1
    assert record < RecordMetadata("t", 4, 0, 0, 0, 0) <= RecordMetadata("t", 4, 0, 0, 0, 0) > record >= record
    assert (len(record), record[-1], record[1:3]) == (6, 5, (3, 17))
    assert record._asdict() == dict(zip(RecordMetadata._fields, fields, strict=True))
    assert repr(record) == (
        "RecordMetadata(topic='t', partition=3, offset=17, timestamp=1700000000000, serialized_key_size=-1, "
        "serialized_value_size=5)"
    )
    match record:
        case RecordMetadata(name, partition, offset=17):
            assert (name, partition) == ("t", 3)
        case _:
            pytest.fail("no match")
    with pytest.raises(AttributeError):
        record.offset = 18
    with pytest.raises(TypeError):
        sorted([record, 3])
    with pytest.raises(TypeError):
        RecordMetadata(None, 3, 17, 1, -1, 5)


def test_record_metadata():
    record = RecordMetadata("t", 3, 17, 1_700_000_000_000, -1, 5)
    assert record.topic_partition == TopicPartition("t", 3) == ("t", 3)
    assert pickle.loads(pickle.dumps(record)) == copy.deepcopy(record) == record
    assert record.offset == record[2] == 17
    assert ArrayMetadata("t", [0], [5]).offset == [5]
