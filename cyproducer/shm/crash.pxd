"""CRASHPOINT(b"step.what-has-just-happened"): where the debug build can be killed or stopped (crashpoint.h).

The tests find the points by reading the source: the name is a literal, and stands in one place only.
"""


cdef extern from "cyproducer/shm/crashpoint.h" nogil:
    void CRASHPOINT "CYP_CRASHPOINT"(const char *name) noexcept
