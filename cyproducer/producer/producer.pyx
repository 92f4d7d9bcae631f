"""KafkaProducer: what users call.

send() is two paths. The short one takes exact bytes, ints and headers with ASCII names for a topic that was used
last and appends them to an open batch; it calls no Python at all until the record is committed. Everything else is
prepared first and then attempted as often as it takes, with a wait for what was missing in between.
"""

import atexit
import errno
import logging
import os
import sys
import time
import weakref

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.object cimport PyCallable_Check, PyObject
from libc.stdint cimport int64_t, uint64_t

from cyproducer.producer.append cimport Chain, append_record
from cyproducer.producer.arena cimport HAVE_ROOM, NEED_SESSION
from cyproducer.producer.futures cimport Batch, Future, fresh_delivery, room_for_delivery, set_future, watch_delivery
from cyproducer.producer.pack cimport pack_closed
from cyproducer.producer.partitioner cimport key_partition
from cyproducer.producer.prepared cimport FEW_HEADERS, prepare, small_number, view_headers
from cyproducer.producer.session cimport interpreter_ends
from cyproducer.producer.topics cimport Topic
from cyproducer.record.encode cimport HeaderView, record_size_bound
from cyproducer.shm.clock cimport realtime_coarse_ms
from cyproducer.shm.region cimport fork_token

from cyproducer import errors
from cyproducer.config import Settings
from cyproducer.producer import attach, succession, waiting
from cyproducer.producer.address import Address
from cyproducer.producer.topics import check_name
from cyproducer.producer.waiter import Waiter
from cyproducer.producer.waiters import wait_batches, wait_until

cdef enum:
    NEED_METADATA = 4
    BATCH_HEADER_BYTES = 61

cdef double PATIENT_S = 10          # starting a sender and attaching takes less
cdef double HAND_OVER_S = 5         # at exit, for records that have lost their sender

_log = logging.getLogger("cyproducer")
_attached = weakref.WeakSet()
_flushed_process = _finalized_process = None    # the process that has flushed at its exit, or will without atexit
_flushed_s = 0.0    # that it has waited then
_reported = set()   # what it has said to be left
_LAST = -100        # of multiprocessing's finalizers: others may still send
_of_parents = []    # sessions that a forked child does without; their end would touch what it never needs


def check_platform():
    """Raises UnsupportedPlatformError, in one sentence, where shared memory cannot work. Leaves nothing behind."""
    if sys.platform != "linux" or os.uname().machine not in ("x86_64", "aarch64"):
        raise errors.UnsupportedPlatformError(
            f"cyproducer needs Linux 5.4 or later on x86-64 or aarch64, this is {sys.platform} on {os.uname().machine}"
        )
    try:
        os.close(os.memfd_create("cyproducer-check", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING))
        os.close(os.pidfd_open(os.getpid()))
        fork_token()
    except (AttributeError, OSError) as error:
        if getattr(error, "errno", None) in (errno.EMFILE, errno.ENFILE, errno.ENOMEM):
            return  # it is known here, and wanting at the moment: the first use will tell
        raise errors.UnsupportedPlatformError(
            f"cyproducer needs memfd_create, pidfd_open and MADV_WIPEONFORK of Linux 5.4, which fail here: {error}"
        ) from error


