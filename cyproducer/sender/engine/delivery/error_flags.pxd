"""Declares what a broker's error means for a batch, by the table of Kafka's errors."""

from libc.stdint cimport int32_t


cdef bint is_retriable(int32_t error) noexcept nogil
cdef bint is_stale_metadata(int32_t error) noexcept nogil
cdef bint is_appended_maybe(int32_t error) noexcept nogil
cdef bint is_content(int32_t error) noexcept nogil
