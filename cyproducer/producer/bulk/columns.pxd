"""Declares columns: the arrays that `send_array` accepts, as C structs that a loop can read without the GIL."""

from libc.stdint cimport int32_t, int64_t, uint8_t


cdef enum SegmentKind:
    SEGMENT_NULL        # every row is null
    SEGMENT_FIXED       # data + row * stride, `width` bytes each; stride 0: one value for all rows
    SEGMENT_OFFSETS32   # data[offsets[row] .. offsets[row + 1]]
    SEGMENT_OFFSETS64
    SEGMENT_SPANS       # a pointer and a length for each row
    SEGMENT_VIEWS       # Arrow's 16-byte views; values of up to 12 bytes are inside


cdef struct Span:
    const uint8_t *data
    Py_ssize_t length   # -1: null


cdef struct Segment:
    SegmentKind kind
    bint nullable               # there is a validity bitmap or a mask
    Py_ssize_t start            # index of the segment's first row in its column
    Py_ssize_t rows
    const uint8_t *data
    Py_ssize_t stride           # bytes, may be negative
    Py_ssize_t width
    const void *index           # offsets (rows + 1), spans or views, from the segment's first row on
    const void **buffers        # the data buffers of views
    const uint8_t *validity     # Arrow's bitmap: bit validity_offset + row, 1 = not null
    int64_t validity_offset
    const uint8_t *mask         # one byte per row, 1 = null


cdef inline bint segment_is_null(const Segment *segment, Py_ssize_t row) noexcept nogil:
    cdef int64_t bit
    if segment.validity != NULL:
        bit = segment.validity_offset + row
        if not segment.validity[bit >> 3] >> (bit & 7) & 1:
            return True
    return segment.mask != NULL and segment.mask[row] != 0


cdef inline Py_ssize_t segment_get(
    const Segment *segment, Py_ssize_t row, const uint8_t **data
) noexcept nogil:
    """Return the length in bytes of a row's value, and set `data` to its address. `row` counts within the segment.

    Return -1 for null, and less than -1 if the offsets are malformed.
    """
    cdef const int32_t *narrow
    cdef const int64_t *wide
    cdef const uint8_t *view
    if segment.nullable and segment_is_null(segment, row):
        return -1
    if segment.kind == SEGMENT_FIXED:
        data[0] = segment.data + row * segment.stride
        return segment.width
    if segment.kind == SEGMENT_OFFSETS32:
        narrow = <const int32_t *>segment.index + row
        data[0] = segment.data + narrow[0]
        return <Py_ssize_t>narrow[1] - narrow[0] if narrow[1] >= narrow[0] else -2
    if segment.kind == SEGMENT_OFFSETS64:
        wide = <const int64_t *>segment.index + row
        data[0] = segment.data + wide[0]
        return wide[1] - wide[0] if wide[1] >= wide[0] else -2
    if segment.kind == SEGMENT_SPANS:
        data[0] = (<const Span *>segment.index)[row].data
        return (<const Span *>segment.index)[row].length
    if segment.kind == SEGMENT_VIEWS:
        view = <const uint8_t *>segment.index + 16 * row
        narrow = <const int32_t *>view
        if narrow[0] <= 12:
            data[0] = view + 4
        else:
            data[0] = <const uint8_t *>segment.buffers[narrow[2]] + narrow[3]
        return narrow[0] if narrow[0] >= 0 else -2
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
    cdef int64_t ms_multiplier      # timestamps since 1970; in ms: element * multiplier / divisor
    cdef int64_t ms_divisor         # both 0: the elements are not timestamps
    cdef Segment *segments
    cdef Py_ssize_t segment_count
    cdef Py_ssize_t _capacity
    cdef list _keep                 # owners of the memory that the segments point to

    cdef Segment *add_segment(self, SegmentKind kind, Py_ssize_t rows) except NULL
    cdef void *own(self, size_t size) except NULL
    cdef int keep(self, object owner) except -1
    cdef const Segment *segment_of(self, Py_ssize_t row) noexcept nogil
    cdef Py_ssize_t get(self, Py_ssize_t row, const uint8_t **data) noexcept nogil
    cdef Py_ssize_t longest(self) noexcept nogil
    cdef int copy_integers(self, int64_t *out, int64_t null) except -1


cdef Column column_of_list(object values, str name)
cdef Column null_column(Py_ssize_t rows, str name)
cdef Column constant_column(bytes value, Py_ssize_t rows, str name)
cdef int set_unit(Column column, str unit) except -1
cdef int refuse_timestamps(Column column) except -1
cdef Column accept_bytes(Column column)
cdef int same_rows(Column column, Py_ssize_t rows) except -1
