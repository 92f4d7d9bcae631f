"""Implements the future of each record. A future is 40 bytes and points to its batch, which holds the outcome.

The garbage collector tracks neither class: otherwise every collection would visit each of a million kept futures.
Both can be part of a reference cycle (a callback holds its future). The cycle ends when the batch is done: its waiters
and callbacks are cleared then.
"""


# ------------------------------------------------------------ record metadata
#
# Implements RecordMetadata, which says where the broker wrote one record. It behaves like a named tuple.
#
# To create it costs a fifth of a named tuple. Each result() and each callback creates one, and most programs read one
# field or none. The fields are C values until they are read.


@cython.final
@cython.no_gc
@cython.freelist(64)
@cython.auto_pickle(False)
cdef class RecordMetadata:
    """The topic, partition, offset and timestamp of one written record, and its sizes.

    `offset` is -1 if it is unknown: with `acks=0`, or if the broker recognised a duplicate and did not say where
    the record is. `timestamp` is in milliseconds since 1970: the record's own, or the broker's for a topic with
    LogAppendTime. `serialized_key_size` and `serialized_value_size` are in bytes, -1 for null (as in
    `RecordMetadata.java`). The object compares, orders, hashes, unpacks and is indexed as the tuple of its fields.
    """

    __match_args__ = _fields = (
        "topic", "partition", "offset", "timestamp", "serialized_key_size", "serialized_value_size",
    )

    def __init__(
        self, str topic not None, int32_t partition, int64_t offset, int64_t timestamp, int32_t serialized_key_size,
        int32_t serialized_value_size,
    ):
        self.topic = topic
        self.partition = partition
        self.offset = offset
        self.timestamp = timestamp
        self.serialized_key_size = serialized_key_size
        self.serialized_value_size = serialized_value_size

    cdef tuple _tuple(self):
        return (
            self.topic, self.partition, self.offset, self.timestamp, self.serialized_key_size,
            self.serialized_value_size,
        )

    @property
    def topic_partition(self):
        """The topic and partition as a `TopicPartition`."""
        return TopicPartition(self.topic, self.partition)

    def _asdict(self):
        """Return the fields as a dict."""
        return dict(zip(self._fields, self._tuple()))

    def __iter__(self):
        return iter(self._tuple())

    def __len__(self):
        return 6

    def __getitem__(self, at):
        return self._tuple()[at]

    def __hash__(self):
        return hash(self._tuple())

    def __richcmp__(self, other, int operation):
        if type(other) is RecordMetadata:
            other = (<RecordMetadata>other)._tuple()
        elif not isinstance(other, tuple):
            return NotImplemented
        return PyObject_RichCompare(self._tuple(), other, operation)

    def __repr__(self):
        return f"RecordMetadata({', '.join([f'{name}={value!r}' for name, value in zip(self._fields, self._tuple())])})"

    def __reduce__(self):
        return unpickled_metadata, self._tuple()


def unpickled_metadata(topic, partition, offset, timestamp, serialized_key_size, serialized_value_size):
    """Return the RecordMetadata with these fields."""
    return RecordMetadata(topic, partition, offset, timestamp, serialized_key_size, serialized_value_size)


# The name by which pickles of any version contain it: the first versions had the class at this place.
unpickled_metadata.__module__ = "cyproducer.producer.results.record_metadata"
unpickled_metadata.__name__ = unpickled_metadata.__qualname__ = "RecordMetadata"


# ------------------------------------------------------------ futures


_log = logging.getLogger("cyproducer")


@cython.final
@cython.no_gc
@cython.auto_pickle(False)
cdef class Extent:
    """The result of some records of a batch that the sender has split."""

    def __init__(self):
        raise TypeError("Extent cannot be created directly: a session creates extents")


