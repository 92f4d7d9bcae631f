"""Defines the exceptions of this package: one class per Kafka error code, and one per error of the client itself.

Class names follow kafka-python. The classes of Kafka's codes are made from the table in `error_table.py`.
tools/generate.py writes `errors.pyi`, which lists all classes for type checkers and for readers.
"""

from collections.abc import Mapping
from types import MappingProxyType

from cyproducer.error_table import ERRORS as _ERRORS
from cyproducer.error_table import ErrorCode as _ErrorCode
from cyproducer.error_table import error_of as _error_of


class KafkaError(Exception):
    """Base class of every error of this package.

    `code` is Kafka's error code, or a number <= -1000 for an error of the client itself (`CLIENT_CODES`).
    `retriable` says whether sending the record again can succeed without a change to the record or the configuration.
    `message` is the text of `str()`: what happened, to which topic and partition, what to do, and what the broker said.
    `__cause__` is the last error from Kafka that led to this one, for example the `NotEnoughReplicasError` behind a
    `KafkaTimeoutError`. Errors can be pickled and copied; a pickle keeps `code` and `message`, but not `__cause__`.
    """

    code: int = -1000
    retriable: bool = False
    invalid_metadata: bool = False
    message: str
    kafka_name: str = "CLIENT_ERROR"
    description: str = "the Kafka client failed"

    def __init__(self, message: str = "", *, code: int | None = None) -> None:
        self.message = message or self.description
        if code is not None:
            self.code = code
        super().__init__(self.message)


class RetriableError(KafkaError):
    """A temporary error: the sender retries it within `delivery_timeout_ms`."""

    retriable = True


class InvalidMetadataError(RetriableError):
    """A retriable error which shows that the cluster metadata is out of date: the sender refreshes it."""

    invalid_metadata = True


class BrokerResponseError(KafkaError):
    """An error code in a broker's response."""


class AuthorizationError(BrokerResponseError):
    """The broker refused the request because an ACL is missing."""


# The classes whose names are not Kafka's name in camel case: they have kafka-python's names. Code 10 has Java's name,
# because `send()` raises the same class for a record that is too large.
_CLASS_NAMES = {
    -1: "UnknownError",
    2: "CorruptRecordError",
    4: "InvalidFetchRequestError",
    6: "NotLeaderForPartitionError",
    10: "RecordTooLargeError",
    17: "InvalidTopicError",
    39: "InvalidReplicationAssignmentError",
    40: "InvalidConfigurationError",
}


def _class_name(code: int, kafka_name: str) -> str:
    stem = kafka_name.removesuffix("_ERROR")
    return _CLASS_NAMES.get(code) or "".join(word.capitalize() for word in stem.split("_")) + "Error"


def _bases(error: _ErrorCode) -> tuple[type[KafkaError], ...]:
    if error.name.endswith("_AUTHORIZATION_FAILED"):
        return (AuthorizationError,)
    if error.refresh_metadata:
        return (InvalidMetadataError, BrokerResponseError)
    return (RetriableError, BrokerResponseError) if error.retriable else (BrokerResponseError,)


def _broker_classes() -> dict[int, type[KafkaError]]:
    classes: dict[int, type[KafkaError]] = {}
    for code, error in _ERRORS.items():
        if code == 0:
            continue
        members = {
            "__module__": __name__,
            "__doc__": f"{error.name} ({code}): {error.message}.",
            "code": code,
            "kafka_name": error.name,
            "description": error.message,
        }
        classes[code] = type(_class_name(code, error.name), _bases(error), members)
    return classes


#: Kafka's error code -> class, for every code but 0 (no error).
BROKER_CODES: Mapping[int, type[KafkaError]] = MappingProxyType(_broker_classes())
globals().update({cls.__name__: cls for cls in BROKER_CODES.values()})

# Java's names of the same codes.
UnknownServerError = BROKER_CODES[-1]
CorruptMessageError = BROKER_CODES[2]
NotLeaderOrFollowerError = BROKER_CODES[6]
MessageSizeTooLargeError = BROKER_CODES[10]

# The errors of the client itself. Each class has a code of its own below -1000, of which the constant is `kafka_name`.
# The sender writes some of the codes into shared memory as int32: never change them. The last paragraph of a docstring
# says whether sending the record again is safe; the reference page of the errors shows it.


class KafkaConfigurationError(KafkaError, ValueError):
    """A setting is unknown, has a wrong type or value, is not supported yet, or contradicts another setting.

    Sending again: after the setting is corrected. The call queued nothing.
    """

    code = -1011
    kafka_name = "CONFIGURATION"
    description = "a setting is not valid"


