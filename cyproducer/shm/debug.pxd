"""Declares check(), and CYPRODUCER_DEBUG as a C constant: `if CYPRODUCER_DEBUG:` costs nothing in a release build."""


cdef extern from *:
    """
    #ifndef CYPRODUCER_DEBUG
    #error "setup.py defines CYPRODUCER_DEBUG for every module"
    #endif
    #include <stdio.h>
    #include <stdlib.h>

    /* Abort the process of a debug build with a core dump if an invariant is broken: going on would hide the cause. */
    static inline void cyp_check(int holds, const char *what) {
        if (!holds) {
            fprintf(stderr, "cyproducer: broken invariant: %s\\n", what);
            abort();
        }
    }
    """
    const bint CYPRODUCER_DEBUG
    void check "cyp_check"(bint holds, const char *what) noexcept nogil
