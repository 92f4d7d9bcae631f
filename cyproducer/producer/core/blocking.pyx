"""Lets threads wait for outcomes, metadata and memory.

A waiting thread polls the session's wake-up (which the sender writes) and an eventfd of its own. The thread that
finds the session's wake-up readable serves all waiting threads: it reads the wake-up, tells the sender again that a
thread sleeps, takes all outcomes, and writes the eventfds of the threads whose wait is over. So it does not
matter which thread the kernel wakes.

It is native code, so that no exception of a signal's handler comes between the begin of a wait and its `finally`.
await_batch() is the common path of `future.result()`: it runs no Python code between its system calls.
"""


cdef extern from "poll.h" nogil:
    enum:
        POLLIN
    struct pollfd:
        int fd
        short events
        short revents
    int poll(pollfd *fds, unsigned long count, int timeout_ms)

cdef int64_t TRUST_NS = 50_000_000      # the first poll ends after this time, to verify the descriptors once more
cdef double LONGEST_S = 1e9
cdef double INLINE_S = 1.0              # how long a waiting thread settles unsent batches before it looks again


def deadline_after(timeout):
    """Return the time.monotonic() that is `timeout` seconds from now, or None for None.

    Raise TypeError if `timeout` is not a number.
    """
    if timeout is None:
        return None
    if isinstance(timeout, (str, bytes)) or not hasattr(timeout, "__float__"):
        raise TypeError(f"timeout must be a number of seconds or None, not {type(timeout).__name__}")
    return system_clock.monotonic() + float(timeout)