@cython.final
@cython.no_gc
@cython.freelist(64)
@cython.auto_pickle(False)
cdef class Batch:
    """Records of one (topic, partition) that share an outcome."""

    def __init__(self):
        raise TypeError("Batch cannot be created directly: a session creates batches")

    def __dealloc__(self):
        if self.entry != NULL and self.entry[0] == <void *>self:
            self.entry[0] = NULL

    cdef void finish(self, int32_t error, int64_t base_offset, int64_t append_time) noexcept:
        self.error = error
        self.base_offset = base_offset
        self.append_time = append_time
        self.entry = NULL
        self.done = True

    cdef Extent extent_of(self, uint32_t index):
        """Return the extent with the record at `index`; None if the record has the batch's own result."""
        cdef Extent extent
        cdef Py_ssize_t low = 0, high, middle
        if self.extents is None:
            return None
        high = len(self.extents)
        while low < high:
            middle = (low + high) // 2
            extent = <Extent>self.extents[middle]
            if index < extent.first:
                high = middle
            elif index >= extent.first + extent.count:
                low = middle + 1
            else:
                return extent
        return None

    cdef int32_t error_of(self, uint32_t index) noexcept:
        """Return the error code of the record at `index`; 0 if it was written or has no outcome yet."""
        cdef Extent extent
        if self.extents is None:
            return self.error
        extent = self.extent_of(index)
        return self.error if extent is None else extent.error

    cdef object failure(self, uint32_t index):
        """Return a new exception for the error of the record at `index`.

        Each call creates one: a shared exception would collect the tracebacks of all callers.
        """
        cdef Extent extent = self.extent_of(index)
        code, cause, text = self.error, self.cause, self.said
        if extent is not None:
            code, cause, text = extent.error, extent.cause, extent.said
        plain = errors.for_code(code)
        said = f"; {text}" if text else ""
        return errors.for_code(code, f"topic {self.topic!r}, partition {self.partition}: {plain.message}{said}", cause)

    cdef object refuse_child(self):
        """Raise ForkedFutureError in a forked child of the process that created the batch."""
        if self.owner is not None and belongs_to_parent(self.owner):
            raise errors.ForkedFutureError(
                f"topic {self.topic!r}, partition {self.partition}: this future belongs to the parent process, and "
                "only that process gets the outcome; wait for it there, or send the record from this process"
            )

    def add_waiter(self, waiter):
        """Arrange that `waiter.notify()` is called once, when the outcome is known.

        Return False, and do not call it, if the outcome is known already.
        """
        if self.done:
            return False
        self.refuse_child()
        if self.waiters is None:
            self.waiters = []
        self.waiters.append(waiter)
        return True

    def remove_waiter(self, waiter):
        """Remove a waiter. Do nothing if it was removed or notified before."""
        if self.waiters is not None and waiter in self.waiters:
            self.waiters.remove(waiter)

    def take_waiters(self):
        """Remove and return the waiters (or None). Drop the owner, which a finished batch does not need."""
        waiters, self.waiters = self.waiters, None
        self.owner = None
        return waiters

    def take_callbacks(self):
        """Remove and return the callbacks, as a list of runs in the order of the records."""
        callbacks, self.callbacks = self.callbacks, None
        return _in_order(callbacks) if callbacks else ()


