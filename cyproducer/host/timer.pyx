"""Owns a timer of the kernel, whose descriptor is readable from a given time on."""

cimport cython
from libc.errno cimport errno
from posix.time cimport CLOCK_MONOTONIC, itimerspec
from posix.unistd cimport close

from cyproducer.shm.clock cimport eventfd_clear

import os

from cyproducer.host.forked_child import Duplicate

cdef extern from "sys/timerfd.h" nogil:
    enum:
        TFD_CLOEXEC
        TFD_NONBLOCK
        TFD_TIMER_ABSTIME
    int timerfd_create(int clock, int flags)
    int timerfd_settime(int fd, int flags, const itimerspec *value, itimerspec *old)


@cython.final
@cython.auto_pickle(False)
cdef class Timer:
    """A timer. Its descriptor is closed when it is freed, and in each forked child.

    It is native code, so that no signal handler can raise between the creation and the owner of the descriptor.
    """

    cdef object _held

    def __cinit__(self):
        cdef int fd = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK)
        if fd < 0:
            raise OSError(errno, os.strerror(errno))
        try:
            self._held = Duplicate(fd)
        finally:
            close(fd)

    @property
    def fd(self):
        """The descriptor."""
        return self._held.fd

    def set(self, double at):
        """Let it become readable at the time `at`, in seconds of CLOCK_MONOTONIC. Raise OSError."""
        cdef itimerspec value
        value.it_interval.tv_sec = value.it_interval.tv_nsec = 0
        value.it_value.tv_sec = <long>max(at, 0.0)
        value.it_value.tv_nsec = max(1, <long>((max(at, 0.0) - value.it_value.tv_sec) * 1e9))  # 0 would mean: never
        if timerfd_settime(self._held.fd, TFD_TIMER_ABSTIME, &value, NULL) < 0:
            raise OSError(errno, os.strerror(errno))

    def clear(self):
        """Make it unreadable until the next time that is set."""
        eventfd_clear(self._held.fd)  # both are read in the same way

    def close(self):
        """Close the descriptor. A second call does nothing."""
        self._held.close()
