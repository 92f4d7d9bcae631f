"""Checks whether the clock of this host is synchronised, as the kernel says (adjtimex)."""

import ctypes
import os
from collections.abc import Iterator

from cyproducer.doctor.finding import Finding, ok, skipped, warning

__all__ = ["check_clock"]

CHECK = "clock"
_TIME_ERROR = 5  # what adjtimex() returns of a clock that is not synchronised


class _Timex(ctypes.Structure):
    """`struct timex` of <sys/timex.h>. With `modes` 0, adjtimex() only reads. The rest is never looked at."""

    _fields_ = (("modes", ctypes.c_uint), ("rest", ctypes.c_long * 64))


def check_clock() -> Iterator[Finding]:
    """Yield what is found. A wrong clock breaks certificates, tokens and the timestamps of records."""
    libc = ctypes.CDLL(None, use_errno=True)
    state = libc.adjtimex(ctypes.byref(_Timex()))
    if state < 0:
        yield skipped(CHECK, f"the kernel does not say whether it is synchronised: {os.strerror(ctypes.get_errno())}")
    elif state == _TIME_ERROR:
        yield warning(
            CHECK,
            "the kernel says that the clock is not synchronised",
            "let chrony or systemd-timesyncd run on this host; certificates, tokens and timestamps depend on the clock",
        )
    else:
        yield ok(CHECK, "the clock is synchronised")
