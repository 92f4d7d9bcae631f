"""The one future of a `send_array` or `send_arrow`: what became of each row, without an object for each.

It keeps the partition of every row and, for every partition, the stretches of batches that its rows are in;
offsets are worked out when the result is asked for.
"""

import array
import functools
import time

cimport cython
from libc.stdint cimport int32_t, int64_t, uint32_t
from libc.stdlib cimport free, malloc, realloc

from cyproducer.producer.columns cimport Memory
from cyproducer.producer.futures cimport make_future

from cyproducer import errors
from cyproducer.producer.futures import log_exception
from cyproducer.types import ArrayMetadata


@cython.final
@cython.auto_pickle(False)
cdef class BulkFuture:
    """The outcome of all rows of one call: the methods of `KafkaProducer.send()`'s futures.

    `result()` is an `ArrayMetadata`: `partition` (int32) and `offset` (int64) with an element a row. If any
    row failed, `result()` raises and `exception()` gives the error of the first batch that did, with how many
    rows failed in its message; all other rows were written. Timeouts are in seconds, None waits for ever.
    """

    def __init__(self):
        raise TypeError("KafkaProducer.send_array() and send_arrow() make these futures")

    def __dealloc__(self):
        free(self.extents)
        free(self.lanes)
        free(self.lane_base)

    # ---------------------------------------------------------------- filled in by the bulk loop

    cdef int set_lanes(self, list partition_counts) except -1:
        """One lane for each partition of each topic."""
        cdef Py_ssize_t topic, lane, total = sum(partition_counts)
        self.lanes = <Lane *>malloc(max(total, 1) * sizeof(Lane))
        self.lane_base = <int32_t *>malloc(max(len(partition_counts), 1) * sizeof(int32_t))
        if self.lanes == NULL or self.lane_base == NULL:
            raise MemoryError
        self.lane_count = total
        for lane in range(total):
            self.lanes[lane].first = self.lanes[lane].last = -1
        total = 0
        for topic, count in enumerate(partition_counts):
            self.lane_base[topic] = <int32_t>total
            total += count
        return 0

    cdef int add_extent(self, int32_t lane, Batch batch, uint32_t first) except -1:
        """Rows of the lane are from here on in `batch`, at index `first` and after."""
        cdef Extent *grown
        if self.extent_count == self._capacity:
            grown = <Extent *>realloc(self.extents, (2 * self._capacity + 16) * sizeof(Extent))
            if grown == NULL:
                raise MemoryError
            self.extents = grown
            self._capacity = 2 * self._capacity + 16
        self.batches.append(batch)
        self.extents[self.extent_count] = Extent(<void *>batch, first, 0, 0, -1)
        if self.lanes[lane].last < 0:
            self.lanes[lane].first = <int32_t>self.extent_count
        else:
            self.extents[self.lanes[lane].last].next = <int32_t>self.extent_count
        self.lanes[lane].last = <int32_t>self.extent_count
        self.extent_count += 1
        return 0

    # ---------------------------------------------------------------- outcomes

    cdef Batch _unsettled(self):
        """The first batch without an outcome, or None; looks, and does not wait."""
        cdef Batch batch
        cdef bint drained = False
        cdef Py_ssize_t at = self._settled  # looking lets others run, who may be here as well and go further
        while at < self.extent_count:
            batch = <Batch>self.extents[at].batch
            # A batch that got no row of ours in the end may be closed without a record, and has no outcome then.
            if self.extents[at].count and not batch.done:
                batch.refuse_child()
                if drained:
                    return batch
                batch.session.look()
                drained = True
                if not batch.done:
                    return batch
            at += 1
            self._settled = max(self._settled, at)
        return None

    cdef int _settle(self, object timeout) except -1:
        """Waits for all outcomes."""
        from cyproducer.producer.waiters import wait_batches

        cdef Batch batch
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            batch = self._unsettled()
            if batch is None:
                return 0
            remaining = None if deadline is None else max(0.0, deadline - time.monotonic())
            if not wait_batches(self._pending(), remaining):
                raise errors.KafkaTimeoutError(
                    f"topic {batch.topic!r}: {self._count(False)} of {self.rows} rows have no outcome "
                    f"within {timeout} s; they are still under way"
                )

    def _pending(self, bint first_only=False):
        """The batches that may be without an outcome, in order."""
        cdef Py_ssize_t at
        found = []
        for at in range(self._settled, self.extent_count):
            if self.extents[at].count:
                found.append(<object>self.extents[at].batch)
                if first_only:
                    break
        return found

    cdef Py_ssize_t _count(self, bint failed) noexcept:
        """Rows that failed, or rows without an outcome."""
        cdef Py_ssize_t at, rows = 0
        cdef Batch batch
        for at in range(self.extent_count):
            batch = <Batch>self.extents[at].batch
            if batch.done and batch.error != 0 if failed else not batch.done:
                rows += self.extents[at].count
        return rows

    cdef object failure(self):
        """The error of the first batch that failed, or None; made afresh for each asker."""
        cdef Batch batch
        cdef Py_ssize_t at
        for at in range(self.extent_count):
            batch = <Batch>self.extents[at].batch
            if batch.error and self.extents[at].count:
                error = batch.failure()
                count = self._count(True)
                message = f"{count} of {self.rows} rows were not written; the first error: {error.message}"
                return errors.for_code(batch.error, message)
        return None

    cdef object metadata(self):
        if self._metadata is None:
            made = self._make_metadata()
            if self._metadata is None:  # else another thread has made it: importing NumPy lets others run
                self._metadata = made
        return self._metadata

    cdef object _make_metadata(self):
        cdef Memory offsets = Memory(self.rows * sizeof(int64_t))
        cdef Memory used = Memory(self.extent_count * sizeof(uint32_t))
        cdef Memory starts = Memory(self.lane_count * sizeof(int32_t))
        self._fill_offsets(<int64_t *>offsets.data, <uint32_t *>used.data, <int32_t *>starts.data)
        if self.topic_of == NULL:
            topic = self.topics[0]
        else:
            topic = TopicColumn(self.topics, _as_array(self.topic_of, self.rows, "i", self._memory))
        return ArrayMetadata(
            topic,
            _as_array(self.partitions, self.rows, "i", self._memory),
            _as_array(offsets.data, self.rows, "q", offsets),
        )

    cdef void _fill_offsets(self, int64_t *offsets, uint32_t *used, int32_t *starts) noexcept:
        """The rows of a lane are those of its extents in order. `used`: a zero for each extent.

        `starts`: room for each lane's extent with its next row; the lanes stay as they are, for whoever comes next.
        """
        cdef const int32_t *partitions = self.partitions
        cdef const int32_t *topic_of = self.topic_of
        cdef Py_ssize_t row = 0, first, end
        cdef int32_t topic = 0, partition, lane, at
        cdef Extent *extent
        cdef int64_t offset
        cdef bint known
        for lane in range(<int32_t>self.lane_count):
            starts[lane] = self.lanes[lane].first
        while row < self.rows:
            partition = partitions[row]
            if topic_of != NULL:
                topic = topic_of[row]
            lane = self.lane_base[topic] + partition
            at = starts[lane]
            while used[at] == self.extents[at].count:
                at = starts[lane] = self.extents[at].next
            extent = &self.extents[at]
            offset = (<Batch>extent.batch).base_offset
            known = offset >= 0
            if known:
                offset += extent.first + used[at]
            first = row
            end = min(self.rows, row + <Py_ssize_t>(extent.count - used[at]))
            while row < end and partitions[row] == partition and (topic_of == NULL or topic_of[row] == topic):
                offsets[row] = offset
                offset += known
                row += 1
            used[at] += <uint32_t>(row - first)

    # ---------------------------------------------------------------- what users call

    def result(self, timeout=None):
        """The `ArrayMetadata` of all rows, or raises the first error."""
        self._settle(timeout)
        error = self.failure()
        if error is not None:
            raise error
        return self.metadata()

    def exception(self, timeout=None):
        """The first error, or None if all rows were written."""
        self._settle(timeout)
        return self.failure()

    def get(self, timeout=None):
        """kafka-python's name of `result`."""
        return self.result(timeout)

    def done(self):
        """Are all outcomes known? Looks, and does not wait."""
        return self._unsettled() is None

    def cancelled(self):
        """False: records that were sent cannot be called back."""
        return False

    @property
    def is_done(self):
        """`done()`, as kafka-python has it."""
        return self.done()

    @property
    def value(self):
        """The `ArrayMetadata` if all rows were written, else None."""
        return self.metadata() if self.succeeded() else None

    def succeeded(self):
        """Were all rows written?"""
        return self.done() and self.failure() is None

    def failed(self):
        """Are all outcomes known, and is one an error?"""
        return self.done() and self.failure() is not None

    def retriable(self):
        """Is the first error one after which sending again can succeed?"""
        return self.failed() and bool(self.failure().retriable)

    def add_done_callback(self, function):
        """`function(future)` is called once all outcomes are known.

        That is on the producer's callback thread, or here if they are known already.
        """
        if not callable(function):
            raise TypeError(f"a callback must be callable, not {type(function).__name__}")
        if self._callbacks is not None:
            self._callbacks.append(function)
            return
        self._callbacks = [function]
        self._watch()

    def add_callback(self, function, *args, **kwargs):
        """`function(*args, metadata, **kwargs)` is called if all rows are written. Returns the future."""
        call = functools.partial(function, *args, **kwargs)
        self.add_done_callback(lambda future: call(future.result()) if future.succeeded() else None)
        return self

    def add_errback(self, function, *args, **kwargs):
        """`function(*args, error, **kwargs)` is called if a row fails. Returns the future."""
        call = functools.partial(function, *args, **kwargs)
        self.add_done_callback(lambda future: call(future.exception()) if future.failed() else None)
        return self

    def add_both(self, function, *args, **kwargs):
        """`function` is called with the metadata or with the error. Returns the future."""
        return self.add_callback(function, *args, **kwargs).add_errback(function, *args, **kwargs)

    def _watch(self, future=None):
        """Waits, as a callback of one batch after the other, until all are done; then calls the callbacks."""
        cdef Batch batch = self._unsettled()
        if batch is not None:
            make_future(batch, 0, batch.base_timestamp, -1, -1).add_done_callback(self._watch)
            return
        callbacks, self._callbacks = self._callbacks, None
        for function in callbacks:
            try:
                function(self)
            except BaseException:
                log_exception("a callback of %r raised", self)

    def __await__(self):
        from cyproducer.producer import aio

        cdef Batch batch = self._unsettled()
        while batch is not None:
            yield from aio.wait_batch(batch).__await__()
            batch = self._unsettled()
        return self.result()

    def __repr__(self):
        topic = self.topics[0] if len(self.topics) == 1 else f"{len(self.topics)} topics"
        pending, failed = self._count(False), self._count(True)
        return f"<BulkFuture {topic}: {self.rows} rows, {pending} pending, {failed} failed>"

    @property
    def _batches(self):
        return self.batches


