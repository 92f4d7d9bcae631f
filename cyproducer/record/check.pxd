"""Declares the check of records in check.h for Cython."""

from libc.stdint cimport uint8_t, uint32_t, uint64_t


cdef extern from "cyproducer/record/check.h" nogil:
    bint check_records "cyp_check_records"(
        const uint8_t *at, size_t n, uint32_t count, uint32_t first, uint32_t *largest
    ) noexcept
