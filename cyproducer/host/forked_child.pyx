"""Closes this package's descriptors in a forked child, and resets what threads of the parent may have locked.

Descriptor numbers are reused: a program may close descriptors that it does not own, and open files that get their
numbers. So each descriptor is kept with the device and inode of its file, and nothing else is closed.

It is native code, so that no signal handler can raise between two steps of disown() and close().
"""

import os

cimport cython

from cyproducer.host.same_file cimport same_file

cdef extern from "unistd.h" nogil:
    int close(int fd)

cdef dict _owned = {}       # descriptor -> (device, inode)
cdef list _functions = []   # called in each forked child


def file_of(int fd):
    """Return (device, inode) of an open file. Raise OSError."""
    status = os.fstat(fd)
    return status.st_dev, status.st_ino


def is_still(int fd, tuple file not None):
    """Return whether `fd` still refers to `file`: a program that daemonises closes descriptors it does not own."""
    return fd >= 0 and same_file(fd, file[0], file[1])


cpdef object own(int fd, tuple file):
    """Close `fd` in each child that is forked from now on, if it still refers to `file` there."""
    _owned[fd] = file


cpdef bint disown(int fd, tuple file) except -1:
    """Undo own(), with the same tuple. Return whether the caller may close `fd` if it still refers to `file`.

    False: the program has closed it, and its number was given to own() again; or this is a forked child.
    """
    if _owned.get(fd) is not file:
        return False
    del _owned[fd]
    return True


@cython.final
@cython.no_gc
@cython.auto_pickle(False)
cdef class Duplicate:
    """A duplicate of a descriptor, which is closed when this object is freed, and in each forked child."""

    def __cinit__(self):
        self.fd = -1

    def __init__(self, int fd):
        self.fd = os.dup(fd)
        file = file_of(self.fd)
        own(self.fd, file)
        self.file = file

    def __dealloc__(self):
        self.close()

    cpdef int close(self) except -1:
        """Close it, unless its number refers to another file by now. Do nothing if called again."""
        cdef int fd = self.fd
        self.fd = -1
        if self.file is None:  # __init__ was interrupted
            if fd >= 0:
                close(fd)
        elif fd >= 0 and disown(fd, self.file) and same_file(fd, self.file[0], self.file[1]):
            close(fd)
        return 0


def in_child(function):
    """Call `function` in each forked child. The functions are called in the order of these calls."""
    _functions.append(function)


def owned():
    """Return the descriptors that a forked child would close."""
    return list(_owned)


def _after_fork():
    for fd, file in _owned.items():
        if same_file(fd, file[0], file[1]):
            close(fd)
    _owned.clear()
    for function in _functions:
        _call(function)


cdef void _call(object function) noexcept:
    """Call a function. Its exception is printed and ignored, so that the other functions are called."""
    function()


os.register_at_fork(after_in_child=_after_fork)
