"""Implements `KafkaProducer.transaction()`, a context manager for threads and for asyncio."""

from types import TracebackType
from typing import Any, Self

from cyproducer import errors
from cyproducer.producer.transactions.methods import manager_of, run_async
from cyproducer.producer.transactions.transaction_manager import State, TransactionManager

__all__ = ["Transaction"]


class Transaction:
    """A transaction as a context manager: `with producer.transaction():` or `async with producer.transaction():`.

    A normal end of the block commits. An exception aborts and is raised again; if the abort fails as well, a note of
    the exception says so. A commit that fails so that the transaction can only be aborted is aborted, and its error is
    raised. A block that has ended the transaction itself is left as it is.
    """

    def __init__(self, producer: Any) -> None:
        self._producer = producer
        self._manager = manager_of(producer, "transaction")
        self._begun = 0

    def __enter__(self) -> Self:
        self._producer.begin_transaction()
        self._begun = self._manager.begun
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        if error is None:
            if not self._has_ended():
                self._commit()
        elif self._manager.is_open(self._begun):
            try:
                self._producer.abort_transaction()
            except errors.KafkaError as failure:
                _note(error, failure)

    def _commit(self) -> None:
        try:
            self._producer.commit_transaction()
        except errors.KafkaError as error:
            self.__exit__(type(error), error, None)
            raise

    async def __aenter__(self) -> Self:
        await run_async(self._producer, TransactionManager.begin_transaction, None)
        self._begun = self._manager.begun
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        if error is None:
            if not self._has_ended():
                await self._commit_async()
        elif self._manager.is_open(self._begun):
            try:
                await self._producer.abort_transaction_async()
            except errors.KafkaError as failure:
                _note(error, failure)

    async def _commit_async(self) -> None:
        try:
            await self._producer.commit_transaction_async()
        except errors.KafkaError as error:
            await self.__aexit__(type(error), error, None)
            raise

    def _has_ended(self) -> bool:
        return self._manager.begun != self._begun or self._manager.state is State.READY


def _note(error: BaseException, failure: errors.KafkaError) -> None:
    error.add_note(f"abort_transaction() has failed as well: {failure}")
