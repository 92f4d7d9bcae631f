"""States of a transactional producer: front-end, control plane and engine share them."""

from enum import IntEnum

__all__ = ["TransactionState"]


class TransactionState(IntEnum):
    """A state of Kafka's TransactionManager.

    The states up to FATAL_ERROR are stored in the row of a producer (shm/transaction.h), so their numbers stay as they
    are. A front-end alone is in the others.
    """

    UNINITIALIZED = 0  # it has no producer id
    READY = 1  # no transaction is open at the broker
    IN_TRANSACTION = 2  # stored before the first byte that can begin a transaction at the broker
    COMMITTING_TRANSACTION = 3  # stored before the first byte of EndTxn, like the next one
    ABORTING_TRANSACTION = 4
    FATAL_ERROR = 5  # another producer has fenced it, or the broker has refused it for good
    INITIALIZING = 6  # init_transactions() has no result yet
    ABORTABLE_ERROR = 7  # the transaction can only be aborted; a row has the code of the error instead
