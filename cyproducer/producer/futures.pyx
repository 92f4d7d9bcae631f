"""What became of a record: a future is 40 bytes that point into its batch, which gets the one outcome.

Neither class is tracked by the garbage collector: a million futures that a program keeps would be walked again
and again. The cycles that they can be part of (a callback holds its future) end when the batch is done,
because that clears its waiters and callbacks.
"""

import functools
import logging

cimport cython

from cyproducer.shm.region cimport fork_page, fork_token

from cyproducer import errors
from cyproducer.types import RecordMetadata

cdef extern from *:
    """
    /* A named tuple of six, filled without a call of its Python constructor. */
    static PyObject *cyp_record_metadata(PyTypeObject *type, PyObject *topic, PyObject *partition, PyObject *offset,
                                         PyObject *timestamp, PyObject *key_size, PyObject *value_size) {
        PyObject *items[6] = {topic, partition, offset, timestamp, key_size, value_size};
        PyObject *made = type->tp_alloc(type, 6);
        if (made == NULL) return NULL;
        for (int i = 0; i < 6; i++) {
            Py_INCREF(items[i]);
            PyTuple_SET_ITEM(made, i, items[i]);
        }
        return made;
    }
    """
    object cyp_record_metadata(void *type, object topic, object partition, object offset, object timestamp,
                               object key_size, object value_size)

cdef object _METADATA = RecordMetadata
_log = logging.getLogger("cyproducer")

cdef enum:
    ON_DELIVERY         # function(error, record)
    ON_DONE             # function(future)
    ON_SUCCESS          # function(record)
    ON_ERROR            # function(error)


@cython.final
@cython.no_gc
@cython.freelist(64)
@cython.auto_pickle(False)
cdef class Batch:
    """The records of one (topic, partition) that share an outcome."""

    def __dealloc__(self):
        if self.owner != NULL and self.owner[0] == <void *>self:
            self.owner[0] = NULL

    cdef void finish(self, int32_t error, int64_t base_offset, int64_t append_time) noexcept:
        self.error = error
        self.base_offset = base_offset
        self.append_time = append_time
        self.owner = NULL
        self.done = True

    cdef object failure(self):
        """The error, made afresh for each asker: a shared one would gather their tracebacks."""
        plain = errors.for_code(self.error)
        return errors.for_code(self.error, f"topic {self.topic!r}, partition {self.partition}: {plain.message}")

    cdef object refuse_child(self):
        if fork_page()[0] != self.process:
            raise errors.ForkedFutureError(
                f"topic {self.topic!r}, partition {self.partition}: this future belongs to the parent process, "
                "which gets the record's outcome; ask there, or send from this process"
            )

    def add_waiter(self, waiter):
        """`waiter.notify()` is called once when the outcome is known; False (and no call): it is known."""
        if self.done:
            return False
        self.refuse_child()
        if self.waiters is None:
            self.waiters = []
        self.waiters.append(waiter)
        return True

    def remove_waiter(self, waiter):
        """It waits no longer; again, or after it was called: nothing."""
        if self.waiters is not None and waiter in self.waiters:
            self.waiters.remove(waiter)

    def take_waiters(self):
        """The waiters, which the batch forgets."""
        waiters, self.waiters = self.waiters, None
        self.session = None
        return waiters

    def take_callbacks(self):
        """The callbacks as a list of runs in the records' order, which the batch forgets."""
        callbacks, self.callbacks = self.callbacks, None
        return _in_order(callbacks) if callbacks else ()


