"""Runs the calls of transactions, in a thread or in an event loop, and implements `KafkaProducer.transaction()`.

It is native code: an exception of a signal's handler cannot divide a `finally`, and a traceback does not keep the
frames. No handler can raise after a transaction has begun and before its block is entered, or after the block and
before its end is called. The last change of a call is made here, so that a call whose result is stored also returns.
"""


cdef double LONGEST_S = 1e8
cdef object READY = TransactionState.READY
cdef tuple NOT_ABORTING = (TransactionState.IN_TRANSACTION, TransactionState.ABORTABLE_ERROR)
cdef tuple CAN_ABORT = (*NOT_ABORTING, TransactionState.ABORTING_TRANSACTION)

# The methods whose time is a metric.
cdef tuple TIMED = tuple(metric_table.TIMES)


# ---------------------------------------------------------------- calls


def run_transactional(producer, method, timeout, *args):
    """Call a method of the producer's TransactionManager, and return its result.

    Raise IllegalStateError without transactional_id and in a forked child, ProducerClosedError, ValueError for a
    negative timeout, and the errors of the method.
    """
    manager = manager_of(producer, method.__name__)
    cdef TransactionMonitor monitor = manager.monitor
    channel = producer._channel()
    call = PendingCall(channel, monitor, method.__name__, _seconds(producer, timeout))
    call.start()
    try:
        return _complete(monitor, call, run_blocking(method(manager, call, *args)))
    finally:
        _leave(monitor, call)


async def run_in_thread(producer, method, timeout):
    """Do what run_transactional() does, in a coroutine that never suspends."""
    return run_transactional(producer, method, timeout)


def run_transactional_async(producer, method, timeout, *args):
    """Return a coroutine that does the same in an event loop. The call belongs to the present transaction.

    If the coroutine is cancelled, the call has no result, as after a timeout, and can be repeated.
    """
    from cyproducer.producer.transactions.loop_call import LoopCall  # loads asyncio: 50 ms that other programs save

    manager = manager_of(producer, method.__name__)
    call = LoopCall(producer._channel(), manager.monitor, method.__name__, _seconds(producer, timeout))
    return _run_async(manager.monitor, producer, call, method, args)


async def _run_async(TransactionMonitor monitor, producer, call, method, tuple args):
    manager = manager_of(producer, call.name)  # the producer may be closed by now
    try:
        call.start()
        return _complete(monitor, call, await method(manager, call, *args))
    finally:
        _leave(monitor, call)


cdef object _complete(TransactionMonitor monitor, object call, object completion):
    """Make the last change of a call, and return its result. After the change, no Python code runs."""
    if completion is None:
        return None
    monitor.update(call, completion.change)
    return completion.result


cdef int _leave(TransactionMonitor monitor, object call) except -1:
    if monitor.leave(call) and call.name in TIMED:
        took_ns = system_clock.monotonic_ns() - call.began_ns
        call.channel.own.add_time(TIMED.index(call.name), took_ns)
    return 0


cdef object manager_of(object producer, str name):
    """Return the producer's TransactionManager. Raise the errors of a producer that cannot be used for `name`."""
    channel = producer._channel()  # raises in a forked child
    manager = producer._transactions
    if manager is None:
        raise errors.IllegalStateError(
            f"{name}() needs a transactional producer: give KafkaProducer the setting transactional_id"
        )
    if channel.closing:
        raise errors.ProducerClosedError("the producer is closed")
    return manager


cdef double _seconds(object producer, object timeout) except -1:
    if timeout is None:
        return producer.settings.max_block_ms / 1000
    deadline_after(timeout)  # raises TypeError
    if timeout != timeout or timeout < 0:
        raise ValueError(f"timeout={timeout}: expected a number of seconds from 0 on, or None")
    return min(float(timeout), LONGEST_S)


# ---------------------------------------------------------------- a block


