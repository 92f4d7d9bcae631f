"""Declares the functions of ring.h for Cython: single-producer single-consumer rings in shared memory."""

from libc.stdint cimport uint32_t, uint64_t

from cyproducer.shm.layout cimport cyp_extent, cyp_outcome


cdef extern from "cyproducer/shm/ring.h" nogil:
    uint64_t submit_entry "cyp_submit_entry"(uint32_t kind, uint32_t slot, uint32_t generation) noexcept
    uint32_t submit_kind "cyp_submit_kind"(uint64_t entry) noexcept
    uint32_t submit_generation "cyp_submit_generation"(uint64_t entry) noexcept
    uint32_t submit_slot "cyp_submit_slot"(uint64_t entry) noexcept
    void submit_push "cyp_submit_push"(
        uint64_t *ring, uint64_t mask, uint64_t *tail, uint64_t position, uint64_t entry
    ) noexcept
    uint64_t submit_tail "cyp_submit_tail"(const uint64_t *tail) noexcept
    uint64_t submit_take "cyp_submit_take"(const uint64_t *ring, uint64_t mask, uint64_t position) noexcept

    void outcome_put "cyp_outcome_put"(
        cyp_outcome *ring, uint64_t mask, uint64_t position, const cyp_outcome *outcome
    ) noexcept
    void outcome_publish "cyp_outcome_publish"(uint64_t *tail, uint64_t position) noexcept
    uint64_t outcome_available "cyp_outcome_available"(const uint64_t *tail, uint64_t head) noexcept
    void outcome_take "cyp_outcome_take"(
        const cyp_outcome *ring, uint64_t mask, uint64_t position, cyp_outcome *outcome
    ) noexcept
    bint outcome_is_current "cyp_outcome_is_current"(const cyp_outcome *outcome, uint32_t generation) noexcept

    uint64_t outcomes_taken "cyp_outcomes_taken"(const uint64_t *head) noexcept
    void extent_fill "cyp_extent_fill"(cyp_extent *row, const cyp_extent *filled) noexcept
    void extent_lengthen "cyp_extent_lengthen"(cyp_extent *row, uint32_t count) noexcept
    void extent_free "cyp_extent_free"(cyp_extent *row) noexcept
    void extent_take "cyp_extent_take"(const cyp_extent *row, cyp_extent *extent) noexcept
