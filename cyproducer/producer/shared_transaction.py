"""Lets several processes write into one transaction: an owner begins and ends it, and participants send records.

The owner is a transactional producer. A participant is a producer on any host that gets the owner's producer id and
epoch. It has no states: it may send at once, until the owner ends the transaction. All participants of one sender
continue the same sequences. Two senders must not write the same partition: the broker then drops records silently.
"""

import dataclasses
from typing import Any, NamedTuple

from cyproducer.config.settings import Settings
from cyproducer.producer.producer import KafkaProducer, restore_producer, run_transactional
from cyproducer.producer.transactions.transaction_manager import TransactionManager
from cyproducer.shm import system_clock

__all__ = ["SenderIdentity", "Shared", "participant", "sender_of", "share"]


class Shared(NamedTuple):
    """What a participant must know of a transaction. `v2`: the broker has KIP-890."""

    producer_id: int
    epoch: int
    v2: bool


class SenderIdentity(NamedTuple):
    """The sender to which a producer is attached.

    address    path of its control socket
    sequences  differs from that of every other sender, and stays the same when a successor continues its sequences
    """

    address: str
    sequences: str


def share(owner: KafkaProducer) -> Shared:
    """Count the open transaction as one that has records, and return what a participant needs.

    From now on, an end of the owner's process aborts the transaction, and abort_transaction() tells the broker. The
    owner must not have sent a record, and cannot send one until the next transaction. Raise the errors of the methods
    for transactions.
    """
    return Shared(*run_transactional(owner, TransactionManager.share_transaction, None))


def participant(settings: dict[str, Any], transaction: Shared) -> KafkaProducer:
    """Return a producer that takes part in a transaction.

    `settings` are those of KafkaProducer, with the owner's transactional_id and transaction_timeout_ms. The producer
    has no methods for transactions.
    """
    parsed = Settings.parse(**settings)
    joined = transaction.producer_id, transaction.epoch, transaction.v2
    return restore_producer(KafkaProducer, dataclasses.replace(parsed, joined_transaction=joined))


def sender_of(producer: KafkaProducer) -> SenderIdentity:
    """Return the sender of a producer, which is attached if needed. Raise SenderUnavailableError."""
    channel = producer._channel()
    session = channel.attached(system_clock.monotonic() + channel.settings.max_block_ms / 1000)
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        host = file.read().strip()
    return SenderIdentity(session.attachment.socket.getpeername(), f"{host}/{session.attachment.sender_state}")
