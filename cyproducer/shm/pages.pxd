"""Declares two parts of linux.h: zero pages for tables that are mostly unused, and the memory of parts of a memfd."""

from libc.stdint cimport uint64_t


cdef extern from "cyproducer/shm/linux.h" nogil:
    void *pages_new "cyp_pages_new"(size_t size) noexcept
    void pages_free "cyp_pages_free"(void *at, size_t size) noexcept
    bint next_data "cyp_next_data"(int fd, uint64_t at, uint64_t end, uint64_t *start, uint64_t *to) noexcept
    bint has_memory "cyp_has_memory"(int fd, uint64_t at, uint64_t size) noexcept
    void drop_memory "cyp_drop_memory"(int fd, uint64_t at, uint64_t size) noexcept
