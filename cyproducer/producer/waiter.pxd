"""One waiting thread's own eventfd, see waiter.pyx."""

from libc.stdint cimport uint64_t


cdef class Waiter:
    cdef readonly int fd
    cdef public long wanted
    cdef bint dozes                 # may it be asleep? If not, it looks by itself before it falls asleep
    cdef uint64_t device
    cdef uint64_t inode
    cdef tuple file                 # both

    cdef bint is_open(self) noexcept
