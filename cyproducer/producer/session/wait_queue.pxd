"""Declares the queues of calls that wait, see wait_queue.pyx."""

from libc.stdint cimport uint64_t

from cyproducer.producer.arena.arena cimport Arena


cdef class Place:
    cdef readonly object waiter     # a BlockingWaiter or LoopWaiter
    cdef WaitQueue queue            # in which this place is; None: in none
    cdef bint blocks                # the call blocks its thread; False: it is a coroutine
    cdef object thread              # that of the call, or of its event loop
    cdef uint64_t called_ns         # when the waiter was notified (monotonic); 0: not since the last arm()
    cdef void *previous             # the neighbours in the queue, borrowed
    cdef void *next

    cpdef int leave(self) except -1
    cdef void arm(self) noexcept
    cdef void _link(self, WaitQueue queue, void *before) noexcept
    cdef void _unlink(self) noexcept


cdef class WaitQueue:
    cdef void *first                # a Place, borrowed
    cdef void *last
    cdef Py_ssize_t count
    cdef Arena arena                # whose gauge shows how many wait; None: no gauge, and no place is passed over
    cdef dict others                # from which this queue is removed when it gets empty, and its key there; or None
    cdef object key

    cdef bint may_go(self, Place place) noexcept
    cdef int call_next(self) except -1
    cdef void show(self) noexcept


cdef WaitQueue make_memory_queue(Arena arena)