@cython.final
@cython.no_gc
@cython.freelist(256)
@cython.auto_pickle(False)
cdef class Future:
    """The outcome of one record.

    It has the methods of concurrent.futures.Future and those of kafka-python's futures, and any asyncio event loop
    can `await` it. Timeouts are in seconds; None waits without limit. After the timeout `KafkaTimeoutError` (a
    `TimeoutError`) is raised; the record is not cancelled. In a forked child, a future of the parent that has no
    outcome yet raises `ForkedFutureError`.
    """

    def __init__(self):
        raise TypeError("Future cannot be created directly: KafkaProducer.send() returns futures")

    def result(self, timeout=None):
        """Wait for the outcome and return the `RecordMetadata`.

        Raise the record's error, or KafkaTimeoutError after `timeout` seconds.
        """
        if not self.batch.done:
            await_outcome(self, timeout)
        if self.batch.error_of(self.index):
            raise self.batch.failure(self.index)
        return metadata_of(self)

    def exception(self, timeout=None):
        """Wait for the outcome and return the record's error, or None if the record was written.

        Raise KafkaTimeoutError after `timeout` seconds.
        """
        if not self.batch.done:
            await_outcome(self, timeout)
        return self.batch.failure(self.index) if self.batch.error_of(self.index) else None

    def get(self, timeout=None):
        """Do the same as `result`, under kafka-python's name."""
        return self.result(timeout)

    def done(self):
        """Return whether the outcome is known. Read outcomes that have arrived, without waiting."""
        if not self.batch.done:
            self.batch.refuse_child()
            self.batch.owner.poll()
        return self.batch.done

    def cancelled(self):
        """Return False: a record that was sent cannot be cancelled."""
        return False

    @property
    def is_done(self):
        """The result of `done()`, under kafka-python's name."""
        return self.done()

    @property
    def value(self):
        """The `RecordMetadata` if the record was written, else None. Does not wait."""
        return metadata_of(self) if self.done() and not self.batch.error_of(self.index) else None

    def succeeded(self):
        """Return, without waiting, whether the record was written."""
        return self.done() and not self.batch.error_of(self.index)

    def failed(self):
        """Return, without waiting, whether the outcome is an error."""
        return self.done() and self.batch.error_of(self.index) != 0

    def retriable(self):
        """Return whether the outcome is an error after which sending the record again can succeed."""
        return self.failed() and bool(self.batch.failure(self.index).retriable)

    def add_done_callback(self, function, *, context=None):
        """Arrange that `function(future)` is called when the outcome is known.

        If an asyncio event loop runs in the calling thread, that loop calls the function in `context`
        (contextvars.Context, None: the current one), as with `asyncio.Future`. Otherwise the producer's callback
        thread calls it, or this method does if the outcome is known, as with `concurrent.futures.Future`.
        """
        if not callable(function):
            raise TypeError(f"a callback must be callable, not {type(function).__name__}")
        watch(self, ON_DONE, in_running_loop(function, context))

    def remove_done_callback(self, function):
        """Remove `function`, which `add_done_callback` added. Return how many calls were removed."""
        return unwatch(self, function)

    def add_callback(self, function, *args, **kwargs):
        """Arrange that `function(*args, metadata, **kwargs)` is called if the record is written. Return the future."""
        watch(self, ON_SUCCESS, functools.partial(function, *args, **kwargs) if args or kwargs else function)
        return self

    def add_errback(self, function, *args, **kwargs):
        """Arrange that `function(*args, error, **kwargs)` is called if the record fails. Return the future."""
        watch(self, ON_ERROR, functools.partial(function, *args, **kwargs) if args or kwargs else function)
        return self

    def add_both(self, function, *args, **kwargs):
        """Arrange that `function` is called with the metadata or with the error. Return the future."""
        return self.add_callback(function, *args, **kwargs).add_errback(function, *args, **kwargs)

    def __await__(self):
        owner = self.batch.owner  # None as soon as another thread has taken the outcome
        if owner is not None:
            yield from owner.wait_async(self.batch).__await__()
        return self.result()

    def __repr__(self):
        cdef Batch batch = self.batch
        error = batch.error_of(self.index)
        state = "pending" if not batch.done else f"error {error}" if error else repr(metadata_of(self))
        return f"<Future {batch.topic}-{batch.partition} {state}>"

    @property
    def _batch(self):
        return self.batch

    def _pending_batches(self, first_only=False):
        """Return the batches that must be done before the future can be done."""
        return [] if self.batch.done else [self.batch]


cdef object await_outcome(Future future, object timeout):
    """Wait for the outcome. Raise KafkaTimeoutError after `timeout` seconds."""
    future.batch.refuse_child()
    cdef Batch batch = future.batch
    cdef SessionOwner owner = batch.owner
    if owner is not None:
        owner.session.drain()
    if not batch.done and not wait_batch(batch, timeout):
        raise errors.KafkaTimeoutError(
            f"topic {batch.topic!r}, partition {batch.partition}: no outcome within {timeout} s; "
            f"the record is still under way, and its future can be waited for again{owner.why_late}"
        )


cdef int64_t offset_in(Batch batch, uint32_t index) noexcept:
    """Return the offset of the record at `index`; -1 if it failed or the offset is unknown."""
    cdef Extent extent = batch.extent_of(index)
    if extent is None:
        return -1 if batch.error or batch.base_offset < 0 else batch.base_offset + index
    return -1 if extent.error or extent.base_offset < 0 else extent.base_offset + (index - extent.first)


cdef RecordMetadata metadata_of(Future future):
    return _metadata(future.batch, future.index, future.timestamp_delta, future.key_size, future.value_size)


cdef RecordMetadata _metadata(
    Batch batch, uint32_t index, int32_t timestamp_delta, int32_t key_size, int32_t value_size
):
    cdef RecordMetadata made = RecordMetadata.__new__(RecordMetadata)
    cdef Extent extent = None if batch.extents is None else batch.extent_of(index)
    cdef int64_t append_time = batch.append_time if extent is None else extent.append_time
    made.topic = batch.topic
    made.partition = batch.partition
    made.offset = offset_in(batch, index)
    if append_time >= 0:
        made.timestamp = append_time
    elif timestamp_delta == FAR_TIMESTAMP:
        made.timestamp = batch.far[index]
    else:
        made.timestamp = batch.base_timestamp + timestamp_delta
    made.serialized_key_size = key_size
    made.serialized_value_size = value_size
    return made


cdef object watch(Future future, int kind, object function):
    if not callable(function):
        raise TypeError(f"a callback must be callable, not {type(function).__name__}")
    if not future.batch.done:
        future.batch.refuse_child()
        future.batch.owner.ensure_delivery()  # lets other threads run: the batch may be done afterwards
    if not _is_past(future.batch) and _joins_last_run(future, kind, function):
        return
    # A new object can start the garbage collector, whose finalizers can complete the batch: none is made after this.
    fresh = [_make_run(kind, function, [future])]
    if _is_past(future.batch):
        _call(kind, function, future)
    elif not _joins_last_run(future, kind, function):
        _add_run(future.batch, fresh)


