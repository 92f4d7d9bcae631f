"""Calls the transactional methods: checks that this producer has them, and runs them in a thread for asyncio."""

import math
from collections.abc import Callable, Coroutine
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from cyproducer import errors
from cyproducer.config.settings import Settings
from cyproducer.producer.session.kafka_metrics import count_refused
from cyproducer.producer.transactions.call import Call
from cyproducer.producer.transactions.transaction_manager import Producer, TransactionManager
from cyproducer.producer.waiting.blocking import deadline_after

__all__ = ["manager_of", "run", "run_async", "send_counted"]

_LONGEST_S = 1e8

P = ParamSpec("P")
T = TypeVar("T")
Method = Callable[Concatenate[TransactionManager, Producer, Call, P], None]


class TransactionalProducer(Producer, Protocol):
    """What these functions use of KafkaProducer besides."""

    @property
    def settings(self) -> Settings: ...
    @property
    def _transactions(self) -> TransactionManager | None: ...
    def _enter_send(self, method: str) -> int: ...
    def _leave_send(self, thread: int) -> None: ...


def run(
    producer: TransactionalProducer, method: Method[P], timeout: float | None, *args: P.args, **kwargs: P.kwargs
) -> None:
    """Call a method of the producer's TransactionManager.

    Raise IllegalStateError without transactional_id and in a forked child, ProducerClosedError, ValueError for a
    negative timeout, and the errors of the method.
    """
    manager = manager_of(producer, method.__name__)
    method(manager, producer, Call(method.__name__, _seconds(producer, timeout)), *args, **kwargs)


async def run_async(
    producer: TransactionalProducer, method: Method[P], timeout: float | None, *args: P.args, **kwargs: P.kwargs
) -> None:
    """Do the same in a thread. If this is cancelled, the thread ends soon, and the call can be repeated."""
    import asyncio  # 50 ms that other programs save

    manager = manager_of(producer, method.__name__)
    call = Call(method.__name__, _seconds(producer, timeout), interruptible=True)
    try:
        await asyncio.to_thread(method, manager, producer, call, *args, **kwargs)
    except asyncio.CancelledError:
        manager.cancel(producer, call)
        raise


async def send_counted(producer: TransactionalProducer, send: Callable[..., Coroutine[Any, Any, T]], *args: Any) -> T:
    """Await `send(producer, *args)` as a part of the transaction. Raise an error outside of one."""
    try:
        thread = producer._enter_send("send_async")
    except errors.KafkaError as error:
        count_refused(producer, error)
        raise
    try:
        return await send(producer, *args)
    finally:
        producer._leave_send(thread)


def manager_of(producer: TransactionalProducer, name: str) -> TransactionManager:
    """Return the producer's TransactionManager. Raise the errors of a producer that cannot be used for `name`."""
    _ = producer._session  # raises in a forked child
    manager = producer._transactions
    if manager is None:
        raise errors.IllegalStateError(
            f"{name}() needs a transactional producer: give KafkaProducer the setting transactional_id"
        )
    if producer._is_closed:
        raise errors.ProducerClosedError("the producer is closed")
    return manager


def _seconds(producer: TransactionalProducer, timeout: float | None) -> float:
    if timeout is None:
        return producer.settings.max_block_ms / 1000
    deadline_after(timeout)  # raises TypeError
    if math.isnan(timeout) or timeout < 0:
        raise ValueError(f"timeout={timeout}: expected a number of seconds from 0 on, or None")
    return min(float(timeout), _LONGEST_S)
