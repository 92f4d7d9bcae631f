"""Sends log records to a topic: `KafkaHandler`, a handler of the standard library's `logging`.

A log call must neither wait for Kafka nor raise because of it. So the handler's producer does not wait at all, and
records that it cannot take yet are kept, up to a number, and sent by a thread. What is dropped is counted and reported.
"""

import collections
import contextlib
import logging
import os
import threading
from collections.abc import Iterator
from typing import Any, NamedTuple

from cyproducer import KafkaProducer, errors
from cyproducer.shm import system_clock

__all__ = ["KafkaHandler"]

_log = logging.getLogger("cyproducer")
#: How often records that were kept are tried again.
_RETRY_S = 0.05
#: At most one warning about dropped records is logged in this time.
_WARNING_S = 10.0
#: What ends by itself: no sender yet, no metadata of the topic yet, no memory free.
_NOT_YET = (errors.SenderUnavailableError, errors.KafkaTimeoutError, errors.BufferExhaustedError)


class _Entry(NamedTuple):
    value: bytes
    timestamp_ms: int


class _Emitting(threading.local):
    """Whether this thread is inside the handler: what is logged there would come back to it."""

    now = False


class KafkaHandler(logging.Handler):
    """A handler that sends each log record to a topic. It neither blocks the caller nor sends its own log lines.

    topic             the name of the topic
    key               the key of every record, as bytes or text; without it, records go to any partition
    level             the lowest level of the records that are sent
    capacity          how many records are kept while there is no sender, no metadata or no free memory; further ones
                      are dropped
    flush_timeout_s   how long flush() and close() wait, in seconds; `logging` calls both at the end of the process
    configs           the settings of the producer, as for KafkaProducer, without `max_block_ms` and serializers

    The value is the formatted record in UTF-8, and the timestamp is the time of the log call. Log records of cyproducer
    itself, and those that are logged while a record is sent, are not sent. A forked child does not send what its
    parent has kept. Raise KafkaConfigurationError if a setting is wrong.
    """

    def __init__(
        self,
        topic: str,
        *,
        key: bytes | str | None = None,
        level: int | str = logging.NOTSET,
        capacity: int = 10_000,
        flush_timeout_s: float = 5.0,
        **configs: Any,
    ) -> None:
        for name in ("max_block_ms", "key_serializer", "value_serializer"):
            if name in configs:
                raise errors.KafkaConfigurationError(
                    f"KafkaHandler does not accept {name}: it never waits, and sends formatted text; leave it out"
                )
        super().__init__(level)
        self.topic = topic
        self._key = key.encode() if isinstance(key, str) else key
        self._capacity = capacity
        self._flush_timeout_s = flush_timeout_s
        self._producer = KafkaProducer(max_block_ms=0, **configs)
        self._emitting = _Emitting()
        self._waiting: collections.deque[_Entry] = collections.deque()
        self._process = os.getpid()
        self._thread: threading.Thread | None = None
        self._trouble = ""
        self._dropped = 0
        self._failed = 0
        self._reported = 0
        self._report_at = 0.0

    @property
    def dropped(self) -> int:
        """How many log records did not reach the topic, or may not have reached it."""
        return self._dropped + self._failed

    def handle(self, record: logging.LogRecord) -> Any:
        """Send the record if the filters accept it. Called by `logging`."""
        if self._emitting.now or record.name == "cyproducer" or record.name.startswith("cyproducer."):
            return False
        with self._ignoring_this_thread():
            handled = super().handle(record)
        self._report()
        return handled

    def emit(self, record: logging.LogRecord) -> None:
        """Send the record, or keep it until it can be sent. Called with the handler's lock."""
        try:
            value = self.format(record).encode("utf-8", "backslashreplace")
            entry = _Entry(value, int(record.created * 1000))
            if self._send_waiting() and self._sent(entry):
                return
            if len(self._waiting) < self._capacity:
                self._waiting.append(entry)
                self._start_thread()
            else:
                self._dropped += 1
        except RecursionError:
            raise
        except Exception:
            self.handleError(record)

    def flush(self) -> None:
        """Wait until all records are acknowledged, but not longer than `flush_timeout_s`."""
        deadline = system_clock.monotonic() + self._flush_timeout_s
        while not self._sent_all() and system_clock.monotonic() < deadline:
            threading.Event().wait(_RETRY_S)
        with contextlib.suppress(errors.KafkaError):
            self._producer.flush(max(0.0, deadline - system_clock.monotonic()))

    def close(self) -> None:
        """Flush, and close the producer. What is still kept is dropped."""
        self.flush()
        self.acquire()
        try:
            self._dropped += len(self._waiting)
            self._waiting.clear()
        finally:
            self.release()
        with contextlib.suppress(errors.KafkaError):
            self._producer.close(self._flush_timeout_s)
        self._report()
        super().close()

    # ---------------------------------------------------------------- with the handler's lock

    def _send_waiting(self) -> bool:
        """Send what was kept, in order. Return whether nothing is kept any more."""
        if self._process != os.getpid():
            self._process = os.getpid()
            self._waiting.clear()
        while self._waiting and self._sent(self._waiting[0]):
            self._waiting.popleft()
        return not self._waiting

    def _sent(self, entry: _Entry) -> bool:
        """Give the record to the producer. Return False if it may succeed later. One that never can is dropped."""
        try:
            self._producer.send(
                self.topic, entry.value, self._key, timestamp_ms=entry.timestamp_ms, on_delivery=self._on_delivery
            )
        except _NOT_YET as error:
            self._trouble = str(error)
            return False
        except errors.KafkaError as error:
            self._trouble = str(error)
            self._dropped += 1
        return True

    def _start_thread(self) -> None:
        """Start the thread that tries again, unless it is running."""
        if self._thread is not None and self._thread.is_alive():
            return
        self._thread = threading.Thread(target=self._retry, name="cyproducer-log", daemon=True)
        with contextlib.suppress(RuntimeError):  # no thread can be started: the next log call tries again
            self._thread.start()

    # ---------------------------------------------------------------- without the lock

    @contextlib.contextmanager
    def _ignoring_this_thread(self) -> Iterator[None]:
        """Ignore what this thread logs: its own log calls while it formats or sends a record."""
        self._emitting.now = True
        try:
            yield
        finally:
            self._emitting.now = False

    def _sent_all(self) -> bool:
        """Try again to send what was kept. Return whether nothing is kept any more."""
        self.acquire()
        try:
            with self._ignoring_this_thread():
                if not self._send_waiting():
                    return False
            self._thread = None
            return True
        finally:
            self.release()

    def _retry(self) -> None:
        """Try again until nothing is kept any more. Runs in a thread."""
        while not self._sent_all():
            threading.Event().wait(_RETRY_S)
            self._report()

    def _on_delivery(self, error: errors.KafkaError | None, _record: object) -> None:
        if error is not None:
            self._trouble = str(error)
            self._failed += 1

    def _report(self) -> None:
        """Log how many records were dropped. Without the lock: other handlers have locks too."""
        now = system_clock.monotonic()
        if self.dropped == self._reported or now < self._report_at:
            return
        self._report_at = now + _WARNING_S
        self._reported, new = self.dropped, self.dropped - self._reported
        _log.warning("%d log records for the topic %s were dropped: %s", new, self.topic, self._trouble)
