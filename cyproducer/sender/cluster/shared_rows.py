"""Frees the rows of transactions that another process ends, when they have no participants and are over.

Until then a row keeps its sequences for the next participants. A row is freed when a front-end of this sender has ended
the transaction, when the coordinator says that it is over, or after the time limit of the transaction.
"""

from cyproducer.protocol.versions import ApiKey
from cyproducer.sender.cluster.calls import TRANSACTION, Answer, CallError, Calls, UnsupportedError, always
from cyproducer.sender.cluster.transaction_rows import Row
from cyproducer.sender.cluster.transaction_steps import TransactionSteps
from cyproducer.sender.engine.native import TransactionTable
from cyproducer.sender.engine.transaction_row import TransactionRow
from cyproducer.sender.system.tasks import Tasks

__all__ = ["SharedRows"]

LOOK_MS = 1_000
ASK_MS = 5_000  # how often the coordinator is asked
SHARED_MAX_MS = 900_000  # the broker's default of transaction.max.timeout.ms


class _NotNeededError(Exception):
    """The row is used again, or must end in any case."""


class SharedRows:
    """Makes the coroutines that free shared rows. `steps` adds the partitions that batches wait for."""

    def __init__(self, calls: Calls, tasks: Tasks, table: TransactionTable, steps: TransactionSteps) -> None:
        self._calls = calls
        self._tasks = tasks
        self._table = table
        self._steps = steps

    async def expire(self, row: Row) -> None:
        """Free a row without participants when its transaction is over. Return if there are some again."""
        asked_ms = self._tasks.now_ms
        is_over = False
        while not self._state(row).participants:
            await self._steps.add_partitions(row)
            if not is_over and (self._has_newer(row) or self._tasks.now_ms >= asked_ms + ASK_MS):
                is_over = await self._asked(row)
                asked_ms = self._tasks.now_ms
            if (is_over or row.is_superseded or self._is_late(row)) and self._table.remove(row.index):
                return
            row.awaits_news = True
            await row.news.wait(LOOK_MS)
            row.awaits_news = False

    def _has_newer(self, row: Row) -> bool:
        """Return whether participants have given a newer epoch, which may be wrong."""
        state = self._state(row)
        return any(
            other.epoch > state.epoch
            and (other.transactional_id, other.producer_id) == (state.transactional_id, state.producer_id)
            for other in (self._table.read(index) for index in self._table.rows())
        )

    def _is_late(self, row: Row) -> bool:
        limit_ms = min(self._state(row).timeout_ms, SHARED_MAX_MS)
        return row.ended_at_ms is not None and self._tasks.now_ms >= row.ended_at_ms + limit_ms

    async def _asked(self, row: Row) -> bool:
        """Return whether the coordinator says that the transaction is over. False if it does not say it.

        A broker before Kafka 3.0 cannot say it. Then the newer epoch of a participant counts.
        """
        try:
            return await self._describe(row)
        except _NotNeededError:
            return False
        except UnsupportedError:
            return self._has_newer(row)
        except CallError:  # it does not answer, or a permission is missing
            return False

    async def _describe(self, row: Row) -> bool:
        broker_id = await self._calls.find_coordinator(TRANSACTION, row.name, lambda: self._check(row))
        self._check(row)
        body = always({"transactional_ids": [row.name]})
        answer = await self._calls.ask(broker_id, ApiKey.DESCRIBE_TRANSACTIONS, body)
        self._check(row)
        return any(_is_over(found, self._state(row)) for found in answer["transaction_states"])

    def _check(self, row: Row) -> None:
        if self._state(row).participants or self._is_late(row):
            raise _NotNeededError

    def _state(self, row: Row) -> TransactionRow:
        return self._table.read(row.index)


def _is_over(found: Answer, state: TransactionRow) -> bool:
    """Return whether a transaction is over for certain, as the coordinator describes its transactional id.

    The id has another producer id or a newer epoch, and no end of a transaction is being written: until then a leader
    takes further batches of the former epoch, whose sequences only this row knows. The same epoch does not tell it:
    with KIP-890 the id has it before the first record, and without KIP-890 the next transaction may have the same one.
    """
    if found["error_code"] or found["transactional_id"] != state.transactional_id:
        return False
    is_newer = found["producer_id"] != state.producer_id or found["producer_epoch"] > state.epoch
    return is_newer and not found["transaction_state"].startswith("Prepare")
