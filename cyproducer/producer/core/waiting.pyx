"""Lets a thread wait for an outcome or for memory."""


# ------------------------------------------------------------ waiter
#
# Wakes one waiting thread through its own eventfd.
#
# It is native code, so that notify() cannot be interrupted between its steps: it must never write to a descriptor that
# its owner has just closed.


cdef extern from "unistd.h" nogil:
    int close(int fd)


@cython.final
@cython.no_gc
@cython.auto_pickle(False)
cdef class Waiter:
    """The wake-up of one waiting thread. Any thread may call `notify()`; the wait ends after `wanted` calls.

    Its eventfd is closed with it, if an exception has kept its owner from calling close().
    """

    def __cinit__(self):
        self.fd = -1

    def __init__(self, wanted=1):
        self.wanted = wanted
        self.dozes = True

    def __dealloc__(self):
        self._close()

    def open(self):
        """Create the eventfd, which lives until close(). Raise OSError."""
        self._close()
        self.file = None
        # It has its owner before any other code runs: a garbage collection, for example, handles signals.
        self.fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        file = file_of(self.fd)
        self.device, self.inode = file
        own(self.fd, file)
        self.file = file

    cdef bint is_open(self) noexcept:
        """Return whether there is an eventfd and its number still refers to the file that open() created."""
        return self.fd >= 0 and same_file(self.fd, self.device, self.inode)

    def close(self):
        """Close the eventfd, unless its number refers to another file or this is a forked child.

        Descriptor numbers are reused: the program may have closed the eventfd and opened something else.
        """
        self._close()

    cdef int _close(self) except -1:
        cdef int fd = self.fd
        self.fd = -1
        if self.file is None:  # open() was interrupted
            if fd >= 0:
                close(fd)
        elif fd >= 0 and disown(fd, self.file) and same_file(fd, self.device, self.inode):
            close(fd)
        return 0

    def forget(self):
        """Forget the eventfd without closing it.

        This is for a program that closes descriptors it does not own. All eventfds and epolls have the same inode, so
        an eventfd of that program cannot be distinguished from this one.
        """
        disown(self.fd, self.file)
        self.fd = -1

    def notify(self):
        """Report that one of the awaited events has happened."""
        self.wanted -= 1
        if self.wanted <= 0:
            self.wake()

    def wake(self):
        """End the poll of the waiting thread."""
        if self.dozes and self.is_open():
            eventfd_signal(self.fd)

    def clear(self):
        """Reset the eventfd after wake()."""
        if self.is_open():
            eventfd_clear(self.fd)


cdef object notify_all(object waiters, str how):
    """Call the method named `how` of every waiter, also if a signal handler raises. Return that exception."""
    error = None
    again = []
    for waiter in waiters:
        try:
            getattr(waiter, how)()
        except BaseException as raised:
            error = raised
            again.append(waiter)
    for waiter in again:
        getattr(waiter, how)()
    return error


# ------------------------------------------------------------ wait queue
#
# Keeps the calls that wait for the same thing in a queue, first come first served.
#
# A queue does not keep its places alive. A place that is freed leaves its queue, so that a call whose owner has ended
# in any way does not hold up the calls behind it. A place that was called and has not gone on after PASS_AFTER_NS is
# passed over: its event loop is stopped, closed or busy. It keeps its place, and goes on when its loop does.
#
# No method runs Python code before it has changed the queue. So neither another thread nor an exception of a signal's
# handler can find a queue that is changed in part.


cdef uint64_t PASS_AFTER_NS = 50_000_000