@cython.final
cdef class TopicColumn:
    """The topic of each row: a sequence of str that holds each name once."""

    cdef readonly list names
    cdef readonly object numbers

    def __init__(self, names, numbers):
        self.names = names
        self.numbers = numbers

    def __len__(self):
        return len(self.numbers)

    def __getitem__(self, row):
        if isinstance(row, slice):
            return TopicColumn(self.names, self.numbers[row])
        return self.names[self.numbers[row]]

    def __iter__(self):
        for number in self.numbers:
            yield self.names[number]

    def __eq__(self, other):
        return list(self) == list(other) if isinstance(other, (TopicColumn, list, tuple)) else NotImplemented

    def __repr__(self):
        return f"<TopicColumn of {len(self)} rows, {len(self.names)} topics>"


@cython.final
cdef class _Exporter:
    """Lends memory as a writable buffer of one dimension."""

    cdef void *data
    cdef Py_ssize_t shape[1]
    cdef Py_ssize_t strides[1]
    cdef bytes format
    cdef object owner

    def __getbuffer__(self, Py_buffer *view, int flags):
        view.buf = self.data
        view.obj = self
        view.len = self.shape[0] * self.strides[0]
        view.itemsize = self.strides[0]
        view.readonly = 0
        view.ndim = 1
        view.format = self.format
        view.shape = self.shape
        view.strides = self.strides
        view.suboffsets = NULL
        view.internal = NULL


cdef object _as_array(void *data, Py_ssize_t rows, str letter, object owner):
    """Memory as a NumPy array if NumPy is installed, else as a memoryview; nothing is copied."""
    cdef _Exporter exporter = _Exporter()
    exporter.data = data
    exporter.shape[0] = rows
    exporter.strides[0] = array.array(letter).itemsize
    exporter.format = letter.encode()
    exporter.owner = owner
    try:
        import numpy
    except ImportError:
        return memoryview(exporter)
    return numpy.asarray(exporter)


cdef BulkFuture make_bulk_future(Rows rows):
    """For rows that are about to be queued. It shares the memory of their partitions' and topics' numbers."""
    cdef BulkFuture future = BulkFuture.__new__(BulkFuture)
    cdef Memory partitions
    cdef Py_ssize_t row
    future.batches = []
    future.topics = rows.topics
    if rows.partitions == NULL:
        partitions = Memory(rows.rows * sizeof(int32_t))
        rows._keep.append(partitions)
        rows.partitions = <int32_t *>partitions.data
        for row in range(rows.rows):
            rows.partitions[row] = rows.partition
    future.partitions = rows.partitions
    future.topic_of = rows.topic_of
    future._memory = rows._keep
    return future
