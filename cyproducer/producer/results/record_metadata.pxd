"""Declares RecordMetadata, see record_metadata.pyx."""

from libc.stdint cimport int32_t, int64_t


cdef class RecordMetadata:
    cdef readonly str topic
    cdef readonly int32_t partition
    cdef readonly int32_t serialized_key_size
    cdef readonly int32_t serialized_value_size
    cdef readonly int64_t offset
    cdef readonly int64_t timestamp

    cdef tuple _tuple(self)
