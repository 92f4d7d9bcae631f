"""Crash points for modules in Python: `if DEBUG: crashpoint("step.what-has-just-happened")`."""

import os

from cyproducer.shm.build import DEBUG

__all__ = ["DEBUG", "crashpoint", "set_role"]


def crashpoint(str name not None):
    """Kills or stops this process if the point is armed for it. A release build does nothing."""
    cdef bytes encoded = name.encode()
    cdef const char *text = encoded
    CRASHPOINT(text)


def set_role(str role not None):
    """This process is a "sender" or "supervisor" for the crash points; one that says nothing is a "front-end"."""
    if DEBUG:
        os.environ["CYPRODUCER_CRASH_ROLE"] = role  # putenv: the points in C see it too
