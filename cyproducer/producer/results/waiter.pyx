"""Wakes one waiting thread through its own eventfd.

It is native code, so that notify() cannot be interrupted between its steps: it must never write to a descriptor that
its owner has just closed.
"""

import os

cimport cython
from cyproducer.shm.native cimport disown, own
from cyproducer.shm.protocol cimport same_file
from cyproducer.shm.protocol cimport eventfd_clear, eventfd_signal

from cyproducer.shm.native import file_of

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