class KafkaTimeoutError(RetriableError, TimeoutError):
    """The timeout of a call, or `max_block_ms`, is over.

    It is also a `TimeoutError`, the class that `result(timeout)` of concurrent.futures raises. The call can be
    repeated.

    Sending again: after `send()`: yes, nothing was queued. After `result()`, `flush()` or `wait()`: no, the record is
    still on its way. Call again and wait longer.
    """

    code = -1008
    kafka_name = "TIMEOUT"
    description = "the operation did not finish in time"


#: The error of kafka-python 2 for a bootstrap that finds no broker. It is a timeout here, as in kafka-python 3.
NoBrokersAvailable = KafkaTimeoutError


class DeliveryTimeoutError(KafkaTimeoutError):
    """The record was not written within `delivery_timeout_ms`, and it will not be written.

    An expired record that may have been written gets `OutcomeUnknownError`.

    Sending again: yes. The record was not written.
    """

    code = -1001
    kafka_name = "DELIVERY_TIMEOUT"
    description = (
        "not written within delivery_timeout_ms: no attempt to send the record succeeded, and no attempt will follow; "
        "sending it again cannot write it twice"
    )


class BufferExhaustedError(KafkaTimeoutError):
    """`buffer_memory` was full, and no memory became free within `max_block_ms`.

    Sending again: yes. The call queued nothing.
    """

    code = -1009
    kafka_name = "BUFFER_EXHAUSTED"
    description = "buffer_memory is full; send fewer records at once, or raise buffer_memory or max_block_ms"


class SerializationError(KafkaError):
    """`key_serializer` or `value_serializer` raised an exception (`__cause__`), or did not return bytes or None.

    Sending again: after the serializer or the value is corrected. The call queued nothing.
    """

    code = -1010
    kafka_name = "SERIALIZATION"
    description = "a serializer failed"


class PartitionerError(KafkaError):
    """The custom partitioner raised an exception (`__cause__`), or did not return the number of a partition.

    Sending again: after the partitioner is corrected. The call queued nothing.
    """

    code = -1021
    kafka_name = "PARTITIONER"
    description = "the custom partitioner failed"


class IllegalStateError(KafkaError):
    """The call is not possible here, for example `flush()` in a callback or `send_array()` with interceptors.

    Sending again: yes, by the call that the message names. The call queued nothing.
    """

    code = -1020
    kafka_name = "ILLEGAL_STATE"
    description = "the call is not possible here"


class UnsupportedMethodError(KafkaError, AttributeError, TypeError):
    """The producer does not have this method of another client; the message says what to use instead.

    It is also an `AttributeError`, so that `hasattr(producer, name)` is False, and a `TypeError`, as for `len()` of an
    object without a length.

    Sending again: by the call that the message names. The call queued nothing.
    """

    code = -1022
    kafka_name = "UNSUPPORTED_METHOD"
    description = "the producer does not have this method"


class ProducerClosedError(KafkaError):
    """The producer was closed before the call, or before the record was sent to a broker.

    Sending again: yes, with a new producer. The record was not written.
    """

    code = -1006
    kafka_name = "PRODUCER_CLOSED"
    description = "the producer is closed"


class KafkaConnectionError(InvalidMetadataError):
    """The client could not connect to any broker, or the peer that answered is not a Kafka broker.

    Sending again: yes. The record was not written.
    """

    code = -1014
    kafka_name = "CONNECTION"
    description = "no broker could be reached"


class AuthenticationFailedError(KafkaError):
    """The brokers refuse this client, or this client refuses the brokers: TLS or SASL has failed.

    The call has queued nothing. Records that were queued before wait until authentication succeeds, or expire.

    Sending again: after the settings, or the broker's users and certificates, are corrected. The call queued nothing.
    """

    code = -1023
    kafka_name = "AUTHENTICATION_FAILED"
    description = "authentication has failed; check security_protocol and the settings ssl_* and sasl_*"


class SenderUnavailableError(KafkaError):
    """No sender process serves this producer, or the sender has no space for another topic of this process.

    Sending again: yes. The record was not sent to a broker.
    """

    code = -1003
    retriable = True
    kafka_name = "SENDER_UNAVAILABLE"
    description = "the sender process is not available; the record was not sent"


class OutcomeUnknownError(KafkaError):
    """It is unknown whether the record was written.

    Sending again: no. The record may be in the log, and sending it again can write it twice.
    """

    code = -1002
    kafka_name = "OUTCOME_UNKNOWN"
    description = "the record may have been written, but its outcome is unknown; sending it again may write it twice"


class SenderLostError(SenderUnavailableError, OutcomeUnknownError):
    """The sender process ended after it may have sent the record. It is unknown whether the record was written.

    Sending again: no. The record may be in the log, and sending it again can write it twice.
    """

    code = -1004
    retriable = False
    kafka_name = "SENDER_LOST"
    description = "the sender process ended after it may have sent the record; sending it again may write it twice"


