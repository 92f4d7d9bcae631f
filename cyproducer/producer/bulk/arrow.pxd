"""Declares Arrow's C data interface, as in its specification, and the classes that read it."""

from libc.stdint cimport int64_t

from cyproducer.producer.bulk.columns cimport Column
from cyproducer.producer.bulk.list_places cimport ListPlaces


cdef struct ArrowSchema:
    const char *format
    const char *name
    const char *metadata
    int64_t flags
    int64_t n_children
    ArrowSchema **children
    ArrowSchema *dictionary
    void (*release)(ArrowSchema *) noexcept nogil
    void *private_data


cdef struct ArrowArray:
    int64_t length
    int64_t null_count
    int64_t offset
    int64_t n_buffers
    int64_t n_children
    const void **buffers
    ArrowArray **children
    ArrowArray *dictionary
    void (*release)(ArrowArray *) noexcept nogil
    void *private_data


cdef struct ArrowArrayStream:
    int (*get_schema)(ArrowArrayStream *, ArrowSchema *) noexcept nogil
    int (*get_next)(ArrowArrayStream *, ArrowArray *) noexcept nogil
    const char *(*get_last_error)(ArrowArrayStream *) noexcept nogil
    void (*release)(ArrowArrayStream *) noexcept nogil
    void *private_data


cdef struct Piece:
    ArrowArray *array
    int64_t offset      # of the first row in the array's buffers
    int64_t rows


cdef class ArrowData:
    cdef ArrowSchema root           # released with this object, as are all arrays
    cdef list _arrays               # owners of the arrays that were read
    cdef ArrowSchema *schema        # of the root or of a child
    cdef Piece *pieces              # one for each array
    cdef readonly Py_ssize_t piece_count
    cdef readonly Py_ssize_t rows
    cdef ArrowData _parent          # keeps the root alive
    cdef readonly str name

    cdef object _malformed(self, str why)
    cdef int _check_schema(self) except -1
    cdef int _check_array(self, const ArrowArray *array) except -1
    cdef int _check_data(self, const Piece *piece, str spelling, Py_ssize_t width) except -1
    cdef int _add_piece(self, ArrowArray *array, int64_t offset, int64_t rows) except -1
    cdef int _add_root(self, ArrowArray *array) except -1
    cdef ArrowArray *_child_array(self, Py_ssize_t piece, int64_t at) except NULL
    cdef ArrowData _new_child(self, int64_t at, str name)
    cdef ArrowData child(self, int64_t at, str name)
    cdef ArrowData list_child(self, str name, list places)
    cdef ListPlaces _list_places(self, Py_ssize_t piece, int64_t elements)
    cdef Column column(self)
    cdef Column _plain_column(self)
    cdef Column _dictionary(self, Py_ssize_t piece)
    cdef Column _decoded(self)
    cdef bint is_null_at(self, Py_ssize_t piece, Py_ssize_t row) noexcept nogil


cdef ArrowData arrow_data(object source, str name)
cdef ArrowData arrow_data_or_none(object source, str name)
