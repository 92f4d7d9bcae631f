"""Decides what an error means for a transaction, by the rules of Kafka's TransactionManager.

An abortable error: the transaction must be aborted, and the producer can go on after that. After a fatal error the
producer must be closed. Errors that are retriable lead to another attempt.
"""

from collections.abc import Mapping

from cyproducer import errors
from cyproducer.codes import (
    CLUSTER_AUTHORIZATION_FAILED,
    FENCED_INSTANCE_ID,
    GROUP_AUTHORIZATION_FAILED,
    GROUP_ID_NOT_FOUND,
    ILLEGAL_GENERATION,
    INVALID_PRODUCER_EPOCH,
    INVALID_PRODUCER_ID_MAPPING,
    INVALID_TXN_STATE,
    PRODUCER_FENCED,
    STALE_MEMBER_EPOCH,
    TOPIC_AUTHORIZATION_FAILED,
    TRANSACTION_ABORTABLE,
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    UNKNOWN_MEMBER_ID,
    UNKNOWN_PRODUCER_ID,
    UNSUPPORTED_VERSION,
)
from cyproducer.error_table import error_of
from cyproducer.protocol.kafka_messages import ApiKey

__all__ = [
    "FENCED",
    "TRANSACTION_ABORTED",
    "Failure",
    "StoppedError",
    "failure_of",
    "failure_of_record",
    "meaning_of",
]

TRANSACTION_ABORTED = errors.TRANSACTION_ABORTED  # the client's own code: it was aborted, or has to be
FENCED = INVALID_PRODUCER_EPOCH, PRODUCER_FENCED

#: The abortable errors of each request. AddPartitionsToTxn is the only one whose unknown errors are abortable.
_ABORTABLE: Mapping[ApiKey, frozenset[int]] = {
    ApiKey.FIND_COORDINATOR: frozenset({GROUP_AUTHORIZATION_FAILED, TRANSACTION_ABORTABLE}),
    ApiKey.INIT_PRODUCER_ID: frozenset(
        {TRANSACTIONAL_ID_AUTHORIZATION_FAILED, CLUSTER_AUTHORIZATION_FAILED, TRANSACTION_ABORTABLE}
    ),
    ApiKey.ADD_OFFSETS_TO_TXN: frozenset({GROUP_AUTHORIZATION_FAILED, UNKNOWN_PRODUCER_ID, TRANSACTION_ABORTABLE}),
    ApiKey.TXN_OFFSET_COMMIT: frozenset(
        {
            TOPIC_AUTHORIZATION_FAILED,
            GROUP_AUTHORIZATION_FAILED,
            ILLEGAL_GENERATION,
            UNKNOWN_MEMBER_ID,
            GROUP_ID_NOT_FOUND,
            FENCED_INSTANCE_ID,
            STALE_MEMBER_EPOCH,
            TRANSACTION_ABORTABLE,
        }
    ),
    ApiKey.END_TXN: frozenset({UNKNOWN_PRODUCER_ID, TRANSACTION_ABORTABLE}),
}
_FATAL_FOR_PARTITIONS = frozenset(
    {
        INVALID_TXN_STATE,
        INVALID_PRODUCER_ID_MAPPING,
        TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        UNSUPPORTED_VERSION,
    }
)


class Failure(Exception):
    """A command has failed: `kind` is "abortable" or "fatal", `code` is Kafka's or one of the client's own.

    `text` says what happened; `str()` also has the name of the code.
    `is_refusal`: nothing was done, and the state of the row is the reason. So it needs not be stored.
    """

    def __init__(self, kind: str, code: int, text: str = "", *, is_refusal: bool = False) -> None:
        self.text = text or meaning_of(code)
        super().__init__(f"{errors.name_for_code(code)}: {self.text}")
        self.kind = kind
        self.code = code
        self.is_refusal = is_refusal


class StoppedError(Exception):
    """What is being done for a producer is not needed any more: its front-end has ended, or others have come."""


def meaning_of(code: int) -> str:
    """Return what an error code says, without its name."""
    return errors.for_code(code).message


def failure_of(api: ApiKey, code: int, *, always_fatal: bool = False) -> Failure:
    """Return the failure for an error that is not retriable, of a response to `api`."""
    if code in FENCED:
        return Failure("fatal", PRODUCER_FENCED)
    is_addition = api == ApiKey.ADD_PARTITIONS_TO_TXN
    is_abortable = code not in _FATAL_FOR_PARTITIONS if is_addition else code in _ABORTABLE[api]
    return Failure("abortable" if is_abortable and not always_fatal else "fatal", code)


def failure_of_record(code: int) -> Failure:
    """Return with what a commit is refused whose transaction has failed with `code`."""
    return Failure("fatal" if error_of(code).is_fatal else "abortable", code, is_refusal=True)
