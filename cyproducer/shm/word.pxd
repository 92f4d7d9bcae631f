"""The slot word: state, HEAD, CONT, generation, record count and bytes in 64 bits (diagram in layout.h)."""

from libc.stdint cimport uint32_t, uint64_t

from cyproducer.shm.layout cimport (
    CYP_WORD_BYTES_MASK,
    CYP_WORD_CONT,
    CYP_WORD_COUNT_MASK,
    CYP_WORD_COUNT_SHIFT,
    CYP_WORD_GENERATION_MASK,
    CYP_WORD_GENERATION_SHIFT,
    CYP_WORD_STATE_SHIFT,
)


cdef inline uint64_t word_make(
    uint32_t state, uint64_t flags, uint32_t generation, uint32_t count, uint32_t size
) noexcept nogil:
    """`flags` is any of CYP_WORD_HEAD, CYP_WORD_CONT."""
    return (
        <uint64_t>state << CYP_WORD_STATE_SHIFT
        | flags
        | (<uint64_t>generation & CYP_WORD_GENERATION_MASK) << CYP_WORD_GENERATION_SHIFT
        | <uint64_t>count << CYP_WORD_COUNT_SHIFT
        | size
    )


cdef inline uint32_t word_state(uint64_t word) noexcept nogil:
    return <uint32_t>(word >> CYP_WORD_STATE_SHIFT)


cdef inline uint32_t word_generation(uint64_t word) noexcept nogil:
    return <uint32_t>(word >> CYP_WORD_GENERATION_SHIFT & CYP_WORD_GENERATION_MASK)


cdef inline uint32_t word_count(uint64_t word) noexcept nogil:
    return <uint32_t>(word >> CYP_WORD_COUNT_SHIFT & CYP_WORD_COUNT_MASK)


cdef inline uint32_t word_bytes(uint64_t word) noexcept nogil:
    return <uint32_t>(word & CYP_WORD_BYTES_MASK)


cdef inline uint64_t word_with_state(uint64_t word, uint32_t state) noexcept nogil:
    return word & ((<uint64_t>1 << CYP_WORD_STATE_SHIFT) - 1) | <uint64_t>state << CYP_WORD_STATE_SHIFT


cdef inline uint64_t word_with_record(uint64_t word, uint32_t size) noexcept nogil:
    """The word after one record of `size` bytes more was written behind the committed tail."""
    return word + ((<uint64_t>1 << CYP_WORD_COUNT_SHIFT) + size)


cdef inline bint word_continues(uint64_t word) noexcept nogil:
    return (word & CYP_WORD_CONT) != 0