@cython.final
@cython.no_gc_clear
@cython.auto_pickle(False)
cdef class Place:
    """The place of one call.

    waiter   its `notify()` is called when the call may go on
    blocks   whether the call blocks its thread; False for a coroutine
    """

    def __init__(self, waiter, bint blocks):
        self.waiter = waiter
        self.blocks = blocks
        self.thread = threading.get_ident()

    def __dealloc__(self):
        if self.queue is not None:
            self._unlink()

    @property
    def is_called(self):
        """Whether the call may go on: it was notified since its last attempt, or no other place was before it."""
        return self.called_ns != 0

    @property
    def is_first(self):
        """Whether this place is the first of its queue."""
        return self.queue is not None and self.previous == NULL

    @property
    def is_second(self):
        """Whether only one place is before this one."""
        return self.previous != NULL and (<Place>self.previous).previous == NULL

    def is_next(self):
        """Return whether no place is before this one, other than those that are passed over."""
        return self.queue is not None and self.queue.may_go(self)

    def enter(self, WaitQueue queue not None):
        """Take the last place of a queue. Do nothing if this place is in it.

        A call that blocks goes before the first place of the same thread: that one cannot go on before this call ends.
        """
        cdef void *before = NULL
        if self.queue is queue:
            return
        self.leave()
        if self.blocks:
            before = queue.first
            while before != NULL and (<Place>before).thread != self.thread:
                before = (<Place>before).next
        self._link(queue, before)
        self.called_ns = monotonic_ns() if queue.arena is not None and queue.may_go(self) else 0
        queue.show()

    cpdef int leave(self) except -1:
        """Leave the queue, and call the next one. Do nothing outside of a queue."""
        cdef WaitQueue queue = self.queue
        if queue is not None:
            self._unlink()
            queue.show()
            queue.call_next()
        return 0

    cdef void arm(self) noexcept:
        """Note that the call tries to go on: from here on it is called again."""
        self.called_ns = 0

    cdef void _link(self, WaitQueue queue, void *before) noexcept:
        """Enter the queue before another place; NULL: as the last one."""
        self.queue = queue
        self.next = before
        self.previous = queue.last if before == NULL else (<Place>before).previous
        if self.previous == NULL:
            queue.first = <void *>self
        else:
            (<Place>self.previous).next = <void *>self
        if before == NULL:
            queue.last = <void *>self
        else:
            (<Place>before).previous = <void *>self
        queue.count += 1

    cdef void _unlink(self) noexcept:
        cdef WaitQueue queue = self.queue
        if self.previous == NULL:
            queue.first = self.next
        else:
            (<Place>self.previous).next = self.next
        if self.next == NULL:
            queue.last = self.previous
        else:
            (<Place>self.next).previous = self.previous
        self.previous = self.next = NULL
        self.called_ns = 0
        queue.count -= 1
        if queue.count == 0 and queue.others is not None:
            queue.others.pop(queue.key, None)
        self.queue = None


@cython.final
@cython.auto_pickle(False)
cdef class WaitQueue:
    """The places of the calls that wait. Only the queue for memory passes places over.

    others, key   a dict from which this queue removes itself when its last place leaves, and its key there; or None
    """

    def __init__(self, dict others=None, key=None):
        self.others, self.key = others, key

    def __len__(self):
        return self.count

    def waiters(self):
        """Return the waiters in order."""
        cdef void *at = self.first
        found = []
        while at != NULL:
            found.append((<Place>at).waiter)
            at = (<Place>at).next
        return found

    cdef bint may_go(self, Place place) noexcept:
        """Return whether a call may go on: all places before its own are passed over. None: it has no place yet."""
        if self.arena is None:
            return self.first == <void *>place
        cdef void *at = self.first
        cdef uint64_t now = monotonic_ns() if at != NULL else 0
        while at != NULL and at != <void *>place:
            if (<Place>at).called_ns == 0 or now - (<Place>at).called_ns <= PASS_AFTER_NS:
                return False
            at = (<Place>at).next
        return True

    cdef int call_next(self) except -1:
        """Notify the waiter of the first place that is not passed over, unless it was called already."""
        cdef void *at = self.first
        cdef uint64_t now = monotonic_ns() if at != NULL else 0
        cdef Place place
        if self.arena is None and at != NULL:
            (<Place>at).waiter.notify()
            return 0
        while at != NULL:
            place = <Place>at
            if place.called_ns == 0:
                place.called_ns = now
                place.waiter.notify()
                return 0
            if now - place.called_ns <= PASS_AFTER_NS:
                return 0
            at = place.next
        return 0

    cdef void show(self) noexcept:
        """Store how many calls wait, for the metric of the sender."""
        if self.arena is not None:
            self.arena.own.set_waiting_calls(self.count)


cdef WaitQueue make_memory_queue(Arena arena):
    cdef WaitQueue queue = WaitQueue()
    queue.arena = arena
    return queue


def leave_all(*places):
    """Let all of these places leave their queues, also if a signal's handler raises meanwhile."""
    cdef Place place
    error = None
    for place in places:
        try:
            place.leave()
        except BaseException as raised:
            error = raised
    if error is not None:
        raise error


# ------------------------------------------------------------ waits
#
# Lets threads wait for outcomes, metadata and memory.
#
# A waiting thread polls the session's wake-up (which the sender writes) and an eventfd of its own. The thread that
# finds the session's wake-up readable serves all waiting threads: it reads the wake-up, tells the sender again that a
# thread sleeps, takes all outcomes, and writes the eventfds of the threads whose wait is over. So it does not
# matter which thread the kernel wakes.
#
# It is native code, so that no exception of a signal's handler comes between the begin of a wait and its `finally`.
# await_batch() is the common path of `future.result()`: it runs no Python code between its system calls.


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
cdef double INLINE_S = 1.0              # how long a waiting thread ends unsent batches before it looks again


