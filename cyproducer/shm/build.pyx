"""Tells which kind of build this is.

``DEBUG`` is True if it was compiled with CYPRODUCER_DEBUG=1: it checks its invariants. ``SANITIZED`` is True if it was
compiled with CYPRODUCER_SANITIZE: every process that imports it must load the sanitizer's library at its start.
"""


cdef extern from *:
    """
    #ifndef CYPRODUCER_SANITIZED
    #define CYPRODUCER_SANITIZED 0
    #endif
    """
    const bint CYPRODUCER_SANITIZED

DEBUG = bool(CYPRODUCER_DEBUG)
SANITIZED = bool(CYPRODUCER_SANITIZED)


# ------------------------------------------------------------ crash
#
# Provides crash points for Python modules: `if DEBUG: crashpoint("step.what-has-just-happened")`.


def crashpoint(str name not None):
    """Kill or stop this process if a test has armed the point for it. Do nothing in a release build."""
    cdef bytes encoded = name.encode()
    cdef const char *text = encoded
    CRASHPOINT(text)


def set_role(str role not None):
    """Set this process's role for the crash points: "sender" or "supervisor". The default is "front-end"."""
    if DEBUG:
        os.environ["CYPRODUCER_CRASH_ROLE"] = role  # putenv: crash points in C see it too
