"""Declares the chunk allocator of an arena's owner, see pool.pyx."""

from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t


cdef class ChunkPool:
    cdef readonly uint32_t slot_count
    cdef readonly uint64_t free_bytes
    cdef uint32_t block_count
    cdef uint32_t fresh_block           # blocks from here on were never touched
    cdef uint32_t heads[3]              # per class: first slot of its LIFO free list
    cdef uint32_t *next                 # per slot: the next one in its free list
    cdef uint32_t *previous
    cdef uint8_t *chunk_class           # per slot that starts a chunk
    cdef uint16_t *free_units           # per block: bit i = unit i is in a free chunk

    cdef uint32_t alloc(self, int chunk_class) noexcept nogil
    cdef void free(self, uint32_t slot) noexcept nogil
    cdef void _push(self, uint32_t slot, int chunk_class) noexcept nogil
    cdef void _remove(self, uint32_t slot) noexcept nogil
    cdef uint32_t _cut(self, uint32_t slot, int from_class, int to_class) noexcept nogil
    cdef uint32_t _coalesce(self) noexcept nogil


cdef inline uint32_t class_bytes(int chunk_class) noexcept nogil:
    return <uint32_t>4096 << (2 * chunk_class)


cdef inline int class_for(uint64_t size) noexcept nogil:
    """Return the smallest class that holds `size` bytes; the largest class if none does."""
    return 0 if size <= 4096 else 1 if size <= 16384 else 2
