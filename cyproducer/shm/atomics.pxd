"""Declares the atomic accesses of atomics.h for Cython."""

from libc.stdint cimport int32_t, uint8_t, uint32_t, uint64_t


cdef extern from "cyproducer/shm/atomics.h" nogil:
    uint64_t load_acquire "cyp_load_acquire_u64"(const uint64_t *word) noexcept
    uint64_t load_relaxed "cyp_load_relaxed_u64"(const uint64_t *word) noexcept
    void store_release "cyp_store_release_u64"(uint64_t *word, uint64_t value) noexcept
    void store_relaxed "cyp_store_relaxed_u64"(uint64_t *word, uint64_t value) noexcept
    uint32_t load_acquire32 "cyp_load_acquire_u32"(const uint32_t *word) noexcept
    uint32_t load_relaxed32 "cyp_load_relaxed_u32"(const uint32_t *word) noexcept
    void store_release32 "cyp_store_release_u32"(uint32_t *word, uint32_t value) noexcept
    void store_relaxed32 "cyp_store_relaxed_u32"(uint32_t *word, uint32_t value) noexcept
    uint8_t load_relaxed8 "cyp_load_relaxed_u8"(const uint8_t *at) noexcept
    void store_relaxed8 "cyp_store_relaxed_u8"(uint8_t *at, uint8_t value) noexcept
    int32_t load_relaxed_i32 "cyp_load_relaxed_i32"(const int32_t *word) noexcept
    void store_relaxed_i32 "cyp_store_relaxed_i32"(int32_t *word, int32_t value) noexcept
    bint cas "cyp_cas_u64"(uint64_t *word, uint64_t expected, uint64_t desired) noexcept
    void fence_seq_cst "cyp_fence_seq_cst"() noexcept
