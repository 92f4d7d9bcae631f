"""Declares the part of a takeover that reads the slot tables, see slot_recovery.pyx."""

from libc.stdint cimport uint32_t, uint64_t

from cyproducer.sender.engine.state.model cimport Core, FrontEnd, Published


# An item to be handled in the order of its fields.
ctypedef struct Ranked:
    uint64_t rank
    bint stale                      # an entry whose sequence is not of the present epoch of its partition
    uint64_t sequence
    uint32_t start
    uint32_t index


cdef inline uint32_t published_flags(FrontEnd *front_end, uint32_t slot, uint32_t generation) noexcept nogil:
    """Return the flags of the published outcomes of a batch, which its front-end may have read."""
    cdef Published *published = &front_end.published[slot]
    return published.flags if published.generation == generation else 0


cdef int by_rank(const void *a, const void *b) noexcept nogil
cdef object restore_slots(Core *core, FrontEnd *front_end)
