"""Declares the clocks and wake-ups of linux.h for Cython."""

from libc.stdint cimport int64_t, uint64_t


cdef extern from "cyproducer/shm/linux.h" nogil:
    uint64_t monotonic_ns "cyp_monotonic_ns"() noexcept
    int64_t realtime_coarse_ms "cyp_realtime_coarse_ms"() noexcept
    void eventfd_signal "cyp_eventfd_signal"(int fd) noexcept
    void eventfd_clear "cyp_eventfd_clear"(int fd) noexcept
    void wake_signal "cyp_wake_signal"(int fd) noexcept
    void wake_clear "cyp_wake_clear"(int fd) noexcept
