"""Declares the registry of descriptors that a forked child closes, see forked_child.pyx."""

cdef class Duplicate:
    cdef readonly int fd        # -1: closed
    cdef tuple file             # (device, inode)

    cpdef int close(self) except -1


cpdef object own(int fd, tuple file)
cpdef bint disown(int fd, tuple file) except -1