cdef class KafkaProducer:
    """Publishes records to Kafka through the sender process that all producers of this host share.

    Settings are Kafka's, in snake case (`linger_ms=5`) or dotted (`**{"linger.ms": 5}`). Constructing checks
    them and starts nothing; the first use attaches to the sender, and starts it if there is none. A producer
    may be shared by threads, and works in the children of a fork; it pickles and copies as its settings.
    Raises KafkaConfigurationError, UnsupportedPlatformError.
    """

    def __init__(self, **configs):
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
        """Sends a record and returns its future, without waiting for the broker.

        topic         str
        value, key    bytes, bytearray, contiguous memoryview, None (Kafka's null, which no serializer sees), or
                      what the serializer takes
        headers       sequence of (str, bytes or None)
        partition     int; else the key's hash (as Java's), else the sticky partition
        timestamp_ms  int, ms since 1970; else now, up to 4 ms stale
        on_delivery   called once, as on_delivery(error or None, RecordMetadata), on the callback thread

        Blocks up to max_block_ms for the sender, metadata or memory. Raises TypeError, ValueError,
        InvalidTopicError, TopicAuthorizationFailedError, SerializationError, RecordTooLargeError,
        KafkaTimeoutError, BufferExhaustedError, SenderUnavailableError, ProducerClosedError; then nothing was queued.
        """
        cdef Session session = self.session
        cdef Topic known
        cdef Chain *chain
        cdef Future future
        cdef const uint8_t *value_data = NULL
        cdef const uint8_t *key_data = NULL
        cdef Py_ssize_t value_size = -1, key_size = -1
        cdef int64_t timestamp = -1, wanted = -1, delta
        cdef int32_t chosen
        cdef HeaderView views[FEW_HEADERS]
        cdef int header_count = 0
        cdef Py_ssize_t header_bytes = 0
        if headers is not None:
            header_count = view_headers(headers, views, &header_bytes)
        if timestamp_ms is not None:
            timestamp = small_number(timestamp_ms)
        if partition is not None:
            wanted = small_number(partition)
        if (
            self.plain and session.sentinel[0] == session.token
            and (type(value) is bytes or value is None) and (type(key) is bytes or key is None)
            and header_count >= 0 and (partition is None or wanted >= 0) and (timestamp_ms is None or timestamp >= 0)
            and (on_delivery is None or session.delivery is not None and PyCallable_Check(on_delivery))
            and (<PyObject *>topic == <PyObject *>session.cached_name or session.recall(topic))
        ):
            known = session.cached_topic
            if value is not None:
                value_data, value_size = <const uint8_t *>PyBytes_AS_STRING(value), PyBytes_GET_SIZE(value)
            if key is not None:
                key_data, key_size = <const uint8_t *>PyBytes_AS_STRING(key), PyBytes_GET_SIZE(key)
            if known.partition_count > 0 and wanted < known.partition_count:
                if wanted >= 0:
                    chosen = <int32_t>wanted
                elif key is None or self.ignore_keys:
                    chosen = session.sticky_partition(known)
                else:
                    chosen = key_partition(key_data, key_size, known.partition_count)
                chain = &known.chains[chosen]
                if timestamp < 0:
                    timestamp = realtime_coarse_ms()
                future = Future.__new__(Future)
                delta = timestamp - chain.base_timestamp
                # As unsigned: a delta below 0 is large, after a wall clock that was set back.
                if timestamp_ms is None and <uint64_t>delta > <uint64_t>session.patience_ms and chain.limit != 0:
                    session.look()  # nobody has answered for long: is the sender gone?
                elif (
                    chain.limit != 0 and -0x7fffffff <= delta <= 0x7fffffff
                    and (on_delivery is None or room_for_delivery(<Batch>chain.batch, on_delivery, None))
                    and append_record(
                        &session.port, chain, timestamp, key_data, key_size, value_data, value_size, views,
                        header_count, record_size_bound(key_size, value_size, header_bytes, header_count),
                    )
                ):
                    future.batch = <Batch>chain.batch
                    future.index = chain.total - 1
                    future.timestamp_delta = <int32_t>delta
                    future.key_size = <int32_t>key_size
                    future.value_size = <int32_t>value_size
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
        """`send()` for asyncio: `future = await producer.send_async(...)` never blocks the event loop.

        It waits for the sender, metadata and memory with the loop; `await future` then gives the RecordMetadata.
        """
        from cyproducer.producer import aio

        if not self.plain:
            key = self.serialize(self.key_serializer, topic, headers, key, "key_serializer")
            value = self.serialize(self.value_serializer, topic, headers, value, "value_serializer")
        record = prepare(topic, value, key, headers, partition, timestamp_ms, on_delivery)
        return aio.send(self, record, self.max_block_s)

    def send_array(self, topic, values, keys=None, partition=None, timestamps_ms=None, headers=None):
        """Sends the rows of arrays, in order; returns one future for all, whose result is an `ArrayMetadata`.

        values, keys   a 1-D array of a fixed-width dtype (an element's bytes as they lie in memory, all of
                       them: `S` with its padding), a 2-D array of uint8 (a row a record), a (data, offsets)
                       pair, a list of bytes and None, or an Arrow array or stream of a binary or string type.
                       Masked, null: Kafka's null. Serializers do not run. `keys` may be None
        partition      int for all rows, or an integer or null a row; else the key's hash, else the sticky one
        timestamps_ms  int for all rows, or integers (ms since 1970), datetime64 or Arrow timestamps, floored
                       to ms; null, NaT: now
        headers        a list of (str, bytes or None) for all rows, a list of such lists, or Arrow's
                       list<struct<key: string, value: binary>>

        All arguments, sizes and partitions are checked before the first row is queued. Blocks, each time up to
        max_block_ms, for the sender, metadata or memory. If that raises (or a signal's handler does), the rows
        queued before are delivered: the error says how many, and its `queued` is their future. Raises what
        `send()` raises.
        """
        from cyproducer.producer import bulk

        return bulk.send_array(self, topic, values, keys, partition, timestamps_ms, headers)

    def send_arrow(self, table, topic=None):
        """Sends the rows of an Arrow table, record batch or stream (no pyarrow needed), like `send_array`.

        Columns, found by name: `value` (binary or string), and if there: `key` (the same), `headers`
        (list<struct<key: string, value: binary>>), `partition` (integer), `timestamp` (a timestamp of any
        unit, or integer ms), `topic` (string), which the argument `topic` stands before. Another column raises
        ValueError.
        """
        from cyproducer.producer import bulk

        return bulk.send_arrow(self, table, topic)

    cdef object serialize(self, object serializer, object topic, object headers, object data, str what):
        """Null stays null: a record without a key has none, and a null value deletes (compacted topics)."""
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

    cdef object attempt(self, Prepared record, object turn):
        """The future of the record; or what it needs before it can be tried again.

        All that can fail, or run other code, comes before the commit: who gets an error has queued nothing.
        """
        cdef Session session = self.current()
        cdef Topic topic
        cdef Chain *chain
        cdef Batch batch
        cdef Future future = Future.__new__(Future)
        cdef list fresh = None
        cdef int32_t partition
        cdef int status = 0
        cdef bint sticky = record.partition < 0 and (record.key_size < 0 or self.ignore_keys)
        if record.bound + BATCH_HEADER_BYTES > self.max_request:
            raise errors.RecordTooLargeError(
                f"topic {record.topic!r}: the record takes up to {record.bound + BATCH_HEADER_BYTES} bytes, "
                f"max_request_size is {self.max_request}"
            )
        if self.closed:
            raise errors.ProducerClosedError("the producer is closed")
        if session.sentinel[0] != session.token:
            return NEED_SESSION
        if record.on_delivery is not None:
            session.ensure_delivery()
        while True:
            if record.topic is session.cached_name:
                topic = session.cached_topic
            else:
                if record.topic not in session.topics:
                    check_name(record.topic)
                topic = session.find_topic(record.topic)
            if session.sentinel[0] != session.token:
                return NEED_SESSION
            if topic is None or record.partition >= topic.partition_count or topic.partition_count == 0:
                return NEED_METADATA
            if record.partition >= 0:
                partition = record.partition
            elif sticky:
                partition = session.sticky_partition(topic)
            else:
                partition = key_partition(record.key_data, record.key_size, topic.partition_count)
            if not session.fits_batch(record.bound):
                if record.on_delivery is not None and fresh is None:
                    fresh = fresh_delivery(record.on_delivery)
                batch = session.put_alone(
                    topic, partition, record.timestamp, record.key_data, record.key_size, record.value_data,
                    record.value_size, record.views, record.header_count, turn, &status,
                )
                if batch is None:
                    return status
                set_future(future, batch, 0, record.timestamp, record.key_size, record.value_size)
                break
            chain = &topic.chains[partition]
            if chain.limit != 0:
                batch = <Batch>chain.batch
                set_future(future, batch, chain.total, record.timestamp, record.key_size, record.value_size)
                if record.on_delivery is not None and not room_for_delivery(batch, record.on_delivery, fresh):
                    fresh = fresh_delivery(record.on_delivery)
                    continue
                if chain.batch != <void *>batch or chain.total != future.index:
                    continue  # a finalizer, run by the collector, has sent as well
                if append_record(
                    &session.port, chain, record.timestamp, record.key_data, record.key_size, record.value_data,
                    record.value_size, record.views, record.header_count, record.bound,
                ):
                    break
            if sticky and session.close_full(chain, record.bound):
                pack_closed(session)
                continue  # a full batch: the next one is of another partition
            status = session.make_room(topic, partition, record.bound, record.timestamp, turn)
            if status != HAVE_ROOM:
                return status
        if record.on_delivery is not None:
            watch_delivery(future, record.on_delivery, fresh)
        return future

    cdef object send_blocking(self, Prepared record):
        cdef object future = self.attempt(record, None)
        if type(future) is Future:
            return future
        deadline = time.monotonic() + self.max_block_s
        turn = Waiter()
        queue = None
        try:
            while type(future) is not Future:
                session = self.current()
                if future == NEED_SESSION:
                    self.attached(deadline)
                elif future == NEED_METADATA:
                    waiting.wait_metadata(session, record.topic, record.needed, deadline)
                else:
                    if queue is not session:
                        waiting.leave_queue(queue, turn)
                        queue = session
                    waiting.wait_memory(session, turn, deadline, self.max_block_s)
                future = self.attempt(record, turn)
            return future
        finally:
            waiting.leave_queue(queue, turn)

    def _attempt_prepared(self, Prepared record, turn):
        """For asyncio: see `attempt`."""
        return self.attempt(record, turn)

    @property
    def _session(self):
        return self.current()

    @property
    def _lines(self):
        return self.lines

    def _attach(self, deadline):
        self.attached(deadline)

    cdef Session current(self):
        """The session that has succeeded all others; a fresh one without a sender in a forked child."""
        if self.session.sentinel[0] != self.session.process:
            _of_parents.append(self.session)
            self.session = Session(None, None)
        elif self.session.successor is not None:
            self.session = self.session.latest
            if not self.closed:
                _attached.add(self)
                _flush_in_children()
        return self.session

    cpdef Session attached(self, object deadline):
        """The session, attached if it is not; one thread does it, others wait for it up to `deadline`."""
        cdef Session session
        while True:
            if self.closed:
                raise errors.ProducerClosedError("the producer is closed")
            session = self.current()
            if session.sentinel[0] == session.token:
                return session
            self._connect(session, deadline)

    def _connect(self, Session ended, deadline):
        """Makes the session after `ended`."""
        try:
            succession.succeed(ended, self.settings, deadline, lambda: not self.closed, self.address)
        except errors.SenderUnavailableError as error:
            if self.max_block_s < PATIENT_S and (not self.settings.sender or isinstance(error, attach.SlowSenderError)):
                # A sender that takes longer to start, or to answer, than a send() may wait would never be there.
                succession.attach_later(ended, self.settings, PATIENT_S)
            raise
        if self.closed:
            self.current().end("the producer is closed", errors.OUTCOME_UNKNOWN, True)

    # ---------------------------------------------------------------- the rest of the interface

    def flush(self, timeout=None):
        """Sends what lingers and waits until everything that was sent before has its outcome.

        Callbacks of those records have run then, unless this is called by one. KafkaTimeoutError after
        `timeout` seconds; the records are still under way.
        """
        if self.closed:
            raise errors.ProducerClosedError("the producer is closed")
        deadline = None if timeout is None else time.monotonic() + timeout
        if not self._finish(deadline):
            raise errors.KafkaTimeoutError(
                f"flush: {self.current().outstanding()[0]} batches have no outcome after {timeout} s; "
                "they are still under way"
            )

    def _finish(self, deadline):
        """flush's work; False: not by `deadline`."""
        cdef Session session = self.current()
        session.look()
        while True:
            session = self.current()
            session.seal_all()
            unfinished = session.unfinished()
            if session.successor is None:
                break  # else another thread has just handed them over
        remaining = None if deadline is None else deadline - time.monotonic()
        if not session.foreign and not wait_batches(unfinished, remaining):
            return False
        delivery = self.current().delivery
        if delivery is None or delivery.is_current_thread():
            return True
        waiter = Waiter()
        delivery.waiting.append(waiter)  # before the thread is asked: if it is busy, it finds this at its end
        if not delivery.is_busy():
            delivery.forget(waiter)
            return True
        delivery.poke()
        return wait_until([], waiter, lambda: waiter.wanted <= 0 or session.foreign, deadline)

    def close(self, timeout=None):
        """Flushes and detaches; again: nothing.

        Records without an outcome after `timeout` seconds get OutcomeUnknownError: the sender goes on
        delivering them, this process does not learn the result. Those that have lost their sender and found no
        other one by then get SenderUnavailableError: they were not sent.
        """
        if self.closed:
            return
        deadline = None if timeout is None else time.monotonic() + timeout
        self.closed = True
        cdef Session session = self.current()
        try:
            self._finish(deadline)
        finally:
            session = self.current()
            batches, records = session.outstanding()
            if batches == 0:
                session.say_goodbye()
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
                return  # what was open is sealed already, or by the sender once this process has gone
            self.current().orphan()

    def partitions_for(self, topic):
        """The set of the topic's partition numbers. Blocks up to max_block_ms, as send()."""
        check_name(topic)
        deadline = time.monotonic() + self.max_block_s
        while True:
            session = self.attached(deadline)
            found = session.topic_leaders(topic)
            if found:
                return set(range(len(found)))
            waiting.wait_metadata(session, topic, 0, deadline)

    def bootstrap_connected(self):
        """Has the sender reached the cluster? False if none is attached yet; does not wait."""
        cdef Session session = self.current()
        if session.sentinel[0] != session.token:
            return False
        session.refresh_topics(None)
        return session.brokers > 0

    def metrics(self):
        """{group: {name: float}}: Java's names where it has them; what this process knows, not the sender."""
        cdef Session session = self.current()
        session.look()
        total = float(self.settings.buffer_memory)
        alive = session.sentinel[0] == session.token
        # in asyncio only the first of a line stands in the queue for memory
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
        return _restore, (type(self), self.settings)

    def __deepcopy__(self, memo):
        return _restore(type(self), self.settings)

    def __repr__(self):
        state = "closed" if self.closed else "attached" if self.current().alive else "not attached"
        return f"<{type(self).__name__} {self.settings!r} {state}>"


