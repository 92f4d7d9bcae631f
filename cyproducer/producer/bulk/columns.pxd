"""Declares columns: the arrays that `send_array` accepts, as C structs that a loop can read without the GIL."""

from libc.stdint cimport int32_t, int64_t, uint8_t

from cyproducer.producer.bulk.checked_copies cimport Span, bit_at


cdef enum SegmentKind:
    SEGMENT_NULL        # every row is null
    SEGMENT_FIXED       # data + row * stride, `width` bytes each; stride 0: one value for all rows
    SEGMENT_OFFSETS32   # data[offsets[row] .. offsets[row + 1]]
    SEGMENT_OFFSETS64
    SEGMENT_SPANS       # a pointer and a length for each row


cdef struct Segment:
    # `data` can point to memory that other threads change. Everything else is the column's own and has been checked.
    SegmentKind kind
    bint nullable               # there is a validity bitmap or a mask
    Py_ssize_t start            # index of the segment's first row in its column
    Py_ssize_t rows
    const uint8_t *data
    Py_ssize_t stride           # bytes, may be negative
    Py_ssize_t width
    const void *index           # offsets (rows + 1) or spans, from the segment's first row on
    Py_ssize_t longest          # of offsets and spans: no value has more bytes
    const uint8_t *validity     # Arrow's bitmap: bit validity_offset + row, 1 = not null
    int64_t validity_offset
    const uint8_t *mask         # one byte per row, 1 = null


cdef inline bint segment_is_null(const Segment *segment, Py_ssize_t row) noexcept nogil:
    if segment.validity != NULL and not bit_at(segment.validity, segment.validity_offset + row):
        return True
    return segment.mask != NULL and segment.mask[row] != 0


cdef inline Py_ssize_t segment_get(
    const Segment *segment, Py_ssize_t row, const uint8_t **data
) noexcept nogil:
    """Return the length in bytes of a row's value, and set `data` to its address. `row` counts within the segment.

    Return -1 for null.
    """
    cdef const int32_t *narrow
    cdef const int64_t *wide
    if segment.nullable and segment_is_null(segment, row):
        return -1
    if segment.kind == SEGMENT_FIXED:
        data[0] = segment.data + row * segment.stride
        return segment.width
    if segment.kind == SEGMENT_OFFSETS32:
        narrow = <const int32_t *>segment.index + row
        data[0] = segment.data + narrow[0]
        return narrow[1] - narrow[0]
    if segment.kind == SEGMENT_OFFSETS64:
        wide = <const int64_t *>segment.index + row
        data[0] = segment.data + wide[0]
        return wide[1] - wide[0]
    if segment.kind == SEGMENT_SPANS:
        data[0] = (<const Span *>segment.index)[row].data
        return (<const Span *>segment.index)[row].length
    return -1


cdef class Memory:
    cdef void *data


cdef class Column:
    cdef readonly Py_ssize_t rows
    cdef readonly str name          # of the argument or table column, for messages
    cdef readonly str type          # of the elements, for messages
    cdef readonly bint is_bytes     # elements can be a record's value or key
    cdef char number                # c'i': signed integers, c'u': unsigned integers, 0: no integers
    cdef bint swapped               # the integers are not in the machine's byte order
    cdef bint has_nat               # the smallest integer is NumPy's NaT, which means null
    cdef str unit                   # of timestamps, for messages
    cdef int64_t ms_multiplier      # timestamps since 1970; in ms: element * multiplier / divisor
    cdef int64_t ms_divisor         # both 0: the elements are not timestamps
    cdef Segment *segments
    cdef Py_ssize_t segment_count
    cdef Py_ssize_t _capacity
    cdef list _keep                 # owners of the memory that the segments point to

    cdef Segment *add_segment(self, SegmentKind kind, Py_ssize_t rows) except NULL
    cdef void *own(self, size_t size) except NULL
    cdef int keep(self, object owner) except -1
    cdef int set_validity(self, Segment *segment, const void *bits, int64_t first) except -1
    cdef Py_ssize_t set_offsets(
        self, Segment *segment, const void *data, const void *offsets, int width, int64_t most
    ) except -2
    cdef Py_ssize_t set_views(
        self, Segment *segment, const void *views, const void **buffers, Py_ssize_t count
    ) except -2
    cdef const Segment *segment_of(self, Py_ssize_t row) noexcept nogil
    cdef Py_ssize_t get(self, Py_ssize_t row, const uint8_t **data) noexcept nogil
    cdef Py_ssize_t longest(self) noexcept nogil
    cdef Py_ssize_t copy_numbers(self, int64_t *out, int64_t most, int64_t *wrong) except -2


cdef Column column_of_list(object values, str name)
cdef Column null_column(Py_ssize_t rows, str name)
cdef Column constant_column(bytes value, Py_ssize_t rows, str name)
cdef int set_unit(Column column, str unit) except -1
cdef int refuse_timestamps(Column column) except -1
cdef Column accept_bytes(Column column)
cdef int same_rows(Column column, Py_ssize_t rows) except -1
