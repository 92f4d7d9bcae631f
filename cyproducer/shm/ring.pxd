"""Single-producer single-consumer rings over shared memory.

Positions are 64-bit, monotonic and never wrapped; the index is position & (entries - 1). The producer of a
ring has its tail in a region that it alone writes, the consumer its head likewise. Both rings are sized so
that they cannot be full (layout.h), hence no side ever waits for the other.
"""

from libc.stdint cimport uint32_t, uint64_t

from cyproducer.shm.atomics cimport load_acquire, store_release
from cyproducer.shm.layout cimport (
    CYP_SUBMIT_GENERATION_SHIFT,
    CYP_SUBMIT_KIND_SHIFT,
    CYP_WORD_GENERATION_MASK,
    cyp_outcome,
)


cdef inline uint64_t submit_entry(uint32_t kind, uint32_t slot, uint32_t generation) noexcept nogil:
    return <uint64_t>kind << CYP_SUBMIT_KIND_SHIFT | <uint64_t>generation << CYP_SUBMIT_GENERATION_SHIFT | slot


cdef inline uint32_t submit_kind(uint64_t entry) noexcept nogil:
    return <uint32_t>(entry >> CYP_SUBMIT_KIND_SHIFT)


cdef inline uint32_t submit_generation(uint64_t entry) noexcept nogil:
    return <uint32_t>(entry >> CYP_SUBMIT_GENERATION_SHIFT & CYP_WORD_GENERATION_MASK)


cdef inline uint32_t submit_slot(uint64_t entry) noexcept nogil:
    return <uint32_t>entry


cdef inline void submit_push(
    uint64_t *ring, uint64_t mask, uint64_t *tail, uint64_t position, uint64_t entry
) noexcept nogil:
    """Publishes `entry` at `position`, the producer's private copy of its tail."""
    ring[position & mask] = entry
    store_release(tail, position + 1)  # pairs with the sender's acquire of submit_tail: the entry is seen whole


cdef inline cyp_outcome *outcome_slot(cyp_outcome *ring, uint64_t mask, uint64_t position) noexcept nogil:
    return &ring[position & mask]


cdef inline void outcome_publish(uint64_t *tail, uint64_t position) noexcept nogil:
    store_release(tail, position)  # pairs with the front-end's acquire in outcome_available


cdef inline uint64_t outcome_available(const uint64_t *tail, uint64_t head) noexcept nogil:
    """How many outcomes lie behind `head`."""
    return load_acquire(tail) - head  # pairs with outcome_publish: the entries are seen whole
