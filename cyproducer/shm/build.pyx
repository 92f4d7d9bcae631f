"""Which build this is: ``DEBUG`` is True if it was compiled with CYPRODUCER_DEBUG=1 and checks its invariants."""

cdef extern from *:
    """
    #ifndef CYPRODUCER_DEBUG
    #error "setup.py defines CYPRODUCER_DEBUG for every module"
    #endif
    """
    const bint CYPRODUCER_DEBUG

DEBUG = bool(CYPRODUCER_DEBUG)
