"""What became of a record: a future is 40 bytes that point into its batch, which gets the one outcome.

Neither class is tracked by the garbage collector: a million futures that a program keeps would be walked again
and again. The cycles that they can be part of (a callback holds its future) end when the batch is done,
because that clears its waiters and callbacks.
"""

import functools
import logging
import sys

cimport cython

from libc.stdint cimport int32_t, int64_t, uint32_t
from libc.stdlib cimport free, realloc

from cyproducer.producer.record_metadata cimport RecordMetadata
from cyproducer.shm.region cimport fork_page, fork_token

from cyproducer import errors

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


cdef RecordMetadata metadata_of(Future future):
    return _metadata(future.batch, future.index, future.timestamp_delta, future.key_size, future.value_size)


cdef RecordMetadata _metadata(
    Batch batch, uint32_t index, int32_t timestamp_delta, int32_t key_size, int32_t value_size
):
    cdef RecordMetadata made = RecordMetadata.__new__(RecordMetadata)
    made.topic = batch.topic
    made.partition = batch.partition
    made.offset = -1 if batch.error or batch.base_offset < 0 else batch.base_offset + index
    if batch.append_time >= 0:
        made.timestamp = batch.append_time
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
        future.batch.session.ensure_delivery()  # other threads run meanwhile: the batch may be done after it
    if future.batch.done and future.batch.callbacks is None:
        _call(kind, function, future)
    else:
        _add_callback(future, kind, function)


@cython.final
@cython.auto_pickle(False)
cdef class Run:
    """One callback for consecutive records.

    Those of an `on_delivery` are noted by what their metadata needs: nobody may hold their futures, and a million
    that are kept until the outcome would be a million cache misses.
    """

    def __dealloc__(self):
        free(self.noted)

    cdef int reserve(self) except -1:
        """Room for one more note; then note() cannot fail."""
        cdef uint32_t capacity = 2 * self.capacity if self.capacity else 16
        cdef Noted *grown
        if self.count == self.capacity:
            grown = <Noted *>realloc(self.noted, capacity * sizeof(Noted))
            if grown == NULL:
                raise MemoryError
            self.noted = grown
            self.capacity = capacity
        return 0

    cdef void note(self, Future future) noexcept:
        cdef Noted *noted = &self.noted[self.count]
        noted.index = future.index
        noted.timestamp_delta = future.timestamp_delta
        noted.key_size = future.key_size
        noted.value_size = future.value_size
        self.count += 1


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


cdef list fresh_delivery(object function):
    """What watch_delivery adds to a batch whose last callback is another one."""
    cdef Run run = _make_run(ON_DELIVERY, function)
    run.reserve()
    return [run]


cdef bint room_for_delivery(Batch batch, object function, list fresh) except -1:
    """Makes sure that watch_delivery will allocate nothing. False: it needs a fresh_delivery().

    A list keeps its room for an item that was taken off again.
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
    """`function(error, record)` for a record that was just sent; the session's callback thread runs."""
    cdef Run run = _last_run(future.batch, ON_DELIVERY, function)
    if run is not None:
        run.note(future)
    else:
        (<Run>fresh[0]).note(future)
        _add_run(future.batch, fresh)


cdef object _add_callback(Future future, int kind, object function):
    cdef Run run = _last_run(future.batch, kind, function)
    if run is not None:
        run.futures.append(future)
        return
    run = _make_run(kind, function)
    run.futures = [future]
    _add_run(future.batch, [run])


cdef Run _make_run(int kind, object function):
    cdef Run run = Run.__new__(Run)
    run.kind = kind
    run.function = function
    return run


cdef Run _last_run(Batch batch, int kind, object function):
    """The batch's last run, if it is of the same callback; else None."""
    cdef Run run
    if not batch.callbacks:
        return None
    run = batch.callbacks[len(batch.callbacks) - 1]
    return run if run.function is function and run.kind == kind else None


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
    cdef Run run
    cdef int64_t last = -1
    cdef Py_ssize_t at
    cdef bint sorted_already = True
    for run in callbacks:
        # what send() has noted rises
        for at in (0, run.count - 1) if run.kind == ON_DELIVERY else range(len(run.futures)):
            if _index(run, at) < last:
                sorted_already = False
            last = _index(run, at)
    if sorted_already:
        return callbacks
    keyed = []
    for run in callbacks:
        for at in range(_records(run)):
            keyed.append((_index(run, at), len(keyed), _single(run, at)))
    keyed.sort()
    return [entry[2] for entry in keyed]


cdef Py_ssize_t _records(Run run) except -1:
    return run.count if run.kind == ON_DELIVERY else len(run.futures)


cdef int64_t _index(Run run, Py_ssize_t at) except -1:
    return run.noted[at].index if run.kind == ON_DELIVERY else (<Future>run.futures[at]).index


cdef Run _single(Run run, Py_ssize_t at):
    """One record of a run as a run."""
    cdef Run single = _make_run(run.kind, run.function)
    if run.kind == ON_DELIVERY:
        single.reserve()
        single.noted[0] = run.noted[at]
        single.count = 1
    else:
        single.futures = [run.futures[at]]
    return single


cdef object _deliver(Batch batch, Run run):
    """on_delivery of all records of a run."""
    cdef uint32_t at = 0
    cdef Noted *noted
    while at < run.count:
        try:
            while at < run.count:
                noted = &run.noted[at]
                at += 1
                run.function(
                    batch.failure() if batch.error else None,
                    _metadata(batch, noted.index, noted.timestamp_delta, noted.key_size, noted.value_size),
                )
        except BaseException:
            log_exception("a callback for topic %r, partition %d raised", batch.topic, batch.partition)


cdef object _call(int kind, object function, Future future):
    cdef Batch batch = future.batch
    try:
        if kind == ON_DONE:
            function(future)
        elif kind == ON_SUCCESS:
            if not batch.error:
                function(metadata_of(future))
        elif batch.error:
            function(batch.failure())
    except BaseException:
        log_exception("a callback for topic %r, partition %d raised", batch.topic, batch.partition)


def log_exception(message, *arguments):
    """Logs the exception that is being handled. A log that fails shows its own on stderr: no callback is left out."""
    try:
        _log.exception(message, *arguments)
    except BaseException:
        try:
            sys.excepthook(*sys.exc_info())
        except BaseException:
            pass  # there is nobody left to tell


def call_back(Batch batch):
    """Runs the callbacks of a finished batch in the calling thread; what they raise is logged."""
    cdef Run run
    cdef Future future
    for run in batch.take_callbacks():
        if run.kind == ON_DELIVERY:
            _deliver(batch, run)
        else:
            for future in run.futures:
                _call(run.kind, run.function, future)


def batch_of(future):
    """The batch of one of our futures; TypeError for anything else."""
    if not isinstance(future, Future):
        raise TypeError(f"a future of KafkaProducer.send() is needed, not {type(future).__name__}")
    return (<Future>future).batch
