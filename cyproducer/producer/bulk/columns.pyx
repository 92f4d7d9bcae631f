"""Holds rows of bytes or of integers as columns, which a loop can read without the GIL.

A column points to the values in the arrays that it was made of, and keeps these alive. Other threads can change the
values, but not where they are: offsets, views, masks and validity bitmaps are copied, and the copies are checked.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_Check, PyBytes_GET_SIZE
from libc.stdint cimport INT64_MAX, INT64_MIN, int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, realloc
from libc.string cimport memcpy, memset

from cyproducer.producer.bulk.checked_copies cimport copy_bytes, copy_offsets, copy_views


cdef extern from * nogil:
    uint16_t __builtin_bswap16(uint16_t)
    uint32_t __builtin_bswap32(uint32_t)
    uint64_t __builtin_bswap64(uint64_t)


# Units of time of NumPy and Arrow: (multiplier, divisor) that convert them to milliseconds
UNITS = {
    "as": (1, 10**15), "fs": (1, 10**12), "ps": (1, 10**9),
    "ns": (1, 1_000_000), "us": (1, 1_000), "ms": (1, 1), "s": (1_000, 1),
    "m": (60_000, 1), "h": (3_600_000, 1), "D": (86_400_000, 1), "W": (604_800_000, 1),
}


@cython.final
cdef class Memory:
    """Zeroed bytes that live as long as this object."""

    def __cinit__(self, size_t size):
        self.data = calloc(size or 1, 1)
        if self.data == NULL:
            raise MemoryError(f"cannot allocate {size} bytes")

    def __dealloc__(self):
        free(self.data)


@cython.final
cdef class Column:
    """Rows of bytes or null, in one or more segments. It keeps the memory alive that the segments point to."""

    def __cinit__(self, str name, str type_name, bint is_bytes):
        self.name = name
        self.type = type_name
        self.is_bytes = is_bytes
        self._keep = []

    def __dealloc__(self):
        free(self.segments)

    cdef Segment *add_segment(self, SegmentKind kind, Py_ssize_t rows) except NULL:
        """Add a segment for the next rows. Its other members are zero; the caller sets them. Raise MemoryError."""
        cdef Segment *grown
        if self.segment_count == self._capacity:
            grown = <Segment *>realloc(self.segments, (2 * self._capacity + 1) * sizeof(Segment))
            if grown == NULL:
                raise MemoryError
            self.segments = grown
            self._capacity = 2 * self._capacity + 1
        cdef Segment *segment = &self.segments[self.segment_count]
        memset(segment, 0, sizeof(Segment))
        segment.kind = kind
        segment.start = self.rows
        segment.rows = rows
        self.segment_count += 1
        self.rows += rows
        return segment

    cdef void *own(self, size_t size) except NULL:
        """Return zeroed bytes that live as long as the column. Raise MemoryError."""
        cdef Memory memory = Memory(size)
        self._keep.append(memory)
        return memory.data

    cdef int keep(self, object owner) except -1:
        self._keep.append(owner)
        return 0

    cdef int set_validity(self, Segment *segment, const void *bits, int64_t first) except -1:
        """Copy a validity bitmap of the segment. Bit `first` is that of the segment's first row."""
        cdef Py_ssize_t size = ((first & 7) + segment.rows + 7) >> 3
        cdef void *copy = self.own(size)
        copy_bytes(copy, <const uint8_t *>bits + (first >> 3), size)
        segment.validity = <const uint8_t *>copy
        segment.validity_offset = first & 7
        segment.nullable = True
        return 0

    cdef Py_ssize_t set_offsets(
        self, Segment *segment, const void *data, const void *offsets, int width, int64_t most
    ) except -2:
        """Let the segment's rows be data[offsets[row]:offsets[row + 1]]. The offsets have `width` bytes, 4 or 8.

        Return the index of the first offset that is less than the one before it, or not from 0 to `most`, or -1.
        """
        cdef void *copy = self.own((segment.rows + 1) * width)
        cdef Py_ssize_t bad
        with nogil:
            bad = copy_offsets(copy, offsets, segment.rows + 1, width, most, &segment.longest)
        segment.kind = SEGMENT_OFFSETS32 if width == 4 else SEGMENT_OFFSETS64
        segment.index = copy
        segment.data = <const uint8_t *>data
        return bad

    cdef Py_ssize_t set_views(
        self, Segment *segment, const void *views, const void **buffers, Py_ssize_t count
    ) except -2:
        """Let the segment's rows be those of Arrow's views into `count` buffers. Behind these is one with their sizes.

        The validity bitmap must have been set. Return the first row whose view leads out of its buffer, or -1.
        """
        cdef Span *spans = <Span *>self.own(segment.rows * sizeof(Span))
        cdef Span *places = <Span *>self.own(count * sizeof(Span))
        cdef Py_ssize_t at, bad
        for at in range(count):
            copy_bytes(&places[at].length, <const int64_t *>buffers[count] + at, sizeof(int64_t))
            places[at].data = <const uint8_t *>buffers[at]
            if places[at].data == NULL:
                places[at].length = 0
        with nogil:
            bad = copy_views(
                spans, views, segment.rows, segment.validity, segment.validity_offset, places, count, &segment.longest
            )
        segment.kind = SEGMENT_SPANS
        segment.index = spans
        return bad

    cdef const Segment *segment_of(self, Py_ssize_t row) noexcept nogil:
        """Return the segment that holds `row`, which must be a row of the column."""
        cdef Py_ssize_t low = 0, high = self.segment_count - 1, middle
        while low < high:
            middle = (low + high + 1) >> 1
            if self.segments[middle].start <= row:
                low = middle
            else:
                high = middle - 1
        return &self.segments[low]

    cdef Py_ssize_t get(self, Py_ssize_t row, const uint8_t **data) noexcept nogil:
        """Do what `segment_get` does. `row` counts within the column."""
        cdef const Segment *segment = self.segment_of(row)
        return segment_get(segment, row - segment.start, data)

    cdef Py_ssize_t longest(self) noexcept nogil:
        """Return the most bytes that a value can have, -1 if all are null."""
        cdef Py_ssize_t most = -1, at
        for at in range(self.segment_count):
            if self.segments[at].kind == SEGMENT_FIXED:
                most = max(most, self.segments[at].width)
            elif self.segments[at].kind != SEGMENT_NULL:
                most = max(most, self.segments[at].longest)
        return most

    cdef Py_ssize_t copy_numbers(self, int64_t *out, int64_t most, int64_t *wrong) except -2:
        """Write all rows to `out` as int64, and -1 for null rows. Read each number once: other threads can change it.

        Return the first row with a number that is not from 0 to `most`, and set `wrong` to the number; or return -1.
        Raise TypeError if the elements are not integers, ValueError if one does not fit.
        """
        cdef Py_ssize_t at, row, bad = -1
        cdef bint fits = True
        cdef const Segment *segment
        cdef const uint8_t *data = NULL
        for at in range(self.segment_count):
            if not self.number and self.segments[at].kind != SEGMENT_NULL:
                raise TypeError(f"{self.name}: expected integers, got {self.type}")
        with nogil:
            for at in range(self.segment_count):
                segment = &self.segments[at]
                for row in range(segment.start, segment.start + segment.rows):
                    out[row] = -1
                    if segment_get(segment, row - segment.start, &data) < 0:
                        continue
                    fits = _load_integer(data, segment.width, self.number == c"u", self.swapped, wrong)
                    if fits and 0 <= wrong[0] <= most:
                        out[row] = wrong[0]
                    elif not (fits and self.has_nat and wrong[0] == INT64_MIN):
                        bad = row
                        break
                if bad >= 0:
                    break
        if not fits:
            raise ValueError(f"{self.name}[{bad}]: the number does not fit a signed 64-bit integer")
        return bad

    def to_list(self):
        """Return the rows as a list of bytes and None, for tests."""
        cdef const uint8_t *data = NULL
        cdef Py_ssize_t row, length
        rows = []
        for row in range(self.rows):
            length = self.get(row, &data)
            rows.append(None if length < 0 else data[:length])
        return rows