cdef inline double _now() noexcept:
    """Return time.monotonic(), also if the application has replaced that."""
    return monotonic_ns() / 1e9


def deadline_after(timeout):
    """Return the time.monotonic() that is `timeout` seconds from now, or None for None.

    Raise TypeError if `timeout` is not a number.
    """
    if timeout is None:
        return None
    if isinstance(timeout, (str, bytes)) or not hasattr(timeout, "__float__"):
        raise TypeError(f"timeout must be a number of seconds or None, not {type(timeout).__name__}")
    return _now() + float(timeout)


def run_blocking(coroutine):
    """Run a coroutine that never suspends, and return its result."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        return end.value
    coroutine.close()
    raise AssertionError("a coroutine of a thread has suspended")


def wait_until(owners, Waiter waiter not None, over, deadline):
    """Wait until `over()` is true. Return False if `deadline` (time.monotonic()) comes first.

    owners   the SessionOwners whose sessions are served meanwhile

    The caller has registered `waiter` with everything that can make `over()` true. Signals are handled; exceptions
    of their handlers are raised here.
    """
    cdef SessionOwner owner
    cdef Session session
    cdef list entered = []      # for each owner, the session whose descriptors are polled
    waiter.open()
    try:
        for owner in owners:
            owner.session.verify()
            entered.append(owner.session)
            (<Session>entered[len(entered) - 1]).enter_sleep(waiter)
        while not over():
            remaining = None if deadline is None else deadline - _now()
            if remaining is not None and remaining <= 0:
                return False
            if not _follow(owners, entered, waiter, remaining):
                _poll_all(entered, waiter, remaining)
        return True
    finally:
        for session in entered:
            session.leave_sleep(waiter)
        waiter.close()


cdef bint _follow(object owners, list entered, Waiter waiter, object remaining) except -1:
    """Go on with the next sessions of owners whose session has ended. Return whether the caller has to check again.

    A background thread attaches and wakes `waiter`. If no thread can be started, this one does its work.
    """
    cdef SessionOwner owner
    cdef bint changed = False
    for at, owner in enumerate(owners):
        if owner.session is not entered[at]:
            (<Session>entered[at]).leave_sleep(waiter)
            entered[at] = owner.session
            owner.session.enter_sleep(waiter)
            changed = True
        elif owner.recovering and not owner.begin_recovery():
            slice_s = INLINE_S if remaining is None else min(INLINE_S, remaining)
            owner.recover(_now() + slice_s)
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
    return wait_batches([batch], None if deadline is None else deadline - _now())


cdef class _Awaited:
    """The batches of one wait: those that had no outcome when it began."""

    cdef list owners
    cdef list left
    cdef bint any_of

    def __call__(self):
        """Return whether the wait is over. Raise ForkedFutureError in a forked child."""
        cdef SessionOwner owner
        for owner in self.owners:
            if owner.foreign:
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
    over.owners, over.any_of = [], any_of
    try:
        for batch in batches:
            owner = batch.owner  # before add_waiter: a batch that another thread finishes has no owner
            if batch.add_waiter(waiter):
                pending.append(batch)
                if owner not in over.owners:
                    over.owners.append(owner)
            elif any_of:
                return True
        if not pending:
            return True
        waiter.wanted = 1 if any_of else len(pending)
        over.left = list(pending)
        return wait_until(over.owners, waiter, over, deadline)
    finally:
        for batch in pending:
            batch.remove_waiter(waiter)


def await_callbacks(SessionOwner owner not None, deadline):
    """Wait until the callbacks that are ready have run. Return False if `deadline` (time.monotonic()) comes first.

    Do not wait on the thread that runs them.
    """
    cdef Waiter waiter = Waiter()
    delivery = owner.delivery
    if delivery is None or delivery.is_current_thread():
        return True
    try:
        delivery.waiting.append(waiter)  # before is_busy(): a busy thread notifies this waiter when it has finished
        if not delivery.is_busy():
            return True
        delivery.poke()
        return wait_until([], waiter, lambda: waiter.wanted <= 0 or owner.foreign, deadline)
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
        return True  # another thread has taken the outcome; the batch has no owner then
    if batch.owner is None:
        return False
    session = batch.owner.session
    session.verify()
    if not is_alive(session.arena):
        return batch.done
    waiter = session.borrow_waiter()
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