class RequestTooLargeError(OutcomeUnknownError, BROKER_CODES[10]):  # type: ignore[misc]
    """The broker closed the connection each time that this batch was sent alone, probably because it is too large.

    Kafka closes the connection without reading a request that is larger than socket.request.max.bytes. A closed
    connection does not prove this, so it is unknown whether the record was written.

    Sending again: no. The record may be in the log, and sending it again can write it twice.
    """

    code = -1015
    kafka_name = "REQUEST_TOO_LARGE"
    description = (
        "the broker closes the connection each time that this batch is sent: the batch may be larger than the broker's "
        "socket.request.max.bytes; lower batch_size and max_request_size, or send smaller records"
    )


class TransactionAbortedError(KafkaError):
    """The record was not sent, because its transaction was aborted or had failed. No `read_committed` consumer sees it.

    It is not the first error of the transaction: another record has failed, or the program aborts the transaction.

    Sending again: yes, in another transaction. The record was not written.
    """

    code = -1019
    kafka_name = "TRANSACTION_ABORTED"
    description = (
        "the record was not sent, because its transaction was aborted or had failed; send it again in another "
        "transaction"
    )


class PurgedError(KafkaError):
    """The record was not sent, because the program has dropped it with `purge()`.

    Sending again: yes. The record was not written.
    """

    code = -1024
    kafka_name = "PURGED"
    description = "the program has dropped the record with purge() before it was sent"


class InvalidBatchError(KafkaError):
    """The sender found a malformed batch in shared memory: the memory was overwritten, or cyproducer has a defect.

    Sending again: yes, from a new process. The record was not written. The memory of this process is damaged.
    """

    code = -1005
    kafka_name = "INVALID_BATCH"
    description = "the batch in shared memory is damaged and was not sent; restart this process"


class UnknownPartitionError(BROKER_CODES[3]):  # type: ignore[misc]
    """The topic has no partition of the given number.

    Sending again: yes, with a partition that exists. The record was not written.
    """

    code = -1007
    kafka_name = "UNKNOWN_PARTITION"
    description = "the topic has no partition of this number"


class ForkedFutureError(KafkaError):
    """A future from before a `fork()` was used in the child. The outcome of its record goes to the parent.

    Sending again: no. The record belongs to the parent process. Ask the future there.
    """

    code = -1012
    kafka_name = "FORKED_FUTURE"
    description = "this future belongs to the parent process; use it there, or send the record from this process"


class UnsupportedPlatformError(KafkaError):
    """The system lacks a feature that cyproducer needs (Linux >= 5.4 on x86-64 or aarch64).

    Sending again: no. This platform cannot run a producer.
    """

    code = -1013
    kafka_name = "UNSUPPORTED_PLATFORM"
    description = "this platform is not supported; cyproducer needs Linux 5.4 or later on x86-64 or aarch64"


def _client_classes() -> dict[int, type[KafkaError]]:
    classes = (cls for cls in globals().values() if isinstance(cls, type) and issubclass(cls, KafkaError))
    own = {cls.code: cls for cls in classes if vars(cls).get("code", 0) < KafkaError.code}
    return dict(sorted(own.items(), reverse=True))


#: The client's own error code -> class.
CLIENT_CODES: Mapping[int, type[KafkaError]] = MappingProxyType(_client_classes())
globals().update({cls.kafka_name: code for code, cls in CLIENT_CODES.items()})


def for_code(code: int, message: str = "", cause: int = 0) -> KafkaError:
    """Return the error of a code (Kafka's, or one of `CLIENT_CODES`) with `message`, or with its default message.

    `cause` is Kafka's code of the error that led to this one (0: none): the message and `__cause__` name it.
    An unknown code gives an `UnknownError` with that code. Raise ValueError for code 0, which means success.
    """
    if cause:
        earlier = for_code(cause)
        message = message or for_code(code).message
        error = for_code(code, f"{message}; the last error was {name_for_code(cause)}: {earlier.message}")
        error.__cause__ = earlier
        return error
    if code == 0:
        raise ValueError("error code 0 means success")
    cls = BROKER_CODES.get(code) or CLIENT_CODES.get(code)
    if cls is None:
        text = message or f"the broker answered with error code {code}, which this version does not know"
        return BROKER_CODES[-1](text, code=code)
    return cls(message)


def name_for_code(code: int) -> str:
    """Return the name of a code ("NOT_LEADER_OR_FOLLOWER") for logs and the ledger; "ERROR_n" for an unknown one."""
    cls = CLIENT_CODES.get(code)
    return cls.kafka_name if cls is not None else _error_of(code).name
