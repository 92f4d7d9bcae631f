"""One waiting thread's own eventfd.

Native, so that notify() cannot be interrupted between its steps: it must never write to a descriptor that its
owner has just closed.
"""

import os

cimport cython
from cyproducer.producer.append cimport same_file
from cyproducer.shm.clock cimport eventfd_clear, eventfd_signal

cdef extern from "unistd.h" nogil:
    int close(int fd)

_opened = {}    # eventfd -> (device, inode), as its Waiter has it


@cython.final
@cython.auto_pickle(False)
cdef class Waiter:
    """`notify()` is called from whichever thread learns the news; as many calls as `wanted` end the wait."""

    def __init__(self, wanted=1):
        self.wanted = wanted
        self.fd = -1
        self.dozes = True

    def open(self):
        """Makes the eventfd, until close()."""
        fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        status = os.fstat(fd)
        self.device, self.inode = status.st_dev, status.st_ino
        self.file = self.device, self.inode
        self.fd = fd
        _opened[fd] = self.file

    cdef bint is_open(self) noexcept:
        """Has it an eventfd, which the program has not closed behind our back?"""
        return self.fd >= 0 and same_file(self.fd, self.device, self.inode)

    def close(self):
        """Closes it, unless the program has closed it and uses its number, or this is a child of fork."""
        cdef int fd = self.fd
        self.fd = -1
        # Another tuple: the program has closed it, and another waiter has got its number.
        if fd >= 0 and _opened is not None and _opened.get(fd) is self.file:
            del _opened[fd]
            if same_file(fd, self.device, self.inode):
                close(fd)

    def forget(self):
        """Instead of close(), where the program closes what it finds: its eventfds and epolls look like ours."""
        if _opened is not None and _opened.get(self.fd) is self.file:
            del _opened[self.fd]
        self.fd = -1

    def notify(self):
        """One of the things that are waited for has happened."""
        self.wanted -= 1
        if self.wanted <= 0:
            self.wake()

    def wake(self):
        """Ends the poll of whoever waits."""
        if self.dozes and self.is_open():
            eventfd_signal(self.fd)

    def clear(self):
        """Takes back what wake() has done."""
        if self.is_open():
            eventfd_clear(self.fd)


def _close_in_child():
    for fd, (device, inode) in _opened.items():
        if same_file(fd, device, inode):
            close(fd)
    _opened.clear()


os.register_at_fork(after_in_child=_close_in_child)
