"""Calls the interceptors of a producer, by the rules of Kafka's `ProducerInterceptors`.

`on_send` is called before anything else happens to a record, on the thread of `send()`. `on_acknowledgement` is called
once for each record, just before its `on_delivery`: on the callback thread, or on the thread of `send()` if that raises
an error. If it takes a third argument, it gets the headers that the record was sent with (KIP-512). What an interceptor
raises is logged and changes nothing else.
"""

import inspect
import logging
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from cyproducer.errors import KafkaError
from cyproducer.producer.core.native import RecordMetadata
from cyproducer.shm import system_clock
from cyproducer.types import ProducerRecord

_log = logging.getLogger("cyproducer")

#: A failure of the same kind is logged once in this time.
LOG_INTERVAL_S = 10.0
_PARTITION_MAX = 2**31 - 1

T = TypeVar("T")


class Acknowledgement:
    """An `on_delivery` that calls the interceptors, and then the `on_delivery` of the application."""

    __slots__ = ("chain", "headers", "on_delivery")

    def __init__(self, chain: "Interceptors", on_delivery: Callable[..., object] | None, headers: Any) -> None:
        self.chain, self.on_delivery, self.headers = chain, on_delivery, headers

    def __call__(self, error: KafkaError | None, metadata: RecordMetadata) -> None:
        self.chain.acknowledge(metadata, error, self.headers, BaseException)
        if self.on_delivery is not None:
            self.on_delivery(error, metadata)


class Interceptors:
    """The interceptors of one producer, in the order in which they are called."""

    def __init__(self, interceptors: tuple[Any, ...]) -> None:
        self._to_close = list(interceptors)
        self.on_sends = [each for each in interceptors if callable(getattr(each, "on_send", None))]
        self.on_acknowledgements = [
            each for each in interceptors if callable(getattr(each, "on_acknowledgement", None))
        ]
        #: Those of them that take the headers of the record.
        self._with_headers = {id(each) for each in self.on_acknowledgements if _accepts_headers(each)}
        self._latest = Acknowledgement(self, None, None)
        self._without = self._latest
        self._logged: dict[tuple[int, str], tuple[float, int]] = {}

    # ---------------------------------------------------------------- before a record is queued

    def send(self, send: Callable[..., T], record: ProducerRecord, on_delivery: Any) -> T:
        """Return `send(topic, ..., timestamp_ms, on_delivery)` of the record that the interceptors return."""
        record = self.on_send(record)
        try:
            return send(*record, self.acknowledgement(on_delivery, record.headers))
        except BaseException as error:
            self.refused(record, error)
            raise

    def send_async(
        self, send: Callable[..., Coroutine[Any, Any, T]], record: ProducerRecord, on_delivery: Any
    ) -> Coroutine[Any, Any, T]:
        """Do the same for a `send` that returns a coroutine."""
        record = self.on_send(record)
        try:
            coroutine = send(*record, self.acknowledgement(on_delivery, record.headers))
        except BaseException as error:
            self.refused(record, error)
            raise
        return self._finish(coroutine, record)

    async def _finish(self, coroutine: Coroutine[Any, Any, T], record: ProducerRecord) -> T:
        try:
            return await coroutine
        except BaseException as error:  # also if the task is cancelled: the record was not queued
            self.refused(record, error)
            raise

    def on_send(self, record: ProducerRecord) -> ProducerRecord:
        """Return what the last interceptor with a right answer has returned."""
        for each in self.on_sends:
            try:
                answer = each.on_send(record)
            except Exception:
                self._warn(each, "on_send", f"raised an exception for topic {record.topic!r}", True)
                continue
            if isinstance(answer, ProducerRecord):
                record = answer
            else:
                problem = f"returned {type(answer).__name__}, not a ProducerRecord, for topic {record.topic!r}"
                self._warn(each, "on_send", problem, False)
        return record

    # ---------------------------------------------------------------- the outcome of a record

    def acknowledgement(self, on_delivery: Any, headers: Any) -> Any:
        """Return the `on_delivery` for a record: the same object for the same argument as in the last call.

        It is another object for each record if an interceptor takes the headers.
        """
        if not self.on_acknowledgements or (on_delivery is not None and not callable(on_delivery)):
            return on_delivery
        if self._with_headers:
            return Acknowledgement(self, on_delivery, headers)
        if on_delivery is None:
            return self._without
        latest = self._latest
        if latest.on_delivery is not on_delivery:
            latest = self._latest = Acknowledgement(self, on_delivery, None)
        return latest

    def refused(self, record: ProducerRecord, error: BaseException) -> None:
        """Report a record that was not queued. Its metadata has no offset, and -1 as partition if none was given."""
        partition = record.partition
        if type(partition) is not int or not 0 <= partition <= _PARTITION_MAX:
            partition = -1
        metadata = None
        if isinstance(record.topic, str):
            metadata = RecordMetadata(str(record.topic), partition, -1, -1, -1, -1)
        self.acknowledge(metadata, error, record.headers, Exception)

    def acknowledge(
        self, metadata: RecordMetadata | None, error: BaseException | None, headers: Any, caught: type[BaseException]
    ) -> None:
        """Call `on_acknowledgement` of each. Log what is `caught`: on the callback thread nothing may stop the rest."""
        for each in self.on_acknowledgements:
            try:
                if id(each) in self._with_headers:
                    each.on_acknowledgement(metadata, error, headers)
                else:
                    each.on_acknowledgement(metadata, error)
            except caught:
                where = "" if metadata is None else f" for topic {metadata.topic!r}, partition {metadata.partition}"
                self._warn(each, "on_acknowledgement", f"raised an exception{where}", True)

    # ---------------------------------------------------------------- the rest

    def close(self) -> None:
        """Call `close()` of each interceptor that has it. A repetition goes on where an exception has ended this."""
        while self._to_close:
            close_quietly(self._to_close[0], "interceptor")
            del self._to_close[0]

    def _warn(self, interceptor: Any, method: str, problem: str, traceback: bool) -> None:
        """Log a problem, at most once in LOG_INTERVAL_S for each method of each interceptor."""
        key = id(interceptor), method
        now = system_clock.monotonic()
        due, left_out = self._logged.get(key, (0.0, 0))
        if now < due:
            self._logged[key] = due, left_out + 1
            return
        self._logged[key] = now + LOG_INTERVAL_S, 0
        more = f"; {left_out} earlier problems were not logged" if left_out else ""
        try:
            _log.warning(
                "interceptor %s: %s() %s; the record is not affected%s",
                type(interceptor).__name__, method, problem, more, exc_info=traceback,
            )  # fmt: skip
        except Exception:
            pass  # a log handler has failed, which must not affect the record either


def _accepts_headers(interceptor: Any) -> bool:
    """Return whether `on_acknowledgement` can be called with three arguments."""
    try:
        inspect.signature(interceptor.on_acknowledgement).bind(None, None, None)
    except (TypeError, ValueError):  # it takes two, or it does not tell
        return False
    return True


def close_quietly(extension: Any, what: str) -> None:
    """Call `close()` of an interceptor or partitioner that has it, and log what it raises."""
    close = getattr(extension, "close", None)
    if not callable(close):
        return
    try:
        close()
    except Exception:
        _log.exception("close() of the %s %s raised an exception", what, type(extension).__name__)