def _restore(cls, settings):
    """A producer of pickled settings, not attached."""
    cdef KafkaProducer producer = cls.__new__(cls)
    check_platform()
    producer.configure(settings)
    return producer


def _flush_at_exit():
    """The longest that an exiting process waits for its own outcomes is exit_flush_timeout_ms.

    Records that have lost their sender are handed to another one first, or they would end with this process.
    A child that multiprocessing has spawned comes here twice: what atexit runs in between may send.
    """
    global _flushed_process, _flushed_s
    if _flushed_process != os.getpid():
        _flushed_process, _flushed_s = os.getpid(), 0.0
        _reported.clear()
    began = time.monotonic()
    try:
        _flush_all(began - _flushed_s)
    finally:
        _flushed_s += time.monotonic() - began


def _flush_all(started):
    cdef KafkaProducer producer
    cdef Session session
    for producer in list(_attached):
        if not producer.closed:
            session = producer.current()
            session.look()
            session.latest.seal_all()
    succession.settle_all(started + HAND_OVER_S)
    for producer in list(_attached):
        if producer.closed:
            continue
        timeout = producer.settings.exit_flush_timeout_ms
        if timeout > 0 and not producer._finish(started + timeout / 1000):
            batches, records = producer.current().outstanding()
            if (id(producer), batches, records) in _reported:
                continue
            _reported.add((id(producer), batches, records))
            _log.warning(
                "%d records in %d batches have no outcome after exit_flush_timeout_ms=%d; %s",
                records, batches, timeout,
                "they are lost if the end of this process, PID 1, is that of the container"
                if os.getpid() == 1 else "the sender goes on delivering them",
            )


def _flush_in_children():
    """A child that multiprocessing has forked ends without atexit: it runs multiprocessing's own finalizers."""
    global _finalized_process
    process, util = sys.modules.get("multiprocessing.process"), sys.modules.get("multiprocessing.util")
    if process is None or util is None or process.parent_process() is None or _finalized_process == os.getpid():
        return
    _finalized_process = os.getpid()
    util.Finalize(None, _flush_at_exit, exitpriority=_LAST)


atexit.register(_flush_at_exit)