@cython.final
@cython.auto_pickle(False)
cdef class Transaction:
    """A transaction as a context manager: `with producer.transaction():` or `async with producer.transaction():`.

    A normal end of the block commits. An exception aborts and is raised again; if the abort fails as well, a note of
    the exception says so. A commit that fails so that the transaction can only be aborted is aborted, and its error is
    raised. A block that has ended the transaction itself is left as it is.
    """

    cdef object producer
    cdef TransactionMonitor monitor
    cdef object begun       # the number of the transaction

    def __cinit__(self, producer):
        self.producer = producer
        self.monitor = manager_of(producer, "transaction").monitor

    def __enter__(self):
        self.producer.begin_transaction()
        self.begun = self.monitor.now.begun
        return self

    def __exit__(self, kind, error, trace, /):
        if error is not None:
            self.abort(error)
        elif self.monitor.now.state is not READY and self.monitor.now.begun == self.begun:
            try:
                self.producer.commit_transaction()
            except BaseException as failed:
                self.abort(failed)
                raise

    cdef bint is_open(self, tuple states) except -1:
        """Return whether the transaction is in one of these states, in which it can be aborted."""
        return self.monitor.now.begun == self.begun and self.monitor.now.state in states

    cdef int abort(self, object error) except -1:
        """Abort the transaction because of an error. Do it again if a handler's exception came before it began."""
        if not self.is_open(CAN_ABORT):
            return 0
        try:
            self.producer.abort_transaction()
        except errors.KafkaError as failure:
            add_abort_failure(error, failure)
        except BaseException:
            if self.is_open(NOT_ABORTING):
                self.producer.abort_transaction()
            raise
        return 0

    async def __aenter__(self):
        await run_transactional_async(self.producer, TransactionManager.begin_transaction, None)
        self.begun = self.monitor.now.begun
        return self

    async def __aexit__(self, kind, error, trace, /):
        if error is not None:
            await self._abort_async(error)
        elif self.monitor.now.state is not READY and self.monitor.now.begun == self.begun:
            try:
                await self.producer.commit_transaction_async()
            except BaseException as failed:
                await self._abort_async(failed)
                raise

    async def _abort_async(self, error):
        """Do what abort() does, for asyncio."""
        if not self.is_open(CAN_ABORT):
            return
        try:
            await self.producer.abort_transaction_async()
        except errors.KafkaError as failure:
            add_abort_failure(error, failure)
        except BaseException:
            if self.is_open(NOT_ABORTING):
                await self.producer.abort_transaction_async()
            raise


cdef object add_abort_failure(object error, object failure):
    error.add_note(f"abort_transaction() has failed as well: {failure}")


# ---------------------------------------------------------------- sends of coroutines


@cython.final
@cython.auto_pickle(False)
cdef class CountedSend:
    """Awaits a send, and raises IllegalStateError in it if the end of its transaction did not wait for it."""

    cdef RunningSend running
    cdef object send_async      # its coroutine

    def __cinit__(self, RunningSend running not None, send_async):
        self.running = running
        self.send_async = send_async

    def __await__(self):
        return self

    def __iter__(self):
        return self

    def __next__(self):
        return self.send(None)

    def send(self, value):
        """Let the coroutine go on."""
        if not self.running.passed_over:
            return self.send_async.send(value)
        return self.send_async.throw(
            errors.IllegalStateError(
                "send_async() has queued nothing: its event loop had stopped, and its transaction has ended meanwhile; "
                "call it again in another transaction"
            )
        )

    def throw(self, *error):
        """Raise an exception in the coroutine."""
        return self.send_async.throw(*error)

    def close(self):
        """End the coroutine."""
        self.send_async.close()


async def send_counted(producer, send, *args):
    """Await `send(*args)` as a part of the transaction. Raise an error outside of one.

    The transaction fails if this raises an error: it may be in a task whose result nobody looks at.
    """
    from cyproducer.producer.channel.aio import running_loop  # loads asyncio

    try:
        running = producer._enter_send("send_async", running_loop())
    except errors.KafkaError as error:
        count_refused(producer._channel(), error)
        raise
    manager = producer._transactions
    begun = manager.monitor.now.begun
    try:
        return await CountedSend(running, send(*args))
    except errors.KafkaError as error:
        manager.on_unsent(begun, error)
        raise
    finally:
        producer._leave_send(running)