@cython.final
@cython.no_gc
@cython.freelist(256)
@cython.auto_pickle(False)
cdef class Future:
    """The outcome of one record: concurrent.futures' methods, kafka-python's, and `await` from any event loop.

    Timeouts are in seconds, None waits for ever; when the time is over `KafkaTimeoutError` (a `TimeoutError`)
    is raised and the record is still under way. In a forked child the unresolved future of the parent raises
    `ForkedFutureError`.
    """

    def __init__(self):
        raise TypeError("KafkaProducer.send() makes futures")

    def result(self, timeout=None):
        """The `RecordMetadata`, or raises the record's error."""
        if not self.batch.done:
            settle(self, timeout)
        if self.batch.error:
            raise self.batch.failure()
        return metadata_of(self)

    def exception(self, timeout=None):
        """The record's error, or None if it was written."""
        if not self.batch.done:
            settle(self, timeout)
        return self.batch.failure() if self.batch.error else None

    def get(self, timeout=None):
        """kafka-python's name of `result`."""
        return self.result(timeout)

    def done(self):
        """Is the outcome known? Looks, and does not wait."""
        if not self.batch.done:
            self.batch.refuse_child()
            self.batch.session.look()
        return self.batch.done

    def cancelled(self):
        """False: a record that was sent cannot be called back."""
        return False

    @property
    def is_done(self):
        """`done()`, as kafka-python has it."""
        return self.done()

    @property
    def value(self):
        """The `RecordMetadata` of a record that was written, else None."""
        return metadata_of(self) if self.done() and not self.batch.error else None

    def succeeded(self):
        """Was the record written?"""
        return self.done() and not self.batch.error

    def failed(self):
        """Is the outcome an error?"""
        return self.done() and self.batch.error != 0

    def retriable(self):
        """Is the outcome an error after which sending the record again can succeed?"""
        return self.failed() and bool(self.batch.failure().retriable)

    def add_done_callback(self, function):
        """`function(future)` is called when the outcome is known: on the producer's callback thread, or here."""
        watch(self, ON_DONE, function)

    def add_callback(self, function, *args, **kwargs):
        """`function(*args, record, **kwargs)` is called if the record is written. Returns the future."""
        watch(self, ON_SUCCESS, functools.partial(function, *args, **kwargs) if args or kwargs else function)
        return self

    def add_errback(self, function, *args, **kwargs):
        """`function(*args, error, **kwargs)` is called if the record fails. Returns the future."""
        watch(self, ON_ERROR, functools.partial(function, *args, **kwargs) if args or kwargs else function)
        return self

    def add_both(self, function, *args, **kwargs):
        """`function` is called with the record or with the error. Returns the future."""
        return self.add_callback(function, *args, **kwargs).add_errback(function, *args, **kwargs)

    def __await__(self):
        if not self.batch.done:
            from cyproducer.producer import aio

            yield from aio.wait_batch(self.batch).__await__()
        return self.result()

    def __repr__(self):
        cdef Batch batch = self.batch
        state = "pending" if not batch.done else f"error {batch.error}" if batch.error else repr(metadata_of(self))
        return f"<Future {batch.topic}-{batch.partition} {state}>"

    @property
    def _batch(self):
        return self.batch


cdef object settle(Future future, object timeout):
    """Waits for the outcome."""
    future.batch.refuse_child()
    cdef Batch batch = future.batch
    batch.session.drain()
    if not batch.done:
        from cyproducer.producer.waiters import wait_batch

        if not wait_batch(batch, timeout):
            raise errors.KafkaTimeoutError(
                f"topic {batch.topic!r}, partition {batch.partition}: no outcome within {timeout} s; "
                "the record is still under way"
            )


cdef object metadata_of(Future future):
    cdef Batch batch = future.batch
    cdef int64_t offset = -1 if batch.error or batch.base_offset < 0 else batch.base_offset + future.index
    cdef int64_t timestamp = batch.base_timestamp + future.timestamp_delta
    if batch.append_time >= 0:
        timestamp = batch.append_time
    elif future.timestamp_delta == FAR_TIMESTAMP:
        timestamp = batch.far[future.index]
    return cyp_record_metadata(
        <void *>_METADATA, batch.topic, batch.partition, offset, timestamp, future.key_size, future.value_size
    )


cdef object watch(Future future, int kind, object function):
    if not callable(function):
        raise TypeError(f"a callback must be callable, not {type(function).__name__}")
    if not future.batch.done:
        future.batch.refuse_child()
        future.batch.session.ensure_delivery()  # other threads run meanwhile: the batch may be done after it
    if future.batch.done and future.batch.callbacks is None:
        _call(kind, function, future)
    else:
        _add_callback(future, kind, function)


@cython.final
@cython.auto_pickle(False)
cdef class Run:
    """One callback for the futures of consecutive records."""


cdef Batch make_batch(object session, str topic, int32_t partition, int64_t base_timestamp):
    cdef Batch batch = Batch.__new__(Batch)
    batch.session = session
    batch.topic = topic
    batch.partition = partition
    batch.base_timestamp = base_timestamp
    batch.base_offset = -1
    batch.append_time = -1
    batch.process = fork_token()
    return batch


