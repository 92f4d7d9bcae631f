"""Describes a row of the table of transactional producers."""

from typing import NamedTuple

from cyproducer.transaction_states import TransactionState

__all__ = ["TransactionRow"]


class TransactionRow(NamedTuple):
    """A row as it was when it was read.

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
    state: TransactionState
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
