"""Declares the functions of word.h for Cython."""

from libc.stdint cimport uint32_t, uint64_t


cdef extern from "cyproducer/shm/word.h" nogil:
    uint64_t word_make "cyp_word_make"(
        uint32_t state, uint64_t flags, uint32_t generation, uint32_t count, uint32_t size
    ) noexcept
    uint32_t word_state "cyp_word_state"(uint64_t word) noexcept
    uint32_t word_generation "cyp_word_generation"(uint64_t word) noexcept
    uint32_t word_count "cyp_word_count"(uint64_t word) noexcept
    uint32_t word_bytes "cyp_word_bytes"(uint64_t word) noexcept
    bint word_continues "cyp_word_continues"(uint64_t word) noexcept
    uint64_t word_with_state "cyp_word_with_state"(uint64_t word, uint32_t state) noexcept
    uint64_t word_with_records "cyp_word_with_records"(uint64_t word, uint32_t count, uint32_t size) noexcept
    uint32_t next_generation "cyp_next_generation"(uint32_t generation) noexcept
