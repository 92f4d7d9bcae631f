"""Implements KafkaProducer, the public API.

send() has two paths. The fast path takes plain bytes, ints and headers with ASCII names for a known topic and appends
the record to an open batch; it calls no Python code before the record is committed. The slow path prepares the record
first, then tries to append it until it succeeds, and waits in between for what was missing.
"""

import logging
import time

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.object cimport PyCallable_Check, PyObject
from libc.stdint cimport int64_t, uint32_t, uint64_t

from cyproducer.producer.arena.append cimport Chain, append_record
from cyproducer.producer.arena.arena cimport HAVE_ROOM, NEED_METADATA, NEED_SESSION, Room
from cyproducer.producer.arena.partitioner cimport key_partition
from cyproducer.producer.arena.send_arguments cimport FEW_HEADERS, batch_size_bound, prepare, small_number, view_headers
from cyproducer.producer.arena.topic_table cimport Topic
from cyproducer.producer.results.futures cimport (
    Batch, Future, fresh_delivery, room_for_delivery, set_future, watch_delivery,
)
from cyproducer.producer.results.native_only cimport patchable
from cyproducer.producer.session.batch_compressor cimport pack_closed
from cyproducer.producer.session.session cimport interpreter_ends
from cyproducer.record.encode cimport HeaderView, RecordView, record_size_bound
from cyproducer.record.header cimport BATCH_HEADER_BYTES
from cyproducer.shm.atomics cimport load_acquire
from cyproducer.shm.clock cimport realtime_coarse_ms

from cyproducer import errors
from cyproducer.config.settings import Settings
from cyproducer.producer.arena.topic_table import check_name
from cyproducer.producer.attach.connect import SlowSenderError
from cyproducer.producer.attach.sender_address import Address
from cyproducer.producer.attach.supported import check_platform
from cyproducer.producer.results.waiter import Waiter
from cyproducer.producer.waiting import exit_flush, reattach
from cyproducer.producer.waiting.poll import deadline_after, wait_batches, wait_until
from cyproducer.producer.waiting.retry import BlockingRetry, BlockingWaiter, run_blocking, wait_metadata

cdef double ATTACH_S = 10           # longer than starting a sender and attaching to it takes

_log = logging.getLogger("cyproducer")
_parent_sessions = []   # the parent's sessions, kept in a forked child: freeing them would write to its memory