cdef inline bint _load_integer(
    const uint8_t *data, Py_ssize_t width, bint unsigned, bint swapped, int64_t *out
) noexcept nogil:
    """Read an integer that need not be aligned. Return False if it is too large for int64."""
    cdef uint16_t two
    cdef uint32_t four
    cdef uint64_t eight
    if width == 8:
        memcpy(&eight, data, 8)
        if swapped:
            eight = __builtin_bswap64(eight)
        out[0] = <int64_t>eight
        return not (unsigned and eight > <uint64_t>INT64_MAX)
    if width == 4:
        memcpy(&four, data, 4)
        if swapped:
            four = __builtin_bswap32(four)
        out[0] = <int64_t>four if unsigned else <int64_t> <int32_t>four
    elif width == 2:
        memcpy(&two, data, 2)
        if swapped:
            two = __builtin_bswap16(two)
        out[0] = <int64_t>two if unsigned else <int64_t> <int16_t>two
    else:
        out[0] = <int64_t>data[0] if unsigned else <int64_t><signed char>data[0]
    return True


def describe(array) -> str:
    """Return a description of an argument for messages: its type, and its dtype and shape if it has them."""
    text = f"{type(array).__module__}.{type(array).__qualname__}".removeprefix("builtins.")
    dtype, shape = getattr(array, "dtype", None), getattr(array, "shape", None)
    if dtype is not None:
        text += f" of dtype {dtype}"
    if isinstance(shape, tuple):
        text += f" and shape {shape}" if dtype is not None else f" of shape {shape}"
    return text


