"""Declares what a front-end counts itself, see own_metrics.pyx."""

from libc.stdint cimport uint64_t

from cyproducer.shm.protocol cimport cyp_own_metrics


cdef class OwnMetrics:
    cdef cyp_own_metrics all        # since the producer was made
    cdef uint64_t process           # fork_token() of the process that counts in `shared`
    cdef cyp_own_metrics *shared    # in the arena, since the process has attached; NULL: it is not attached
    cdef readonly list client       # [total, count] of each sensor of the sender, of sessions that have ended
    cdef readonly dict topics       # the same for each topic by its name

    cdef bint is_shared(self) noexcept
    cdef void share(self, cyp_own_metrics *shared) noexcept
    cdef void unshare(self, const cyp_own_metrics *shared) noexcept
    cdef void record(self, int sensor, uint64_t value) noexcept
    cdef void fail(self, long long records) noexcept
    cdef void note_waiting(self, uint64_t calls) noexcept
    cdef list own_readings(self)
