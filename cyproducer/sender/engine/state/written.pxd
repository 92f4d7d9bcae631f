"""Tells whether a front-end of another user has written a part of its arena.

Reading a page that was never written allocates it, and its memory counts for the sender's cgroup. So the sender would
pay for the arena of another user. Processes of the sender's own user keep to the protocol: they refer only to what they
have written.
"""

from libc.stdint cimport uint32_t, uint64_t

from cyproducer.sender.engine.state.model cimport FrontEnd
from cyproducer.shm.layout cimport CYP_UNIT_BYTES, cyp_slot_row
from cyproducer.shm.pages cimport has_memory


cdef inline bint row_is_written(const FrontEnd *front_end, uint32_t slot) noexcept nogil:
    """Return whether the row of a slot may be read."""
    return not front_end.is_stranger or has_memory(
        front_end.arena_fd, <uint64_t>&front_end.rows[slot] - <uint64_t>front_end.header, sizeof(cyp_slot_row)
    )


cdef inline bint chunk_is_written(const FrontEnd *front_end, uint32_t slot, uint64_t size) noexcept nogil:
    """Return whether the first `size` bytes of a chunk may be read."""
    return not front_end.is_stranger or has_memory(
        front_end.arena_fd,
        <uint64_t>front_end.chunks - <uint64_t>front_end.header + slot * <uint64_t>CYP_UNIT_BYTES,
        size,
    )