cdef Column null_column(Py_ssize_t rows, str name):
    """Return a column of which every row is null."""
    cdef Column column = Column(name, "null", True)
    column.add_segment(SEGMENT_NULL, rows)
    return column


cdef Column constant_column(bytes value, Py_ssize_t rows, str name):
    """Return a column with `value` in every row."""
    cdef Column column = Column(name, "bytes", True)
    cdef Segment *segment = column.add_segment(SEGMENT_FIXED, rows)
    segment.data = <const uint8_t *>PyBytes_AS_STRING(value)
    segment.width = PyBytes_GET_SIZE(value)
    column.keep(value)
    return column


cdef Column column_of_list(object values, str name):
    """Read a list or tuple of bytes and None. Take pointers and lengths once and keep the objects alive."""
    cdef tuple items = tuple(values)
    cdef Column column = Column(name, "bytes", True)
    cdef Py_ssize_t row, rows = len(items), longest = 0
    cdef Segment *segment
    cdef Span *spans = <Span *>column.own(rows * sizeof(Span))
    column.keep(items)
    for row in range(rows):
        item = items[row]
        if PyBytes_Check(item):
            spans[row].data = <const uint8_t *>PyBytes_AS_STRING(item)
            spans[row].length = PyBytes_GET_SIZE(item)
            longest = max(longest, spans[row].length)
        elif item is None:
            spans[row].length = -1
        else:
            raise TypeError(f"{name}[{row}]: expected bytes or None, got {type(item).__name__}{_bytes_hint(item)}")
    segment = column.add_segment(SEGMENT_SPANS, rows)
    segment.index = spans
    segment.longest = longest
    return column


cdef str _bytes_hint(object item):
    """Return, for messages, how bytes are made of an object."""
    if isinstance(item, str):
        return "; encode it"
    return "; give bytes(value)" if isinstance(item, (bytearray, memoryview)) else ""


cdef int set_unit(Column column, str unit) except -1:
    """Mark timestamps: `unit` is one of UNITS, after NumPy's multiplier if there is one ("10ms")."""
    letters = unit.lstrip("0123456789")
    digits = unit[:len(unit) - len(letters)]
    if letters not in UNITS or len(digits) > 10:  # of 32 bits in NumPy
        raise TypeError(
            f"{column.name}: timestamps in units of {unit or 'nothing'!r} cannot be read; cast them to 'ms'"
        )
    multiplier, column.ms_divisor = UNITS[letters]
    column.ms_multiplier = multiplier * int(digits or 1)
    column.unit = unit
    return 0


cdef int refuse_timestamps(Column column) except -1:
    """Raise TypeError if the column holds timestamps, for an argument that takes plain integers."""
    if column.ms_multiplier:
        raise TypeError(f"{column.name}: expected integers, got {column.type}")
    return 0


cdef Column accept_bytes(Column column):
    """Return the column if it holds bytes. Raise TypeError for numbers."""
    if not column.is_bytes:
        raise TypeError(
            f"{column.name}: expected a binary or string type (binary, string, their large_ and _view forms, "
            f"fixed_size_binary), got {column.type}; cast or encode it"
        )
    return column


cdef int same_rows(Column column, Py_ssize_t rows) except -1:
    if column.rows != rows:
        raise ValueError(f"{column.name}: {column.rows} rows ({column.type}), but there are {rows} values")
    return 0
