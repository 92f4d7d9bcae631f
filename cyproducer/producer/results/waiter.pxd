"""Declares Waiter, the eventfd of one waiting thread, see waiter.pyx."""

from libc.stdint cimport uint64_t


cdef class Waiter:
    cdef readonly int fd
    cdef public long wanted
    cdef bint dozes                 # False: the owner is awake and checks for news itself before it polls
    cdef uint64_t device
    cdef uint64_t inode
    cdef tuple file                 # (device, inode)

    cdef bint is_open(self) noexcept
    cdef int _close(self) except -1


cdef object notify_all(object waiters, str how)
