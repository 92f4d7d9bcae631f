"""Declares Rows: all columns of one `send_array` or `send_arrow`, checked and ready for the encode loop."""

from libc.stdint cimport int32_t, int64_t, uint8_t

from cyproducer.producer.bulk.columns cimport Column, Segment


cdef struct Cursor:
    const Segment *value
    const Segment *key
    const Segment *headers
    Py_ssize_t end      # these segments hold the rows from the requested one up to here


cdef class Rows:
    cdef readonly Py_ssize_t rows
    cdef readonly Column value
    cdef readonly Column key
    cdef readonly Column headers    # the encoded header section of a record (count and headers); null: no headers
    cdef int32_t *partitions        # one per row, -1: the partitioner chooses; NULL: `partition` for all
    cdef int32_t partition
    cdef int64_t *timestamps        # ms, one per row, -1: now; NULL: `timestamp` for all
    cdef int64_t timestamp
    cdef int32_t *topic_of          # index in `topics`, one per row; NULL: 0 for all
    cdef readonly list topics
    cdef list _keep

    cdef bint is_plain(self) noexcept
    cdef int seek(self, Py_ssize_t row, Cursor *cursor) noexcept nogil
    cdef Py_ssize_t row_size(self, const Cursor *cursor, Py_ssize_t row) noexcept nogil
    cdef Py_ssize_t _record_bound(self, const Cursor *cursor, Py_ssize_t row) noexcept nogil


cdef Rows rows_of_arrays(
    str topic, object values, object keys, object partition, object timestamps_ms, object headers
)
cdef Rows rows_of_table(object table, str topic)
