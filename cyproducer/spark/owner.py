"""Holds the driver's side of transactions: one transactional producer, and what the driver asks the brokers."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from typing import Any, NamedTuple

from cyproducer import KafkaProducer, errors
from cyproducer.observe.transactions import (
    CommittedOffset,
    LastSequence,
    TransactionQueryError,
    committed_offset,
    last_sequences,
    max_timeout,
)
from cyproducer.producer.shared_transaction import Shared, sender_of, share
from cyproducer.shm import system_clock

__all__ = ["FencedDriverError", "Owner"]

LONGEST_MS = 900_000
"""The default of Kafka's broker setting transaction.max.timeout.ms."""
SHORTEST_MS = 1_000

_FENCED = (errors.ProducerFencedError, errors.InvalidProducerEpochError)

logger = logging.getLogger("cyproducer.spark")


class FencedDriverError(RuntimeError):
    """Another driver has begun to write with the same id."""


class OffsetAndMetadata(NamedTuple):
    """An offset, in the form that send_offsets_to_transaction() takes."""

    offset: int
    metadata: str


class Owner:
    """The transactional producer of a driver. It is made by open(), and again after each problem: that aborts.

    settings      those of KafkaProducer, without transactional ones
    timeout_ms    how long a transaction may take; None: 15 minutes, or less if the brokers do not allow that
    """

    def __init__(self, transactional_id: str, settings: dict[str, Any], timeout_ms: int | None) -> None:
        self.transactional_id = transactional_id
        self.timeout_ms = LONGEST_MS if timeout_ms is None else timeout_ms
        self._settings = settings
        self._may_shorten = self._may_ask = timeout_ms is None
        self._producer: KafkaProducer | None = None
        self._shared: Shared | None = None
        self._began = 0.0
        self._warning: threading.Timer | None = None

    @property
    def is_open(self) -> bool:
        """Whether this driver has the transactional id, as far as it knows."""
        return self._producer is not None

    @property
    def producer(self) -> KafkaProducer:
        """The producer; only after open()."""
        assert self._producer is not None
        return self._producer

    @property
    def shared(self) -> Shared:
        """What the tasks have to know of the transaction; only after begin()."""
        assert self._shared is not None
        return self._shared

    @property
    def participant_settings(self) -> dict[str, Any]:
        """The settings of the producers of tasks."""
        return self._settings | {
            "transactional_id": self.transactional_id,
            "transaction_timeout_ms": self.timeout_ms,
        }

    def open(self) -> None:
        """Fence every earlier producer of the transactional id, and abort what it has left."""
        while True:
            producer = KafkaProducer(**self.participant_settings)
            try:
                producer.init_transactions()
            except errors.InvalidTransactionTimeoutError:
                try:
                    if not self._may_shorten or (shorter_ms := self._shorter_ms(producer)) < SHORTEST_MS:
                        raise
                finally:
                    producer.close(0)
                self.timeout_ms = shorter_ms
            except BaseException:
                producer.close(0)
                raise
            else:
                self._producer, self._began = producer, system_clock.monotonic()
                return

    def _shorter_ms(self, producer: KafkaProducer) -> int:
        """Return the longest time that the brokers allow, or half of the present one if they do not tell it."""
        half_ms = self.timeout_ms // 2
        if not self._may_ask:
            return half_ms
        self._may_ask = False
        try:
            allowed_ms = max_timeout(sender_of(producer).address, self.transactional_id)
        except (TransactionQueryError, errors.SenderUnavailableError, OSError) as error:
            logger.info("the longest time of a transaction is not known, half is tried: %s", error)
            return half_ms
        return allowed_ms if allowed_ms < self.timeout_ms else half_ms

    def begin(self, what: str) -> Shared:
        """Begin a transaction, and return what the tasks need. `what` is written, for the warning at half the time."""
        self.producer.begin_transaction()
        self._began = system_clock.monotonic()
        self._shared = share(self.producer)
        self._warning = threading.Timer(self.timeout_ms / 2000, self._warn, (what,))
        self._warning.daemon = True
        self._warning.start()
        return self._shared

    def _warn(self, what: str) -> None:
        logger.warning(
            "%s has taken half of the time that a transaction may take (%.0f s). After this time the broker aborts it, "
            "and the rows are written again. Read less at once, or give transaction_timeout_ms and raise the broker's "
            "transaction.max.timeout.ms",
            what,
            self.timeout_ms / 1000,
        )

    @property
    def has_expired(self) -> bool:
        """Whether the broker has aborted the transaction that has begun last, because it took too long."""
        return system_clock.monotonic() - self._began >= self.timeout_ms / 1000

    def offset(self, group: str, topic: str) -> CommittedOffset:
        """Return what a group has committed for partition 0 of a topic, when no transaction may change it."""
        return committed_offset(sender_of(self.producer).address, group, topic, 0)

    def add_offset(self, group: str, topic: str, committed: CommittedOffset) -> None:
        """Commit an offset of partition 0 of a topic with the transaction."""
        offsets = {(topic, 0): OffsetAndMetadata(committed.offset, committed.metadata)}
        self.producer.send_offsets_to_transaction(offsets, group)

    def sequences(self, partitions: Sequence[tuple[str, int]]) -> dict[tuple[str, int], LastSequence]:
        """Return what the leader of each partition knows of this producer."""
        return last_sequences(sender_of(self.producer).address, self.shared.producer_id, partitions)

    def commit(self) -> None:
        """Commit. A call without a result is repeated until the transaction has taken the longest time."""
        while True:
            try:
                self.producer.commit_transaction()
            except errors.KafkaTimeoutError:
                if self.has_expired:
                    raise
            else:
                break
        self._end_warning()
        if not self.shared.v2:
            # Without KIP-890 a commit keeps the epoch, and the tasks' sequences must begin with 0.
            self.close()

    def give_up(self) -> None:
        """Abort the transaction and close the producer. Raise FencedDriverError if another driver has taken the id.

        Other problems are logged: the next open() aborts.
        """
        if self._producer is None:
            return
        if self._shared is None:  # no task has written; the sender aborts what has begun
            self.close()
            return
        try:
            self._producer.abort_transaction()
        except _FENCED as error:
            if not self.has_expired:
                raise FencedDriverError(
                    f"another driver writes with the transactional id {self.transactional_id!r}: {error.message}. "
                    "This one has stopped, and what it had not committed is aborted. Each query and each concurrent "
                    "write needs an id of its own"
                ) from error
            logger.warning("the transaction of %s took longer than %d ms", self.transactional_id, self.timeout_ms)
        except errors.KafkaError as error:
            logger.warning("the transaction of %s was not aborted yet: %s", self.transactional_id, error)
        finally:
            self.close()

    def close(self) -> None:
        """Close the producer. The sender aborts a transaction that is open."""
        self._end_warning()
        producer, self._producer, self._shared = self._producer, None, None
        if producer is not None:
            producer.close(0)

    def _end_warning(self) -> None:
        if self._warning is not None:
            self._warning.cancel()
            self._warning = None
