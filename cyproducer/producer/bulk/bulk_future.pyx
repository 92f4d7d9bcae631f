"""Implements the future of a `send_array` or `send_arrow`: the outcomes of all rows, without an object per row.

It keeps the partition of each row and, for each partition, the extents of batches that hold its rows. The offsets are
computed when the result is read.
"""


cdef struct Extent:
    # Consecutive rows of one lane that are next to each other in one batch.
    void *batch             # borrowed: BulkFuture.batches owns the reference
    uint32_t first          # index of the first row in the batch
    uint32_t count
    uint32_t size           # bytes, encoded
    int32_t next            # index of the extent with the lane's next rows; -1: none


cdef struct Lane:
    # The rows of one (topic, partition), in order: a list of extents. (Not the sender's Lane.)
    int32_t first           # index of the first extent; -1: none
    int32_t last            # index of the last extent; -1: none


cdef int32_t TRANSACTION_ABORTED = errors.TRANSACTION_ABORTED


@cython.final
@cython.auto_pickle(False)
cdef class BulkFuture:
    """The outcomes of all rows of one call. It has the methods of the futures of `KafkaProducer.send()`.

    `result()` returns an `ArrayMetadata`: `partition` (int32) and `offset` (int64, -1 if unknown) are one-dimensional
    arrays with one element per row, NumPy arrays if NumPy is installed and else memoryviews. If a row failed,
    `result()` raises and `exception()` returns the error of the first row that failed. `TransactionAbortedError`, which
    follows another error, counts only if no row has another error. The message says how many rows failed; all other
    rows were written. Timeouts are in seconds; None waits without limit. After the timeout `KafkaTimeoutError` is
    raised; the rows are not cancelled.
    """

    cdef list batches               # one for each extent
    cdef Extent *extents
    cdef Py_ssize_t extent_count
    cdef Py_ssize_t _capacity
    cdef Lane *lanes                # lane = lane_base[topic] + partition
    cdef Py_ssize_t lane_count
    cdef int32_t *lane_base         # one for each of `topics`
    cdef list topics
    cdef int32_t *partitions        # one for each row
    cdef int32_t *topic_of          # index in `topics` for each row; NULL: 0 for all
    cdef object _memory             # owns the memory of `partitions` and `topic_of`
    cdef readonly Py_ssize_t rows   # how many are queued
    cdef Py_ssize_t _finished_extents  # all extents before this index have an outcome
    cdef list _callbacks
    cdef object _metadata

    def __init__(self):
        raise TypeError("BulkFuture cannot be created directly: KafkaProducer.send_array() and send_arrow() return it")

    def __dealloc__(self):
        free(self.extents)
        free(self.lanes)
        free(self.lane_base)

    # ---------------------------------------------------------------- called by the encode loop

    cdef int set_lanes(self, list partition_counts) except -1:
        """Create a lane for each partition of each topic. Raise MemoryError."""
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
        """Start an extent: the next rows of the lane are in `batch`, from index `first` on. Raise MemoryError."""
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

    cdef Batch _first_unfinished(self):
        """Return the first batch without an outcome, or None. Read outcomes that have arrived, without waiting."""
        cdef Batch batch
        cdef bint drained = False
        cdef Py_ssize_t at = self._finished_extents  # poll() lets other threads run, which may raise _finished_extents
        while at < self.extent_count:
            batch = <Batch>self.extents[at].batch
            # A batch without rows of this call may be closed empty. Then it gets no outcome.
            if self.extents[at].count and not batch.done:
                batch.refuse_child()
                if drained:
                    return batch
                batch.owner.poll()
                drained = True
                if not batch.done:
                    return batch
            at += 1
            self._finished_extents = max(self._finished_extents, at)
        return None

    cdef int _await_outcomes(self, object timeout) except -1:
        """Wait for all outcomes. Raise KafkaTimeoutError after `timeout` seconds."""
        cdef Batch batch
        deadline = deadline_after(timeout)
        while True:
            batch = self._first_unfinished()
            if batch is None:
                return 0
            remaining = None if deadline is None else max(0.0, deadline - system_clock.monotonic())
            if not wait_batches(self._pending_batches(), remaining):
                raise errors.KafkaTimeoutError(
                    f"topic {batch.topic!r}: {self._count(False)} of {self.rows} rows have no outcome "
                    f"within {timeout} s; they are still under way{batch.owner.why_late}"
                )

    def _pending_batches(self, bint first_only=False):
        """Return the batches that may have no outcome yet, in order; with `first_only`, at most one."""
        cdef Py_ssize_t at
        found = []
        for at in range(self._finished_extents, self.extent_count):
            if self.extents[at].count:
                found.append(<object>self.extents[at].batch)
                if first_only:
                    break
        return found

    cdef Py_ssize_t _count(self, bint failed) noexcept:
        """Return the number of rows that failed, or (`failed` False) that have no outcome."""
        cdef Py_ssize_t at, rows = 0
        cdef Batch batch
        for at in range(self.extent_count):
            batch = <Batch>self.extents[at].batch
            if not failed:
                rows += 0 if batch.done else self.extents[at].count
            elif batch.done:
                rows += self._failed_rows(&self.extents[at])
        return rows

    cdef Py_ssize_t _failed_rows(self, const Extent *extent) noexcept:
        """Return how many rows of an extent of a finished batch failed."""
        cdef Batch batch = <Batch>extent.batch
        cdef uint32_t index
        cdef Py_ssize_t rows = 0
        if batch.extents is None:
            return extent.count if batch.error else 0
        for index in range(extent.first, extent.first + extent.count):
            rows += batch.error_of(index) != 0
        return rows

    cdef object failure(self):
        """Return a new exception for the first row that failed, or None. TRANSACTION_ABORTED is the last choice."""
        cdef Batch batch, aborted = None
        cdef Py_ssize_t at
        cdef uint32_t index, aborted_index = 0
        cdef int32_t code
        for at in range(self.extent_count):
            batch = <Batch>self.extents[at].batch
            if not batch.done or not self._failed_rows(&self.extents[at]):
                continue
            for index in range(self.extents[at].first, self.extents[at].first + self.extents[at].count):
                code = batch.error_of(index)
                if code and code != TRANSACTION_ABORTED:
                    return _failure_of(self, batch, index)
                if code and aborted is None:
                    aborted, aborted_index = batch, index
                if batch.extents is None:
                    break  # all of its rows have this code
        return None if aborted is None else _failure_of(self, aborted, aborted_index)

    cdef object metadata(self):
        if self._metadata is None:
            made = self._make_metadata()
            if self._metadata is None:  # else another thread has created it: importing NumPy lets threads run
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
        """Write the offset of each row: the rows of a lane are those of its extents, in order.

        `used`: a zero for each extent; it counts the extent's rows that were read. `starts`: space for one number per
        lane, the extent with the lane's next row. The lanes do not change, so that another thread can read them.
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
            first = row
            end = min(self.rows, row + <Py_ssize_t>(extent.count - used[at]))
            if (<Batch>extent.batch).extents is not None:
                end = row + 1  # each record may have a result of its own
            offset = offset_in(<Batch>extent.batch, extent.first + used[at])
            known = offset >= 0
            while row < end and partitions[row] == partition and (topic_of == NULL or topic_of[row] == topic):
                offsets[row] = offset
                offset += known
                row += 1
            used[at] += <uint32_t>(row - first)

    # ---------------------------------------------------------------- what users call

    def result(self, timeout=None):
        """Wait for all outcomes and return the `ArrayMetadata` of all rows, or raise the first error."""
        self._await_outcomes(timeout)
        error = self.failure()
        if error is not None:
            raise error
        return self.metadata()

    def exception(self, timeout=None):
        """Wait for all outcomes and return the first error, or None if all rows were written."""
        self._await_outcomes(timeout)
        return self.failure()

    def get(self, timeout=None):
        """Do the same as `result`, under kafka-python's name."""
        return self.result(timeout)

    def done(self):
        """Return whether all outcomes are known. Read outcomes that have arrived, without waiting."""
        return self._first_unfinished() is None

    def cancelled(self):
        """Return False: records that were sent cannot be cancelled."""
        return False

    @property
    def is_done(self):
        """The result of `done()`, under kafka-python's name."""
        return self.done()

    @property
    def value(self):
        """The `ArrayMetadata` if all rows were written, else None. Does not wait."""
        return self.metadata() if self.succeeded() else None

    def succeeded(self):
        """Return, without waiting, whether all rows were written."""
        return self.done() and self.failure() is None

    def failed(self):
        """Return, without waiting, whether all outcomes are known and at least one is an error."""
        return self.done() and self.failure() is not None

    def retriable(self):
        """Return whether the first error is one after which sending the rows again can succeed."""
        return self.failed() and bool(self.failure().retriable)

    def add_done_callback(self, function, *, context=None):
        """Arrange that `function(future)` is called when all outcomes are known.

        `Future.add_done_callback` says which thread calls it.
        """
        if not callable(function):
            raise TypeError(f"a callback must be callable, not {type(function).__name__}")
        self._add_callback(in_running_loop(function, context))

    def remove_done_callback(self, function):
        """Remove `function`, which `add_done_callback` added. Return how many calls were removed."""
        cdef list callbacks = self._callbacks
        if callbacks is None:
            return 0
        kept = [added for added in callbacks if not added == function]
        if self._callbacks is not callbacks:
            return 0  # a comparison has let another thread run, and that thread calls the callbacks
        self._callbacks = kept
        return len(callbacks) - len(kept)

    def _add_callback(self, function):
        """Arrange that `function(self)` is called on the callback thread, or call it here if all outcomes are known."""
        if self._callbacks is not None:
            self._callbacks.append(function)
            return
        self._callbacks = [function]
        self._watch()

    def add_callback(self, function, *args, **kwargs):
        """Arrange that `function(*args, metadata, **kwargs)` is called if all rows are written. Return the future."""
        call = functools.partial(function, *args, **kwargs)
        self._add_callback(lambda future: call(future.result()) if future.succeeded() else None)
        return self

    def add_errback(self, function, *args, **kwargs):
        """Arrange that `function(*args, error, **kwargs)` is called if a row fails. Return the future."""
        call = functools.partial(function, *args, **kwargs)
        self._add_callback(lambda future: call(future.exception()) if future.failed() else None)
        return self

    def add_both(self, function, *args, **kwargs):
        """Arrange that `function` is called with the metadata or with the error. Return the future."""
        return self.add_callback(function, *args, **kwargs).add_errback(function, *args, **kwargs)

    def _watch(self, future=None):
        """Add this object as a callback of the first batch without an outcome. If there is none, call the callbacks."""
        cdef Batch batch = self._first_unfinished()
        if batch is not None:
            watch(make_future(batch, 0, batch.base_timestamp, -1, -1), ON_DONE, self._watch)
            return
        callbacks, self._callbacks = self._callbacks, None
        for function in callbacks:
            try:
                function(self)
            except BaseException:
                log_exception("a callback of %r raised an exception", self)

    def __await__(self):
        cdef object owner
        cdef Batch batch = self._first_unfinished()
        while batch is not None:
            owner = batch.owner
            if owner is not None:
                yield from owner.wait_async(batch).__await__()
            batch = self._first_unfinished()
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
    """The topic of each row: a read-only sequence of str that stores each name once."""

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
    """Exports memory as a writable one-dimensional buffer and keeps its owner alive."""

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
    """Return the memory as a NumPy array, or as a memoryview if NumPy is not installed. Copy nothing."""
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


cdef object _failure_of(BulkFuture future, Batch batch, uint32_t index):
    error = batch.failure(index)
    message = f"{future._count(True)} of {future.rows} rows were not written; the first error: {error.message}"
    wrapped = errors.for_code(batch.error_of(index), message)
    wrapped.__cause__ = error.__cause__
    return wrapped


cdef BulkFuture make_bulk_future(Rows rows):
    """Create the future of `rows`, before they are queued. It shares the memory of their partitions and topics."""
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


native_only(BulkFuture)
