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
        """Whether the waiter was notified since the last attempt to go on."""
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
        """Store how many calls wait, for the sender."""
        if self.arena is not None:
            self.arena.own.note_waiting(self.count)


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
