"""Declares the checked arguments of one send(), see send_arguments.pyx."""

from cpython.buffer cimport Py_buffer
from libc.stdint cimport int32_t, int64_t

from cyproducer.record.encode cimport HeaderView, RecordView


cdef enum:
    FEW_HEADERS = 8


cdef class Prepared:
    cdef str topic
    cdef object key                 # the object that key_data points into
    cdef object value
    cdef tuple headers
    cdef list held                  # copies that header values point into
    cdef object on_delivery
    cdef RecordView view
    cdef HeaderView few[FEW_HEADERS]
    cdef HeaderView *views          # `few`, or memory of its own
    cdef int32_t partition          # -1: none was given
    cdef int32_t needed             # the topic must have more partitions than this
    cdef int64_t timestamp          # ms
    cdef Py_ssize_t bound           # record_size_bound
    cdef Py_ssize_t header_bytes
    cdef object given_key           # as given to send(), for serializers and a custom partitioner
    cdef object given_value
    cdef object given_headers
    cdef bint raw                   # key, value and headers are as given: serialize them and call fill()
    cdef bint unplaced              # the custom partitioner has to choose the partition
    cdef Py_buffer key_buffer
    cdef Py_buffer value_buffer

    cdef int fill(self, object value, object key, object headers) except -1
    cdef int take_headers(self, object headers) except -1


cdef int view_headers(object headers, HeaderView *views, Py_ssize_t *header_bytes) noexcept
cdef tuple headers_as_tuple(object headers, str where)
cdef tuple checked_header(object item, str where, Py_ssize_t number)
cdef bint holds_addresses(str spelling) except -1
cdef int64_t small_number(object number) noexcept


cdef Prepared prepare(
    object topic, object value, object key, object headers, object partition, object timestamp_ms, object on_delivery
)
cdef Prepared prepare_raw(
    object topic, object value, object key, object headers, object partition, object timestamp_ms, object on_delivery
)
cdef int check_size(Prepared record, Py_ssize_t limit, object settings) except -1
