"""Declares Region, a mapped memfd, see region.pyx."""

from libc.stdint cimport uint8_t, uint64_t


cdef class Region:
    cdef readonly int fd            # -1: closed
    cdef readonly uint64_t size
    cdef readonly bint writable
    cdef uint8_t *base              # NULL: not mapped
    cdef uint64_t process           # fork_token() of the process that mapped it

    cdef object _map(self, uint64_t size, bint writable)


cpdef uint64_t fork_token()


cdef const uint64_t *fork_page() noexcept nogil
