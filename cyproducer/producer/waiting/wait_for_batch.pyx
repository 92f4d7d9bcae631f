"""Lets a thread wait for one batch: poll.wait_until in native code, without Python between the system calls.

This is the common path of `future.result()`. Rare cases (a session that ends, gevent) are left to poll.py.
"""

from cpython.exc cimport PyErr_CheckSignals
from libc.errno cimport EINTR, errno
from libc.stdint cimport int64_t

from cyproducer.producer.arena.arena cimport is_alive
from cyproducer.producer.results.futures cimport Batch
from cyproducer.producer.results.waiter cimport Waiter
from cyproducer.producer.session.session cimport Session
from cyproducer.shm.clock cimport monotonic_ns

from cyproducer.host.poll import is_patched

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
