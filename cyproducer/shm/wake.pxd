"""Declares the functions of wake.h for Cython: the wake-ups between front-ends and the sender."""

from libc.stdint cimport uint32_t, uint64_t

from cyproducer.shm.layout cimport cyp_snapshot_header


cdef extern from "cyproducer/shm/wake.h" nogil:
    ctypedef struct cyp_signalled:
        uint64_t sleep
        uint32_t idle

    bint sender_needs_wake "cyp_sender_needs_wake"(
        const cyp_snapshot_header *snapshot, const uint32_t *idle, uint64_t deadline_ns, cyp_signalled *signalled
    ) noexcept
    void front_end_idles "cyp_front_end_idles"(uint32_t *idle) noexcept
    void front_end_acts "cyp_front_end_acts"(uint32_t *idle) noexcept
    bint sender_asleep "cyp_sender_asleep"(const cyp_snapshot_header *snapshot) noexcept
    void sender_sleeps "cyp_sender_sleeps"(cyp_snapshot_header *snapshot, uint64_t next_wake_ns) noexcept
    void sender_wakes "cyp_sender_wakes"(cyp_snapshot_header *snapshot) noexcept
    void waiter_sleeps "cyp_waiter_sleeps"(uint32_t *sleeping, uint32_t epoch) noexcept
    void waiter_wakes "cyp_waiter_wakes"(uint32_t *sleeping, uint32_t epoch) noexcept
    bint waiter_needs_wake "cyp_waiter_needs_wake"(const uint32_t *sleeping, uint32_t *signalled) noexcept
