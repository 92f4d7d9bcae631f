"""Declares the registry of descriptors that a forked child closes, see forked_child.pyx."""

cpdef object own(int fd, tuple file)
cpdef bint disown(int fd, tuple file) except -1