@cython.embedsignature(False)
cdef class KafkaProducer:
    """KafkaProducer(**configs)
--

    Publishes records to Kafka through the sender process that all producers of this host share.

    Settings have Kafka's names, in snake case (`linger_ms=5`) or dotted (`**{"linger.ms": 5}`). The constructor
    checks them and starts nothing. The first use attaches to the sender, and starts one if none runs. Threads can
    share a producer, and it works in forked children. Pickles and copies contain its settings only.
    Raises KafkaConfigurationError, UnsupportedPlatformError.
    """

    def __init__(self, *args, **configs):
        if args:
            raise TypeError(
                f"KafkaProducer takes settings by name only, not {type(args[0]).__name__}: KafkaProducer(linger_ms=5), "
                'or KafkaProducer(**{"linger.ms": 5})'
            )
        check_platform()
        self.configure(Settings.parse(**configs))

    cdef object configure(self, object settings):
        self.settings = settings
        self.address = Address(settings)
        self.session = Session(None, None)
        self.lines = {}
        self.key_serializer, self.value_serializer = settings.key_serializer, settings.value_serializer
        self.plain = settings.key_serializer is None and settings.value_serializer is None
        self.ignore_keys = settings.partitioner_ignore_keys
        self.max_request = settings.max_request_size
        self.max_block_s = settings.max_block_ms / 1000

    @cython.binding(False)
    def send(self, topic, value=None, key=None, headers=None, partition=None, timestamp_ms=None, on_delivery=None):
        """send($self, topic, value=None, key=None, headers=None, partition=None, timestamp_ms=None, on_delivery=None)
--

        Queue a record for sending and return its future, without waiting for the broker.

        topic         str
        value, key    bytes, bytearray, contiguous memoryview, None (Kafka's null; serializers do not see it), or
                      any type that the serializer accepts
        headers       sequence of (str, bytes or None)
        partition     int; default: by the key's hash as in Java, without a key the sticky partition
        timestamp_ms  int, ms since 1970; default: now, at most 4 ms old
        on_delivery   called once, as on_delivery(error or None, RecordMetadata), on the callback thread

        Block up to max_block_ms for the sender, metadata or memory. If it raises, the record was not queued. Raise
        TypeError, ValueError, InvalidTopicError, TopicAuthorizationFailedError, SerializationError,
        RecordTooLargeError, KafkaTimeoutError, BufferExhaustedError, SenderUnavailableError, ProducerClosedError.
        """
        cdef Session session = self.session
        cdef Topic known
        cdef Chain *chain
        cdef Future future
        cdef RecordView record
        cdef int64_t timestamp = -1, wanted = -1, delta
        cdef int32_t chosen
        cdef HeaderView views[FEW_HEADERS]
        cdef Py_ssize_t header_bytes = 0
        record.headers, record.header_count = views, 0
        if headers is not None:
            record.header_count = view_headers(headers, views, &header_bytes)
        if timestamp_ms is not None:
            timestamp = small_number(timestamp_ms)
        if partition is not None:
            wanted = small_number(partition)
        if (
            self.plain and session.sentinel[0] == session.token
            and (type(value) is bytes or value is None) and (type(key) is bytes or key is None)
            and record.header_count >= 0
            and (partition is None or wanted >= 0) and (timestamp_ms is None or timestamp >= 0)
            and (on_delivery is None or session.delivery is not None and PyCallable_Check(on_delivery))
            and (<PyObject *>topic == <PyObject *>session.cached_name or session.recall(topic))
        ):
            known = session.cached_topic
            record.key = record.value = NULL
            record.key_length = record.value_length = -1
            if value is not None:
                record.value, record.value_length = <const uint8_t *>PyBytes_AS_STRING(value), PyBytes_GET_SIZE(value)
            if key is not None:
                record.key, record.key_length = <const uint8_t *>PyBytes_AS_STRING(key), PyBytes_GET_SIZE(key)
            if known.partition_count > 0 and wanted < known.partition_count:
                if wanted >= 0:
                    chosen = <int32_t>wanted
                elif key is None or self.ignore_keys:
                    chosen = session.sticky_partition(known)
                else:
                    chosen = key_partition(record.key, record.key_length, known.partition_count)
                chain = &known.chains[chosen]
                if timestamp < 0:
                    timestamp = realtime_coarse_ms()
                future = Future.__new__(Future)
                delta = timestamp - chain.base_timestamp
                # Compared as unsigned: a negative delta, after the wall clock was set back, counts as large.
                if timestamp_ms is None and <uint64_t>delta > <uint64_t>session.check_after_ms and chain.limit != 0:
                    session.look()  # the batch should have been sealed long ago: check whether the sender is gone
                elif (
                    chain.limit != 0 and -0x7fffffff <= delta <= 0x7fffffff
                    and (on_delivery is None or room_for_delivery(<Batch>chain.batch, on_delivery, None))
                    and append_record(
                        &session.port, chain, timestamp, &record, record_size_bound(&record, header_bytes)
                    )
                ):
                    future.batch = <Batch>chain.batch
                    future.index = chain.total - 1
                    future.timestamp_delta = <int32_t>delta
                    future.key_size = <int32_t>record.key_length
                    future.value_size = <int32_t>record.value_length
                    if on_delivery is not None:
                        watch_delivery(future, on_delivery, None)
                    return future
        if not self.plain:
            key = self.serialize(self.key_serializer, topic, headers, key, "key_serializer")
            value = self.serialize(self.value_serializer, topic, headers, value, "value_serializer")
        return self.send_blocking(prepare(topic, value, key, headers, partition, timestamp_ms, on_delivery))

    def send_async(
        self, topic, value=None, key=None, headers=None, partition=None, timestamp_ms=None, on_delivery=None
    ):
        """Do what `send()` does, for asyncio: `future = await producer.send_async(...)` never blocks the event loop.

        While it waits for the sender, metadata or memory, the loop runs. `await future` gives the RecordMetadata.
        """
        from cyproducer.producer.waiting import aio  # loads asyncio: 50 ms that other programs save

        if not self.plain:
            key = self.serialize(self.key_serializer, topic, headers, key, "key_serializer")
            value = self.serialize(self.value_serializer, topic, headers, value, "value_serializer")
        record = prepare(topic, value, key, headers, partition, timestamp_ms, on_delivery)
        return aio.send(self, record, self.max_block_s)

    def send_array(self, topic, values, keys=None, partition=None, timestamps_ms=None, headers=None):
        """Send the rows of arrays, in order. Return one future for all rows; its result is an `ArrayMetadata`.

        values, keys   a 1-D array of a fixed-width dtype (all bytes of an element as they are in memory: `S` with
                       its padding), a 2-D array of uint8 (one row is one record), a (data, offsets) pair, a list
                       of bytes and None, or an Arrow array or stream of a binary or string type. Masked and null
                       elements become Kafka's null. Serializers do not run. `keys` may be None
        partition      int for all rows, or an integer or null per row; default: as in `send()`
        timestamps_ms  int for all rows, or integers (ms since 1970), datetime64 or Arrow timestamps, rounded
                       down to ms; null and NaT mean now
        headers        a list of (str, bytes or None) for all rows, a list of such lists, or Arrow's
                       list<struct<key: string, value: binary>>

        Check all arguments, sizes and partitions before the first row is queued. Block, each time up to
        max_block_ms, for the sender, metadata or memory. If that raises, or a signal handler does, the rows queued
        before are still delivered: the error says how many, and its `queued` is their future. Raise the same errors
        as `send()`.
        """
        from cyproducer.producer.bulk import encoder  # not loaded by programs that only call send()

        self.current()
        return encoder.send_array(self, topic, values, keys, partition, timestamps_ms, headers)

    def send_arrow(self, table, topic=None):
        """Send the rows of an Arrow table, record batch or stream (pyarrow is not needed), like `send_array`.

        Columns are found by name: `value` (binary or string) is required. Optional are `key` (binary or string),
        `headers` (list<struct<key: string, value: binary>>), `partition` (integer), `timestamp` (a timestamp of any
        unit, or integer ms) and `topic` (string); the argument `topic` overrides that column. Any other column raises
        ValueError.
        """
        from cyproducer.producer.bulk import encoder  # not loaded by programs that only call send()

        self.current()
        return encoder.send_arrow(self, table, topic)

    cdef object serialize(self, object serializer, object topic, object headers, object data, str what):
        """Return the serialized data. Null stays null: no key, or a value that deletes in a compacted topic."""
        if serializer is None or data is None:
            return data
        try:
            method = getattr(serializer, "serialize", None)
            made = serializer(data) if method is None else method(topic, headers, data)
        except Exception as error:
            raise errors.SerializationError(f"{what} raised {type(error).__name__}: {error}") from error
        if made is not None and not isinstance(made, (bytes, bytearray, memoryview)):
            raise errors.SerializationError(f"{what} returned {type(made).__name__}, not bytes or None")
        return made

    # ---------------------------------------------------------------- attempts

    cdef Future attempt(self, Prepared record, object waiter, Room *missing):
        """Return the record's future; or None, and in `missing` what the record needs before the next attempt.

        Everything that can fail or run other code comes before the commit: an exception means "not queued".
        """
        cdef Session session = self.current()
        cdef Topic topic
        cdef Chain *chain
        cdef Batch batch
        cdef Future future = Future.__new__(Future)
        cdef list fresh = None
        cdef int32_t partition
        cdef int status
        cdef bint sticky = record.partition < 0 and (record.view.key_length < 0 or self.ignore_keys)
        self.check_size(record, self.max_request, False)
        if self.closed:
            raise errors.ProducerClosedError("the producer is closed")
        missing[0] = NEED_SESSION
        if session.sentinel[0] != session.token:
            return None
        self.check_size(record, session.max_request, True)
        if record.on_delivery is not None:
            session.ensure_delivery()
        while True:
            topic = _topic_of(session, record)
            if session.sentinel[0] != session.token:
                missing[0] = NEED_SESSION
                return None
            if topic is None or record.partition >= topic.partition_count or topic.partition_count == 0:
                missing[0] = NEED_METADATA
                return None
            if record.partition >= 0:
                partition = record.partition
            elif sticky:
                partition = session.sticky_partition(topic)
            else:
                partition = key_partition(record.view.key, record.view.key_length, topic.partition_count)
            if not session.fits_batch(record.bound):
                if record.on_delivery is not None and fresh is None:
                    fresh = fresh_delivery(record.on_delivery)
                batch = session.put_alone(topic, partition, record.timestamp, &record.view, waiter, missing)
                if batch is None:
                    return None
                _describe(future, batch, 0, record)
                break
            chain = &topic.chains[partition]
            if chain.limit != 0:
                batch = <Batch>chain.batch
                _describe(future, batch, chain.total, record)
                if record.on_delivery is not None and not room_for_delivery(batch, record.on_delivery, fresh):
                    fresh = fresh_delivery(record.on_delivery)
                    continue
                if chain.batch != <void *>batch or chain.total != future.index:
                    continue  # the garbage collector ran a finalizer that has sent a record
                if append_record(&session.port, chain, record.timestamp, &record.view, record.bound):
                    break
            if sticky and session.close_full(chain, record.bound):
                pack_closed(session)
                continue  # the batch was full: choose the sticky partition again
            status = session.make_room(topic, partition, record.bound, record.timestamp, waiter)
            if status != HAVE_ROOM:
                missing[0] = <Room>status
                return None
        if record.on_delivery is not None:
            watch_delivery(future, record.on_delivery, fresh)
        return future

    cdef int check_size(self, Prepared record, Py_ssize_t limit, bint of_sender) except -1:
        """Raise RecordTooLargeError if a batch of this record alone could exceed max_request_size, `limit` bytes."""
        if record.bound + BATCH_HEADER_BYTES > limit and batch_size_bound(record) > limit:
            owner = f" of the sender at {self.settings.sender}" if of_sender else ""
            raise errors.RecordTooLargeError(
                f"topic {record.topic!r}: the record needs up to {batch_size_bound(record)} bytes in a batch, "
                f"max_request_size{owner} is {limit}"
            )
        return 0

    cdef object send_blocking(self, Prepared record):
        cdef Room missing = HAVE_ROOM
        cdef Future future = self.attempt(record, None, &missing)
        if future is not None:
            return future
        retry = BlockingRetry(self, self.max_block_s)
        try:
            while future is None:
                retry.block(missing, self.current(), record.topic, record.needed)
                future = self.attempt(record, retry.waiter, &missing)
            return future
        finally:
            retry.leave()

    def _attempt_prepared(self, Prepared record, waiter):
        """Call `attempt`, for waiting/aio.py. Return (future, HAVE_ROOM) or (None, what is missing)."""
        cdef Room missing = HAVE_ROOM
        return self.attempt(record, waiter, &missing), missing

    @property
    def _is_closed(self):
        return self.closed

    @property
    def _session(self):
        return self.current()

    @property
    def _lines(self):
        self.current()
        return self.lines

    def _attach(self, deadline):
        self.attached(deadline)

    cdef Session current(self):
        """Return the latest session; in a forked child at first a new one without a sender.

        Raise KafkaConfigurationError if a subclass did not call `KafkaProducer.__init__` or caught its exception.
        """
        if self.session is None:
            raise errors.KafkaConfigurationError(
                "this producer has no settings: KafkaProducer.__init__() was not called, or it raised an error"
            )
        if self.session.sentinel[0] != self.session.process:
            _parent_sessions.append(self.session)
            self.session = Session(None, None)
        elif self.session.successor is not None:
            self.session = self.session.latest
            if not self.closed:
                exit_flush.register(self)
        return self.session

    cpdef Session attached(self, object deadline):
        """Return an attached session. One thread attaches, other threads wait for it, up to `deadline`."""
        cdef Session session
        while True:
            if self.closed:
                raise errors.ProducerClosedError("the producer is closed")
            session = self.current()
            if session.sentinel[0] == session.token:
                return session
            self._connect(session, deadline)

    def _connect(self, Session ended, deadline):
        """Make the successor of the session `ended`. Raise SenderUnavailableError."""
        try:
            reattach.succeed(ended, self.settings, deadline, lambda: not self.closed, self.address)
        except errors.SenderUnavailableError as error:
            if self.max_block_s < ATTACH_S and (not self.settings.sender or isinstance(error, SlowSenderError)):
                # If a sender takes longer to start or to answer than send() may wait, send() would never succeed.
                reattach.attach_later(ended, self.settings, ATTACH_S)
            raise
        if self.closed:
            self.current().end("the producer is closed", errors.OUTCOME_UNKNOWN, True)

    # ---------------------------------------------------------------- the rest of the interface

    def flush(self, timeout=None):
        """Seal all open batches and wait until all records that were sent before have their outcome.

        Their callbacks have run then, unless flush() is called from a callback. Raise KafkaTimeoutError after
        `timeout` seconds; the sender still delivers the records.
        """
        if self.closed:
            raise errors.ProducerClosedError("the producer is closed")
        deadline = deadline_after(timeout)
        if not self._finish(deadline):
            raise errors.KafkaTimeoutError(
                f"flush: {self.current().outstanding()[0]} batches have no outcome after {timeout} s; "
                "they are still under way"
            )

    def _finish(self, deadline):
        """Do the work of flush(). Return False if `deadline` comes first."""
        cdef Session session = self.current()
        session.look()
        while True:
            session = self.current()
            session.seal_all()
            unfinished = session.unfinished()
            if session.successor is None:
                break  # else another thread has just moved the batches to the successor
        remaining = None if deadline is None else deadline - time.monotonic()
        if not session.foreign and not wait_batches(unfinished, remaining):
            return False
        delivery = self.current().delivery
        if delivery is None or delivery.is_current_thread():
            return True
        waiter = Waiter()
        delivery.waiting.append(waiter)  # before is_busy(): a busy thread notifies this waiter when it has finished
        if not delivery.is_busy():
            delivery.forget(waiter)
            return True
        delivery.poke()
        return wait_until([], waiter, lambda: waiter.wanted <= 0 or session.foreign, deadline)

    def close(self, timeout=None):
        """Flush and detach from the sender. A second call does nothing.

        Records without an outcome after `timeout` seconds get OutcomeUnknownError: the sender continues to deliver
        them, but this process does not learn the result. Unsent records whose sender is gone, and for which no other
        sender was found by then, get SenderUnavailableError.
        """
        if self.closed or self.session is None:
            return
        deadline = deadline_after(timeout)
        self.closed = True
        cdef Session session = self.current()
        try:
            self._finish(deadline)
        finally:
            session = self.current()
            batches, records = session.outstanding()
            if batches == 0:
                session.announce_close()
            elif not session.foreign:
                _log.warning("the producer is closed; %d records in %d batches have no outcome yet", records, batches)
            session.end("the producer is closed", errors.OUTCOME_UNKNOWN, True)

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.close()

    def __del__(self):
        if self.session is not None and not self.closed:
            self.closed = True
            if interpreter_ends():
                return  # open batches are sealed already, or the sender seals them once this process is gone
            self.current().orphan()

    def partitions_for(self, topic):
        """Return the set of the topic's partition numbers. Block up to max_block_ms. Raise the errors of send()."""
        check_name(topic)
        deadline = time.monotonic() + self.max_block_s
        while True:
            session = self.attached(deadline)
            found = session.topic_leaders(topic)
            if found:
                return set(range(len(found)))
            run_blocking(wait_metadata(session, BlockingWaiter(), topic, 0, deadline))

    def bootstrap_connected(self):
        """Return, without waiting, whether the sender has reached the cluster; False if no sender is attached."""
        cdef Session session = self.current()
        if session.sentinel[0] != session.token:
            return False
        session.refresh_topics(None)
        return session.brokers > 0

    def metrics(self):
        """Return {group: {name: float}} of this process, not of the sender. Names are Java's where those exist."""
        cdef Session session = self.current()
        session.look()
        total = float(self.settings.buffer_memory)
        alive = session.sentinel[0] == session.token
        # asyncio: of the waiters for one topic, only the first is in the queue for memory
        behind = [len(line) - 1 for line in list(self.lines.values()) if line and line[0] in session.memory_queue]
        return {
            "producer-metrics": {
                "record-send-total": float(session.records + session.open_records),
                "byte-total": float(session.bytes),
                "batch-total": float(session.batches),
                "batch-error-total": float(session.failures),
                "batches-pending": float(session.outstanding()[0]),
                "buffer-total-bytes": total,
                "buffer-available-bytes": float(session.buffer_available) if alive else total,
                "bufferpool-wait-time-ns-total": float(session.blocked_ns),
                "waiting-threads": float(len(session.memory_queue) + sum(behind)),
            }
        }

    def __reduce__(self):
        self.current()
        return _restore, (type(self), self.settings)

    def __deepcopy__(self, memo):
        return _restore(*self.__reduce__()[1])

    def __repr__(self):
        if self.session is None:
            return f"<{type(self).__name__} without settings>"
        state = "closed" if self.closed else "attached" if self.current().alive else "not attached"
        return f"<{type(self).__name__} {self.settings!r} {state}>"


cdef Topic _topic_of(Session session, Prepared record):
    """Return the record's topic, or None if it is not known. Raise InvalidTopicError."""
    if record.topic is session.cached_name and session.seen_version == load_acquire(session.published):
        return session.cached_topic
    if record.topic not in session.topics:
        check_name(record.topic)
    return session.find_topic(record.topic)


cdef int _describe(Future future, Batch batch, uint32_t index, Prepared record) except -1:
    """Fill in the future of a record that is about to be appended at `index` of `batch`."""
    return set_future(future, batch, index, record.timestamp, record.view.key_length, record.view.value_length)


def _restore(cls, settings):
    """Return a producer with pickled settings. It is not attached."""
    cdef KafkaProducer producer = cls.__new__(cls)
    check_platform()
    producer.configure(settings)
    return producer


patchable(KafkaProducer)
