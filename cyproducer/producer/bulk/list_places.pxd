"""Declares where the lists of an Arrow array are in its elements, see list_places.pyx."""

from libc.stdint cimport int64_t

from cyproducer.producer.bulk.columns cimport Memory


cdef class ListPlaces:
    cdef readonly Py_ssize_t rows
    cdef readonly int64_t first     # of the elements that the lists use
    cdef readonly int64_t count     # from `first` on
    cdef int width                  # bytes of a number, 4 or 8
    cdef Memory _memory
    cdef const void *starts         # one for each row; without `ends`, one more
    cdef const int64_t *ends        # NULL: each list ends where the next one starts

    cdef int64_t start(self, Py_ssize_t row) noexcept nogil
    cdef int64_t end(self, Py_ssize_t row) noexcept nogil
    cdef Py_ssize_t read_offsets(self, const void *source, int64_t elements) except -2
    cdef Py_ssize_t read_views(self, const void *starts, const void *sizes, int64_t elements) except -2
    cdef int set_fixed(self, int64_t first, int64_t size) except -1
