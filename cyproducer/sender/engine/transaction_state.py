"""Describes the state of a transactional producer as the table of transactions has it."""

from enum import StrEnum
from typing import NamedTuple

__all__ = ["Phase", "TransactionState"]


class Phase(StrEnum):
    """Where a transaction is. The order is that of cyp_transaction_phase in shm/transaction.h."""

    NEW = "new"
    READY = "ready"
    OPEN = "open"
    COMMITTING = "committing"
    ABORTING = "aborting"
    FATAL = "fatal"


class TransactionState(NamedTuple):
    """A row of the table.

    failed            code of the first error of a record; 0: none. The transaction can only be aborted
    needs_epoch       batches with a sequence were dropped
    v2                Produce adds partitions (KIP-890)
    number, result    the last command of the front-end that has a result, and its error code
    orphaned          the front-end has ended
    shared            front-ends take part in a transaction that another process ends
    participants      so many of them are attached
    held, holds_up    no batch is sent, see TransactionTable.hold(); and one waits
    """

    transactional_id: str
    attach_id: int
    timeout_ms: int
    phase: Phase
    producer_id: int
    epoch: int
    failed: int
    needs_epoch: bool
    v2: bool
    number: int
    result: int
    orphaned: bool
    shared: bool
    participants: int
    held: bool
    holds_up: bool
