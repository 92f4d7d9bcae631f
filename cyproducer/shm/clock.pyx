"""Reads the system's clocks for Python code that runs in an application.

Tests of applications freeze or replace the functions of the module `time` (freezegun, unittest.mock). With these
functions, a time limit would never end.
"""


def read_monotonic():
    """Return the seconds of CLOCK_MONOTONIC, which `time.monotonic()` returns where it is not replaced."""
    return monotonic_ns() / 1e9


def read_monotonic_ns():
    """Return the nanoseconds of CLOCK_MONOTONIC."""
    return monotonic_ns()


def read_wall():
    """Return the seconds since 1970, as of the last tick of the kernel: up to 4 ms old."""
    return realtime_coarse_ms() / 1e3


def pause(double seconds):
    """Sleep up to `seconds`, without the GIL; a signal ends it. Under gevent and eventlet, wait_readable() is used."""
    cdef timespec time
    time.tv_sec = <long>seconds
    time.tv_nsec = <long>((seconds - time.tv_sec) * 1e9)
    with nogil:
        nanosleep(&time, NULL)
