"""Declares how arrays are read through the buffer protocol, see buffers.pyx."""

from cyproducer.producer.bulk.columns cimport Column


cdef class Buffer:
    cdef Py_buffer view
    cdef bint held
    cdef Py_ssize_t strides[2]      # of an array with 1 or 2 dimensions; ctypes does not export them


cdef Buffer buffer_of(object array, int flags)
cdef Column column_of_buffer(object array, str name)
cdef object exporter_of(object array)
cdef object holds_text(object array, str name)
cdef str column_hint(object array)
cdef str format_of(Buffer buffer)
cdef int refuse_objects(object array, str spelling, str name) except -1
cdef bint is_masked_array(object array) except -1
