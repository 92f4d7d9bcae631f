"""Owns descriptors so that they are closed in all cases, also if a signal handler raises an exception.

Such an exception can come between any two steps of Python code, so also between the call that creates a descriptor and
the assignment of its number. In this module no Python code runs between the two, and the owner closes the
descriptor when it is deallocated.
"""

import os

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.string cimport memcpy

import _socket

cdef extern from "unistd.h" nogil:
    int close(int fd)

cdef enum:
    MOST = 8


cdef class Descriptors:
    """Owns up to eight descriptors, numbered in the order in which they came."""

    cdef int fds[MOST]
    cdef readonly int count

    def __dealloc__(self):
        self._close()

    cdef void _close(self) noexcept:
        cdef int at
        for at in range(self.count):
            if self.fds[at] >= 0:
                close(self.fds[at])
        self.count = 0

    def close(self):
        """Close the descriptors that it still owns. A second call does nothing."""
        self._close()

    def add_pidfd(self, int pid):
        """Add a pidfd of a process. Raise OSError, and ValueError if it owns descriptors already."""
        self._check_empty()
        self.fds[self.count] = os.pidfd_open(pid)
        self.count += 1

    def receive(self, object sock, Py_ssize_t size):
        """Receive one message and add its descriptors; close those for which there is no space.

        Return (data, flags, number of descriptors that came). Raise errors of recvmsg().
        """
        cdef Py_ssize_t at, width
        cdef bytes payload
        cdef const char *number
        cdef int surplus
        cdef Py_ssize_t came = 0
        self._check_empty()
        data, ancillary, flags, _ = sock.recvmsg(size, SPACE, CLOEXEC)
        for level, kind, payload in ancillary:
            if level == RIGHTS[0] and kind == RIGHTS[1]:
                width = PyBytes_GET_SIZE(payload) // <Py_ssize_t>sizeof(int)
                came += width
                for at in range(width):
                    number = PyBytes_AS_STRING(payload) + at * <Py_ssize_t>sizeof(int)
                    if self.count < MOST:
                        memcpy(&self.fds[self.count], number, sizeof(int))
                        self.count += 1
                    else:  # the space for credentials has room for more than MOST
                        memcpy(&surplus, number, sizeof(int))
                        close(surplus)
        return data, flags, came

    def __getitem__(self, int at):
        """Return the number of a descriptor, which this object still owns."""
        if not 0 <= at < self.count:
            raise IndexError(at)
        return self.fds[at]

    def give(self, int at, object taker, *arguments):
        """Return `taker(descriptor, *arguments)`. The taker must be compiled code that owns the descriptor at once."""
        cdef int fd
        if not 0 <= at < self.count:
            raise IndexError(at)
        fd, self.fds[at] = self.fds[at], -1
        return taker(fd, *arguments)

    cdef int _check_empty(self) except -1:
        if self.count:
            raise ValueError("this object owns descriptors already; close them first")
        return 0


cdef class WakePair:
    """Owns the two wake-up descriptors of a front-end; -1: none."""

    cdef readonly int wake_fd
    cdef readonly int sender_wake_fd

    def __cinit__(self, *arguments):
        self.wake_fd = self.sender_wake_fd = -1

    def __dealloc__(self):
        if self.wake_fd >= 0:
            close(self.wake_fd)
        if self.sender_wake_fd >= 0:
            close(self.sender_wake_fd)

    def hold_wake(self, object sock):
        """Take the descriptor over from a socket."""
        self.wake_fd = sock.detach()

    def hold_sender_wake(self, Descriptors descriptors, int at):
        """Take one of `descriptors` over."""
        if not 0 <= at < descriptors.count:
            raise IndexError(at)
        self.sender_wake_fd, descriptors.fds[at] = descriptors.fds[at], -1

    def hang_up(self, object sock, bint has_socket, bint has_wake, bint has_sender_wake):
        """Close a socket and both descriptors, in one step. A second call does nothing.

        The flags say whether the number still refers to the same file. If it does not, it is forgotten.
        """
        cdef int wake = self.wake_fd, sender_wake = self.sender_wake_fd
        self.wake_fd = self.sender_wake_fd = -1
        if has_wake and wake >= 0:
            close(wake)
        if has_sender_wake and sender_wake >= 0:
            close(sender_wake)
        if has_socket:
            sock.close()
        else:
            sock.detach()


cdef object SPACE = _socket.CMSG_SPACE(MOST * sizeof(int)) + _socket.CMSG_SPACE(12)
cdef object CLOEXEC = _socket.MSG_CMSG_CLOEXEC
cdef tuple RIGHTS = (_socket.SOL_SOCKET, _socket.SCM_RIGHTS)