cdef inline bint _is_past(Batch batch) noexcept:
    """Return whether the batch is done and has no callbacks that are still to be called."""
    return batch.done and batch.callbacks is None


cdef Py_ssize_t unwatch(Future future, object function) except -1:
    """Remove `function` from the ON_DONE callbacks of the future. Return how many calls were removed."""
    cdef Run run
    cdef Py_ssize_t removed = 0
    for run in list(future.batch.callbacks or ()):
        # A comparison may run other code. Callbacks that this code removes are not counted.
        if run.kind == ON_DONE and run.function == function:
            kept = [other for other in run.futures if other is not future]
            removed += len(run.futures) - len(kept)
            run.futures = kept
    return removed


@cython.final
@cython.auto_pickle(False)
cdef class Run:
    """One callback for consecutive records.

    For `on_delivery` a run keeps the fields of each record's metadata instead of keeping its future. The program may
    hold no reference to the future, and keeping a million of them until the outcome would cost a million cache misses.
    """

    def __init__(self):
        raise TypeError("Run cannot be created directly: a future creates runs")

    def __dealloc__(self):
        free(self.records)

    cdef int reserve(self) except -1:
        """Reserve space for one more record, so that the next add() cannot fail. Raise MemoryError."""
        cdef uint32_t capacity = 2 * self.capacity if self.capacity else 16
        cdef RecordFields *grown
        if self.count == self.capacity:
            grown = <RecordFields *>realloc(self.records, capacity * sizeof(RecordFields))
            if grown == NULL:
                raise MemoryError
            self.records = grown
            self.capacity = capacity
        return 0

    cdef void add(self, Future future) noexcept:
        cdef RecordFields *fields = &self.records[self.count]
        fields.index = future.index
        fields.timestamp_delta = future.timestamp_delta
        fields.key_size = future.key_size
        fields.value_size = future.value_size
        self.count += 1


cdef Batch make_batch(SessionOwner owner, str topic, int32_t partition, int64_t base_timestamp):
    """Return a new batch. Without an owner, whose session has just ended, it is not used."""
    cdef Batch batch = Batch.__new__(Batch)
    batch.owner = owner
    batch.topic = topic
    batch.partition = partition
    batch.base_timestamp = base_timestamp
    batch.base_offset = -1
    batch.append_time = -1
    return batch


cdef Future make_future(Batch batch, uint32_t index, int64_t timestamp, Py_ssize_t key_size, Py_ssize_t value_size):
    cdef Future future = Future.__new__(Future)
    set_future(future, batch, index, timestamp, key_size, value_size)
    return future


cdef int set_future(
    Future future, Batch batch, uint32_t index, int64_t timestamp, Py_ssize_t key_size, Py_ssize_t value_size
) except -1:
    """Fill in a future for the record at `index` of `batch`, which may not be appended yet. `timestamp` is in ms.

    Allocate memory only if the difference to the batch's base timestamp has more than 31 bits.
    """
    cdef int64_t delta = timestamp - batch.base_timestamp
    future.batch = batch
    future.index = index
    future.key_size = <int32_t>key_size
    future.value_size = <int32_t>value_size
    if delta > 0x7fffffff or delta < -0x7fffffff:
        future.timestamp_delta = FAR_TIMESTAMP
        if batch.far is None:
            batch.far = {}
        batch.far[index] = timestamp
    else:
        future.timestamp_delta = <int32_t>delta
    return 0


cdef list fresh_delivery(object function):
    """Return the list that watch_delivery adds to a batch whose last callback is a different one."""
    cdef Run run = _make_run(ON_DELIVERY, function, None)
    run.reserve()
    return [run]


cdef bint room_for_delivery(Batch batch, object function, list fresh) except -1:
    """Reserve memory so that watch_delivery allocates nothing. Return False if `fresh` must be a fresh_delivery().

    A list keeps the space of an item that was appended and removed again.
    """
    cdef Run run
    if batch.callbacks is None:
        return fresh is not None
    run = batch.callbacks[len(batch.callbacks) - 1]
    if run.function is function and run.kind == ON_DELIVERY:
        run.reserve()
        return True
    if fresh is None:
        return False
    batch.callbacks.append(None)
    batch.callbacks.pop()
    return True


