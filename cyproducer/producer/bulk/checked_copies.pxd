"""Declares how numbers that are followed are copied out of foreign memory and checked, see checked_copies.pyx."""

from libc.stdint cimport int64_t, uint8_t


cdef struct Span:
    const uint8_t *data
    Py_ssize_t length   # -1: null


cdef inline bint bit_at(const uint8_t *bits, int64_t at) noexcept nogil:
    return bits[at >> 3] >> (at & 7) & 1


cdef void copy_bytes(void *out, const void *source, Py_ssize_t size) noexcept nogil
cdef Py_ssize_t copy_offsets(
    void *out, const void *source, Py_ssize_t count, int width, int64_t most, Py_ssize_t *longest
) noexcept nogil
cdef Py_ssize_t copy_views(
    Span *out, const void *source, Py_ssize_t rows, const uint8_t *bits, int64_t first_bit, const Span *buffers,
    Py_ssize_t buffer_count, Py_ssize_t *longest
) noexcept nogil
