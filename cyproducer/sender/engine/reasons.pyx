"""Declares the reasons in events. tools/generate.py writes this file from events.py."""


cdef enum CloseReason:
    CLOSE_BY_PEER = -1
    CLOSE_TIMEOUT = -2
    CLOSE_PROTOCOL = -3
    CLOSE_BY_US = -4
    CLOSE_TLS = -5
    CLOSE_NEEDS_TLS = -6


cdef enum Violation:
    VIOLATION_RING = 1
    VIOLATION_HINT = 2
    VIOLATION_CHAIN = 3
    VIOLATION_CHANGED = 4
    VIOLATION_TOPIC = 5