cdef object watch_delivery(Future future, object function, list fresh):
    """Add `function(error, record)` for a record that was just sent. The callback thread must be running."""
    cdef Run run = _last_run(future.batch, ON_DELIVERY, function)
    if run is not None:
        run.add(future)
    else:
        (<Run>fresh[0]).add(future)
        _add_run(future.batch, fresh)


cdef bint _joins_last_run(Future future, int kind, object function) except -1:
    """Add the future to the batch's last run if that has the same callback. Return whether it has."""
    cdef Run run = _last_run(future.batch, kind, function)
    if run is None:
        return False
    run.futures.append(future)
    return True


cdef Run _make_run(int kind, object function, list futures):
    cdef Run run = Run.__new__(Run)
    run.kind = kind
    run.function = function
    run.futures = futures
    return run


cdef Run _last_run(Batch batch, int kind, object function):
    """Return the batch's last run if it has the same callback, else None."""
    cdef Run run
    if not batch.callbacks:
        return None
    run = batch.callbacks[len(batch.callbacks) - 1]
    return run if run.function is function and run.kind == kind else None


cdef object _add_run(Batch batch, list fresh):
    """Add a run. `fresh`: a list with the run; it becomes the batch's list if the batch has none."""
    if batch.callbacks is not None:
        batch.callbacks.append(fresh[0])
        return
    # Complete before another thread can run: when watch_batch returns, the callbacks may have been called.
    batch.callbacks = fresh
    batch.owner.watch_batch()


cdef object _in_order(list callbacks):
    """Return `callbacks` in the order of their records.

    They are out of order only if a callback was added to an older future.
    """
    cdef Run run
    cdef int64_t last = -1
    cdef Py_ssize_t at
    cdef bint sorted_already = True
    for run in callbacks:
        # send() notes records in ascending order, so the first and last are enough
        for at in (0, run.count - 1) if run.kind == ON_DELIVERY else range(len(run.futures)):
            if _index_in_run(run, at) < last:
                sorted_already = False
            last = _index_in_run(run, at)
    if sorted_already:
        return callbacks
    keyed = []
    for run in callbacks:
        for at in range(_records(run)):
            keyed.append((_index_in_run(run, at), len(keyed), _single(run, at)))
    keyed.sort()
    return [entry[2] for entry in keyed]


cdef Py_ssize_t _records(Run run) except -1:
    return run.count if run.kind == ON_DELIVERY else len(run.futures)


cdef int64_t _index_in_run(Run run, Py_ssize_t at) except -1:
    return run.records[at].index if run.kind == ON_DELIVERY else (<Future>run.futures[at]).index


cdef Run _single(Run run, Py_ssize_t at):
    """Return a run with only the record at `at`."""
    cdef Run single = _make_run(run.kind, run.function, None)
    if run.kind == ON_DELIVERY:
        single.reserve()
        single.records[0] = run.records[at]
        single.count = 1
    else:
        single.futures = [run.futures[at]]
    return single


cdef object _deliver(Batch batch, Run run):
    """Call the on_delivery function for all records of a run."""
    cdef uint32_t at = 0
    cdef RecordFields *fields
    while at < run.count:
        try:
            while at < run.count:
                fields = &run.records[at]
                at += 1
                run.function(
                    batch.failure(fields.index) if batch.error_of(fields.index) else None,
                    _metadata(batch, fields.index, fields.timestamp_delta, fields.key_size, fields.value_size),
                )
        except BaseException:
            log_exception("a callback for topic %r, partition %d raised an exception", batch.topic, batch.partition)


cdef object _call(int kind, object function, Future future):
    cdef Batch batch = future.batch
    try:
        if kind == ON_DONE:
            function(future)
        elif kind == ON_SUCCESS:
            if not batch.error_of(future.index):
                function(metadata_of(future))
        elif batch.error_of(future.index):
            function(batch.failure(future.index))
    except BaseException:
        log_exception("a callback for topic %r, partition %d raised an exception", batch.topic, batch.partition)


def log_exception(message, *arguments):
    """Log the exception that is being handled.

    If logging raises an exception, write that to stderr, so that the remaining callbacks are called.
    """
    try:
        _log.exception(message, *arguments)
    except BaseException:
        try:
            sys.excepthook(*sys.exc_info())
        except BaseException:
            pass  # stderr failed as well


def call_back(Batch batch):
    """Run the callbacks of a finished batch in the calling thread, and log the exceptions that they raise."""
    cdef Run run
    cdef Future future
    for run in batch.take_callbacks():
        if run.kind == ON_DELIVERY:
            _deliver(batch, run)
        else:
            for future in run.futures:
                _call(run.kind, run.function, future)


native_only(Batch)
native_only(Extent)
native_only(Future)
native_only(Run)
