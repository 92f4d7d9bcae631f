"""Declares CRASHPOINT(b"step.what-has-just-happened"): a place where a debug build can be killed or stopped.

See crashpoint.h. The tests find the crash points by reading the source: each name must be a literal and occur in one
place only.
"""


cdef extern from "cyproducer/shm/crashpoint.h" nogil:
    void CRASHPOINT "CYP_CRASHPOINT"(const char *name) noexcept
