"""Provides crash points for Python modules: `if DEBUG: crashpoint("step.what-has-just-happened")`."""

import os

from cyproducer.shm.build import DEBUG

__all__ = ["DEBUG", "crashpoint", "set_role"]


def crashpoint(str name not None):
    """Kill or stop this process if a test has armed the point for it. Do nothing in a release build."""
    cdef bytes encoded = name.encode()
    cdef const char *text = encoded
    CRASHPOINT(text)


def set_role(str role not None):
    """Set this process's role for the crash points: "sender" or "supervisor". The default is "front-end"."""
    if DEBUG:
        os.environ["CYPRODUCER_CRASH_ROLE"] = role  # putenv: crash points in C see it too
