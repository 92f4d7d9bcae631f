"""Tells which kind of build this is.

``DEBUG`` is True if it was compiled with CYPRODUCER_DEBUG=1: it checks its invariants. ``SANITIZED`` is True if it was
compiled with CYPRODUCER_SANITIZE: every process that imports it must load the sanitizer's library at its start.
"""

cdef extern from *:
    """
    #ifndef CYPRODUCER_DEBUG
    #error "setup.py defines CYPRODUCER_DEBUG for every module"
    #endif
    #ifndef CYPRODUCER_SANITIZED
    #define CYPRODUCER_SANITIZED 0
    #endif
    """
    const bint CYPRODUCER_DEBUG
    const bint CYPRODUCER_SANITIZED

DEBUG = bool(CYPRODUCER_DEBUG)
SANITIZED = bool(CYPRODUCER_SANITIZED)
