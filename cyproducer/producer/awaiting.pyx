"""How a thread waits for one batch: what waiters.wait_until does, without Python between the system calls.

`future.result()` on the usual way. What is unusual (a session that ends, gevent) is left to waiters.py.
"""

from cpython.exc cimport PyErr_CheckSignals
from libc.errno cimport EINTR, errno
from libc.stdint cimport int64_t

from cyproducer.producer.futures cimport Batch
from cyproducer.producer.session cimport Session
from cyproducer.producer.waiter cimport Waiter
from cyproducer.shm.clock cimport monotonic_ns

from cyproducer.shm.waiting import is_patched

cdef extern from "poll.h" nogil:
    enum:
        POLLIN
    struct pollfd:
        int fd
        short events
        short revents
    int poll(pollfd *fds, unsigned long count, int timeout_ms)

cdef int64_t TRUST_NS = 50_000_000      # of a wait, before it is asked again whether the descriptors are still ours
cdef double LONGEST_S = 1e9


def await_batch(Batch batch, timeout):
    """True: it has its outcome. False: not within `timeout` seconds (None: for ever), or only wait_batches can tell."""
    cdef Session session
    cdef Waiter waiter
    cdef int64_t deadline = -1
    if is_patched():
        return False
    if timeout is not None:
        deadline = <int64_t>monotonic_ns() + <int64_t>(min(max(timeout, 0.0), LONGEST_S) * 1e9)
    if batch.done:
        return True  # another thread has taken the outcome, and the batch has no session any more
    session = batch.session
    if session is None:
        return False
    session.verify()
    if session.sentinel[0] != session.token:
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
    """Until the outcome is there, the session is not, or the time is over."""
    cdef int64_t now, until = monotonic_ns() + TRUST_NS
    while not batch.done and session.sentinel[0] == session.token:
        now = <int64_t>monotonic_ns()
        if 0 <= deadline <= now:
            return 0
        if deadline >= 0:
            until = deadline if until < 0 else min(deadline, until)
        _poll(session, waiter, -1 if until < 0 else max(0, until - now))
        if batch.done:
            return 0
        session.verify()  # a program that has closed our descriptors meanwhile would have this go in a circle
        if not waiter.is_open():
            return 0
        until = -1
    return 0


cdef int _poll(Session session, Waiter waiter, int64_t left_ns) except -1:
    """Sleeps until there is news, which the session takes, or the time is over."""
    cdef pollfd polled[3]
    cdef int64_t left_ms = -1 if left_ns < 0 else min((left_ns + 999_999) // 1_000_000, 0x7fffffff)
    cdef int ready
    polled[0].fd, polled[1].fd, polled[2].fd = waiter.fd, session.wake_fd, session.socket_fd
    polled[0].events = polled[1].events = polled[2].events = POLLIN
    waiter.dozes = True  # from here on who notifies wakes; no other thread runs between the last look and this
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
    if polled[2].revents and session.sentinel[0] == session.token:
        session.on_control()
    if polled[1].revents and session.sentinel[0] == session.token:
        session.on_wake()
    return 0