def run_blocking(coroutine):
    """Run a coroutine that never suspends, and return its result."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        return end.value
    coroutine.close()
    raise AssertionError("a coroutine of a thread has suspended")


def wait_until(sessions, Waiter waiter not None, over, deadline):
    """Wait until `over()` is true. Return False if `deadline` (time.monotonic()) comes first.

    The caller has registered `waiter` with everything that can make `over()` true. Signals are handled; exceptions
    of their handlers are raised here.
    """
    cdef Session session
    cdef list entered = []
    waiter.open()
    try:
        for session in sessions:
            session.verify()
            _enter(entered, session.latest, waiter)
        while not over():
            remaining = None if deadline is None else deadline - system_clock.monotonic()
            if remaining is not None and remaining <= 0:
                return False
            if not _follow(entered, waiter, remaining):
                _poll_all(entered, waiter, remaining)
        return True
    finally:
        for session in entered:
            session.leave_sleep(waiter)
        waiter.close()


cdef int _enter(list entered, Session session, Waiter waiter) except -1:
    if session not in entered:
        entered.append(session)
        session.enter_sleep(waiter)
    return 0


cdef bint _follow(list entered, Waiter waiter, object remaining) except -1:
    """Replace sessions that have ended by their successors. Return whether the caller has to check again.

    A background thread creates the successor and wakes `waiter`. If no thread can be started, this one does its work.
    """
    cdef Session session
    cdef bint changed = False
    for session in [session for session in entered if not session.alive]:
        if session.latest is not session:
            entered.remove(session)
            session.leave_sleep(waiter)
            _enter(entered, session.latest, waiter)
            changed = True
        elif session.recovering and not session.hooks.begin_recovery(session):
            slice_s = INLINE_S if remaining is None else min(INLINE_S, remaining)
            session.hooks.settle(session, system_clock.monotonic() + slice_s)
            changed = True
    return changed


cdef int _poll_all(list sessions, Waiter waiter, object timeout) except -1:
    cdef Session session
    polled = [waiter.fd]
    for session in sessions:
        if session.alive:
            polled.extend(session.descriptors)
    ready = set(wait_readable(polled, timeout))
    if waiter.fd in ready:
        waiter.clear()
    for session in sessions:
        if session.alive:
            wake, control = session.descriptors
            if control in ready:
                session.on_control()
            if wake in ready:
                session.on_wake()
    return 0


def wait_batch(Batch batch, timeout):
    """Wait until the batch has its outcome. Return False if it has none after `timeout` seconds."""
    deadline = deadline_after(timeout)
    if await_batch(batch, timeout):
        return True
    return wait_batches([batch], None if deadline is None else deadline - system_clock.monotonic())


cdef class _Awaited:
    """The batches of one wait: those that had no outcome when it began."""

    cdef list sessions
    cdef list left
    cdef bint any_of

    def __call__(self):
        """Return whether the wait is over. Raise ForkedFutureError in a forked child."""
        cdef Session session
        for session in self.sessions:
            if session.foreign:
                # A signal's handler or another greenlet has forked.
                raise errors.ForkedFutureError(
                    "this process was forked while it waited: the records belong to the parent process, and only "
                    "that process gets their outcome; wait for them there, or send the records from this process"
                )
        if self.any_of:
            for batch in self.left:
                if batch.done:
                    return True
            return False
        while self.left and self.left[len(self.left) - 1].done:
            self.left.pop()
        return not self.left


def wait_batches(batches, timeout, bint any_of=False):
    """Wait until all batches have their outcome; with `any_of`, until one has.

    Return False if they have not after `timeout` seconds (None: wait without limit).
    """
    cdef Waiter waiter = Waiter()
    cdef list pending = []
    cdef _Awaited over = _Awaited()
    deadline = deadline_after(timeout)
    over.sessions, over.any_of = [], any_of
    try:
        for batch in batches:
            session = batch.session  # before add_waiter: a batch that another thread finishes has no session
            if batch.add_waiter(waiter):
                pending.append(batch)
                if session not in over.sessions:
                    over.sessions.append(session)
            elif any_of:
                return True
        if not pending:
            return True
        waiter.wanted = 1 if any_of else len(pending)
        over.left = list(pending)
        return wait_until(over.sessions, waiter, over, deadline)
    finally:
        for batch in pending:
            batch.remove_waiter(waiter)


def await_callbacks(Session session not None, deadline):
    """Wait until the callbacks that are ready have run. Return False if `deadline` (time.monotonic()) comes first.

    Do not wait on the thread that runs them.
    """
    cdef Waiter waiter = Waiter()
    delivery = session.delivery
    if delivery is None or delivery.is_current_thread():
        return True
    try:
        delivery.waiting.append(waiter)  # before is_busy(): a busy thread notifies this waiter when it has finished
        if not delivery.is_busy():
            return True
        delivery.poke()
        return wait_until([], waiter, lambda: waiter.wanted <= 0 or session.foreign, deadline)
    finally:
        try:
            delivery.waiting.remove(waiter)
        except ValueError:
            pass  # it was notified


def await_batch(Batch batch, timeout):
    """Wait for the outcome of the batch. Return True if the batch has it.

    Return False after `timeout` seconds (None: no limit), or if the caller has to wait with wait_batches.
    """
    cdef Session session
    cdef Waiter waiter
    cdef int64_t deadline = -1
    if is_patched():
        return False
    if timeout is not None:
        deadline = <int64_t>monotonic_ns() + <int64_t>(min(max(timeout, 0.0), LONGEST_S) * 1e9)
    if batch.done:
        return True  # another thread has taken the outcome; the batch has no session then
    session = batch.session
    if session is None:
        return False
    session.verify()
    if not is_alive(session.arena):
        return batch.done
    waiter = session.take_waiter()
    try:
        if not batch.add_waiter(waiter):
            return True
        session.enter_sleep(waiter)
        try:
            _sleep(session, batch, waiter, deadline)
        finally:
            session.leave_sleep(waiter)
            batch.remove_waiter(waiter)
    finally:
        session.keep_waiter(waiter)
    return batch.done


cdef int _sleep(Session session, Batch batch, Waiter waiter, int64_t deadline) except -1:
    """Sleep until the batch is done, the session has ended, or `deadline` (monotonic, ns; -1: none) has come."""
    cdef int64_t now, until = monotonic_ns() + TRUST_NS
    while not batch.done and is_alive(session.arena):
        now = <int64_t>monotonic_ns()
        if 0 <= deadline <= now:
            return 0
        if deadline >= 0:
            until = deadline if until < 0 else min(deadline, until)
        _poll(session, waiter, -1 if until < 0 else max(0, until - now))
        if batch.done:
            return 0
        session.verify()  # if the program had closed our descriptors, poll would return at once in a loop
        if not waiter.is_open():
            return 0
        until = -1
    return 0


cdef int _poll(Session session, Waiter waiter, int64_t left_ns) except -1:
    """Poll once, for at most `left_ns` (-1: no limit), and let the session handle what has arrived."""
    cdef pollfd polled[3]
    cdef int64_t left_ms = -1 if left_ns < 0 else min((left_ns + 999_999) // 1_000_000, 0x7fffffff)
    cdef int ready
    polled[0].fd, polled[1].fd, polled[2].fd = waiter.fd, session.wake_fd, session.socket_fd
    polled[0].events = polled[1].events = polled[2].events = POLLIN
    waiter.dozes = True  # from here on notify() writes the eventfd; no thread ran since the last check (GIL)
    with nogil:
        ready = poll(polled, 3, <int>left_ms)
    waiter.dozes = False
    if ready < 0:
        if errno != EINTR:
            raise OSError(errno, "poll")
        PyErr_CheckSignals()
        return 0
    if polled[0].revents:
        waiter.clear()
    if polled[2].revents and is_alive(session.arena):
        session.on_control()
    if polled[1].revents and is_alive(session.arena):
        session.on_wake()
    return 0
