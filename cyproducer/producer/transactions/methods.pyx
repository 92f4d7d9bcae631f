"""Calls the coroutines of TransactionManager in a thread or in an event loop, and gives their turn back.

These functions are native: an exception of a signal's handler cannot divide their `finally`, and a traceback does not
keep their frames. The last change of a call is made here, so that a call whose result is stored also returns.
"""


cdef double LONGEST_S = 1e8

# Whose time is a metric, in the order of TIMES in metric_table.py.
cdef tuple TIMED = (
    "init_transactions",
    "begin_transaction",
    "send_offsets_to_transaction",
    "commit_transaction",
    "abort_transaction",
)


def run(producer, method, timeout, *args):
    """Call a method of the producer's TransactionManager, and return its result.

    Raise IllegalStateError without transactional_id and in a forked child, ProducerClosedError, ValueError for a
    negative timeout, and the errors of the method.
    """
    manager = manager_of(producer, method.__name__)
    cdef TransactionState state = manager.state
    call = Call(method.__name__, _seconds(producer, timeout), state.now.begun)
    call.start(ThreadWaits())
    try:
        return _complete(state, call, run_blocking(method(manager, producer, call, *args)))
    finally:
        _leave(state, producer, call)


def run_async(producer, method, timeout, *args):
    """Return a coroutine that does the same in an event loop. The call belongs to the present transaction.

    If the coroutine is cancelled, the call has no result, as after a timeout, and can be repeated.
    """
    manager = manager_of(producer, method.__name__)
    cdef TransactionState state = manager.state
    call = Call(method.__name__, _seconds(producer, timeout), state.now.begun)
    return _run_async(state, producer, call, method, args)


async def _run_async(TransactionState state, producer, call, method, tuple args):
    from cyproducer.producer.transactions.loop_waits import LoopWaits  # loads asyncio: 50 ms that other programs save

    manager = manager_of(producer, call.name)  # the producer may be closed by now
    try:
        call.start(LoopWaits(state, call))
        return _complete(state, call, await method(manager, producer, call, *args))
    finally:
        _leave(state, producer, call)


cdef object _complete(TransactionState state, object call, object result):
    """Make the last change of a call, and return its result. After the change, no Python code runs."""
    if result is None:
        return None
    while True:
        former = state.now
        if state.exchange(former, result.change(former), call):
            return result.result


cdef int _leave(TransactionState state, object producer, object call) except -1:
    if state.leave(call) and call.name in TIMED:
        took_ns = system_clock.monotonic_ns() - call.began_ns
        producer._session.arena.own.add_time(TIMED.index(call.name), took_ns)
    return 0


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
    """Await `send(producer, *args)` as a part of the transaction. Raise an error outside of one.

    The transaction fails if this raises an error: it may be in a task whose result nobody looks at.
    """
    from cyproducer.producer.waiting.aio import running_loop  # loads asyncio

    try:
        running = producer._enter_send("send_async", running_loop())
    except errors.KafkaError as error:
        count_refused(producer, error)
        raise
    begun = producer._transactions.state.now.begun
    try:
        return await CountedSend(running, send(producer, *args))
    except errors.KafkaError as error:
        producer._transactions.note_unsent(begun, error)
        raise
    finally:
        producer._leave_send(running)


def manager_of(producer, str name):
    """Return the producer's TransactionManager. Raise the errors of a producer that cannot be used for `name`."""
    _ = producer._session  # raises in a forked child
    manager = producer._transactions
    if manager is None:
        raise errors.IllegalStateError(
            f"{name}() needs a transactional producer: give KafkaProducer the setting transactional_id"
        )
    if producer._is_closed:
        raise errors.ProducerClosedError("the producer is closed")
    return manager


cdef double _seconds(object producer, object timeout) except -1:
    if timeout is None:
        return producer.settings.max_block_ms / 1000
    deadline_after(timeout)  # raises TypeError
    if math.isnan(timeout) or timeout < 0:
        raise ValueError(f"timeout={timeout}: expected a number of seconds from 0 on, or None")
    return min(float(timeout), LONGEST_S)