cdef Future make_future(Batch batch, uint32_t index, int64_t timestamp, Py_ssize_t key_size, Py_ssize_t value_size):
    cdef Future future = Future.__new__(Future)
    set_future(future, batch, index, timestamp, key_size, value_size)
    return future


cdef int set_future(
    Future future, Batch batch, uint32_t index, int64_t timestamp, Py_ssize_t key_size, Py_ssize_t value_size
) except -1:
    """Makes it that of a record, perhaps one that is yet to come. Allocates only if the timestamp is far."""
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


cdef list fresh_delivery(Future future, object function):
    """What watch_delivery adds to a batch whose last callback is another one."""
    return [_make_run(future, ON_DELIVERY, function)]


cdef bint room_for_delivery(Batch batch, object function, list fresh) except -1:
    """Makes sure that watch_delivery will allocate nothing. False: it needs a fresh_delivery().

    A list keeps its room for an item that was taken off again.
    """
    cdef Run run
    if batch.callbacks is None:
        return fresh is not None
    run = batch.callbacks[len(batch.callbacks) - 1]
    if run.function is function and run.kind == ON_DELIVERY:
        run.futures.append(None)
        run.futures.pop()
        return True
    if fresh is None:
        return False
    batch.callbacks.append(None)
    batch.callbacks.pop()
    return True


cdef object watch_delivery(Future future, object function, list fresh):
    """`function(error, record)` for a record that was just sent; the session's callback thread runs."""
    if not _join_run(future, ON_DELIVERY, function):
        _add_run(future.batch, fresh)


cdef object _add_callback(Future future, int kind, object function):
    if not _join_run(future, kind, function):
        _add_run(future.batch, [_make_run(future, kind, function)])


cdef Run _make_run(Future future, int kind, object function):
    cdef Run run = Run.__new__(Run)
    run.kind = kind
    run.function = function
    run.futures = [future]
    return run


cdef bint _join_run(Future future, int kind, object function) except -1:
    """Adds it to the batch's last run, if that is of the same callback."""
    cdef Batch batch = future.batch
    cdef Run run
    if not batch.callbacks:
        return False
    run = batch.callbacks[len(batch.callbacks) - 1]
    if run.function is not function or run.kind != kind:
        return False
    run.futures.append(future)
    return True


cdef object _add_run(Batch batch, list fresh):
    """`fresh`: the run in a list that becomes the batch's own if that has none."""
    if batch.callbacks is not None:
        batch.callbacks.append(fresh[0])
        return
    # whole before another thread can run: when watch_batch returns the batch may be done and called back
    batch.callbacks = fresh
    batch.session.watch_batch()


cdef object _in_order(list callbacks):
    """`callbacks` in the order of their records; they are unless one was added to an older future."""
    cdef Run run, single
    cdef Future future
    cdef int64_t last = -1
    cdef bint sorted_already = True
    for run in callbacks:
        for future in run.futures:
            if future.index < last:
                sorted_already = False
            last = future.index
    if sorted_already:
        return callbacks
    keyed = []
    for run in callbacks:
        for future in run.futures:
            single = Run.__new__(Run)
            single.kind = run.kind
            single.function = run.function
            single.futures = [future]
            keyed.append((future.index, len(keyed), single))
    keyed.sort()
    return [entry[2] for entry in keyed]


cdef object _call(int kind, object function, Future future):
    cdef Batch batch = future.batch
    try:
        if kind == ON_DELIVERY:
            function(batch.failure() if batch.error else None, metadata_of(future))
        elif kind == ON_DONE:
            function(future)
        elif kind == ON_SUCCESS:
            if not batch.error:
                function(metadata_of(future))
        elif batch.error:
            function(batch.failure())
    except BaseException:
        _log.exception("a callback for topic %r, partition %d raised", batch.topic, batch.partition)


def call_back(Batch batch):
    """Runs the callbacks of a finished batch in the calling thread; what they raise is logged."""
    cdef Run run
    cdef Future future
    for run in batch.take_callbacks():
        for future in run.futures:
            _call(run.kind, run.function, future)


def batch_of(future):
    """The batch of one of our futures; TypeError for anything else."""
    if not isinstance(future, Future):
        raise TypeError(f"a future of KafkaProducer.send() is needed, not {type(future).__name__}")
    return (<Future>future).batch
