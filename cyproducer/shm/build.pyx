"""Which build this is.

``DEBUG`` is True if it was compiled with CYPRODUCER_DEBUG=1 and checks its invariants, ``SANITIZED`` if with
CYPRODUCER_SANITIZE: every process that imports it then needs the sanitizer's library from its start.
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
