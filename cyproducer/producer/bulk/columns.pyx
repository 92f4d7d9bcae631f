"""Reads arrays in memory as columns: buffers (of NumPy and others), lists of bytes, and (data, offsets) pairs.

NumPy is not imported. Arrays are read through the buffer protocol (PEP 3118), masks and time units through
attributes. Only masks, rows that are not contiguous, and offsets that are not native int32 or int64 are copied. A
value of a fixed-width dtype is all `itemsize` bytes of the element as they are in memory. So an `S` element keeps its
padding NUL bytes, which NumPy hides when it makes an object of the element. To send values without the padding, give
`list(array)` or an Arrow array.
"""

cimport cython
from cpython.buffer cimport (
    PyBUF_C_CONTIGUOUS,
    PyBUF_FORMAT,
    PyBUF_RECORDS_RO,
    PyBuffer_Release,
    PyObject_CheckBuffer,
    PyObject_GetBuffer,
)
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_Check, PyBytes_GET_SIZE
from libc.stdint cimport (
    INT64_MAX, INT64_MIN, int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t,
)
from libc.stdlib cimport calloc, free, realloc
from libc.string cimport memcpy, memset

import sys


cdef extern from * nogil:
    uint16_t __builtin_bswap16(uint16_t)
    uint32_t __builtin_bswap32(uint32_t)
    uint64_t __builtin_bswap64(uint64_t)


cdef str _OTHER_ENDIAN = ">!" if sys.byteorder == "little" else "<"

# Units of time of NumPy and Arrow: (multiplier, divisor) that convert them to milliseconds
UNITS = {
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
cdef class _Buffer:
    """An acquired Py_buffer."""

    cdef Py_buffer view
    cdef bint held
    cdef Py_ssize_t strides[2]      # of an array with 1 or 2 dimensions; ctypes does not export them

    def __cinit__(self, array, int flags):
        PyObject_GetBuffer(array, &self.view, flags)
        self.held = True
        for at in range(min(self.view.ndim, 2)):
            if self.view.strides != NULL:
                self.strides[at] = self.view.strides[at]
            elif self.view.ndim == 2 and at == 0 and self.view.shape != NULL:
                self.strides[at] = self.view.shape[1] * self.view.itemsize
            else:
                self.strides[at] = self.view.itemsize

    def __dealloc__(self):
        if self.held:
            PyBuffer_Release(&self.view)


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

    cdef Py_ssize_t longest(self) noexcept nogil:
        """Return the bytes of the longest value, -1 if all are null, less than -1 if the offsets are malformed."""
        cdef Py_ssize_t most = -1, at, row, length
        cdef const Segment *segment
        cdef const uint8_t *data = NULL
        for at in range(self.segment_count):
            segment = &self.segments[at]
            if segment.kind == SEGMENT_NULL:
                continue
            if segment.kind == SEGMENT_FIXED:
                most = max(most, segment.width)
                continue
            for row in range(segment.rows):
                length = segment_get(segment, row, &data)
                if length < -1:
                    return length
                most = max(most, length)
        return most

    cdef int copy_integers(self, int64_t *out, int64_t null) except -1:
        """Write all rows to `out` as int64, and `null` for null rows.

        Raise TypeError if the elements are not integers, ValueError if one does not fit.
        """
        cdef Py_ssize_t at, row, bad = -1
        cdef const Segment *segment
        cdef const uint8_t *data = NULL
        if not self.number and self.rows:
            for at in range(self.segment_count):
                if self.segments[at].kind != SEGMENT_NULL:
                    raise TypeError(f"{self.name}: expected integers, got {self.type}")
        with nogil:
            for at in range(self.segment_count):
                segment = &self.segments[at]
                for row in range(segment.rows):
                    if segment_get(segment, row, &data) < 0:
                        out[segment.start + row] = null
                    elif not _load_integer(data, segment.width, self.number == c"u", self.swapped,
                                           &out[segment.start + row]):
                        bad = segment.start + row
                        break
        if bad >= 0:
            raise ValueError(f"{self.name}[{bad}]: the number does not fit a signed 64-bit integer")
        return 0

    def to_list(self):
        """Return the rows as a list of bytes and None, for tests."""
        cdef const uint8_t *data = NULL
        cdef const Segment *segment
        cdef Py_ssize_t row, length
        rows = []
        for row in range(self.rows):
            segment = self.segment_of(row)
            length = segment_get(segment, row - segment.start, &data)
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
    cdef Py_ssize_t row, rows = len(items)
    cdef Span *spans = <Span *>column.own(rows * sizeof(Span))
    column.keep(items)
    for row in range(rows):
        item = items[row]
        if PyBytes_Check(item):
            spans[row].data = <const uint8_t *>PyBytes_AS_STRING(item)
            spans[row].length = PyBytes_GET_SIZE(item)
        elif item is None:
            spans[row].length = -1
        else:
            raise TypeError(f"{name}[{row}]: expected bytes or None, got {type(item).__name__}")
    column.add_segment(SEGMENT_SPANS, rows).index = spans
    return column


cdef Column column_of_buffer(object array, str name):
    """Read a 1-D array (one element per record) or a 2-D array of uint8 (one row per record). Masked rows are null."""
    cdef Column column
    cdef _Buffer buffer
    cdef Py_buffer *view
    cdef Segment *segment
    source, unit = _exportable(array, name)
    try:
        buffer = _Buffer(source, PyBUF_RECORDS_RO)
    except (BufferError, ValueError) as error:
        raise TypeError(f"{name}: {describe(array)} cannot be read as a buffer: {error}") from error
    view = &buffer.view
    spelling = "" if view.format == NULL else (<bytes>view.format).decode()
    _check_elements(array, spelling, view.ndim, view.itemsize, name)
    if view.ndim == 2:
        column = _column_of_matrix(buffer, name)
    else:
        column = Column(name, _type_name(array, spelling), True)
        segment = column.add_segment(SEGMENT_FIXED, view.shape[0])
        segment.data = <const uint8_t *>view.buf
        segment.stride = buffer.strides[0]
        segment.width = view.itemsize
        column.keep(buffer)
        _set_number(column, spelling, unit)
    _mask_rows(column, array)
    return column


cdef tuple _exportable(array, str name):
    """Return (object that exports a buffer for `array`, its unit of time or None). Raise TypeError if there is none.

    Arrays of datetime64 and timedelta64 export no buffer themselves.
    """
    dtype = getattr(array, "dtype", None)
    kind = getattr(dtype, "kind", None)
    if isinstance(array, (bytes, bytearray, str)):
        raise TypeError(
            f"{name}: one {type(array).__name__} is not an array of records; "
            "give a list of bytes, a (data, offsets) pair, or an array"
        )
    if kind is not None and kind in "Mm":
        return array.view("i8"), str(dtype.str) if kind == "M" else None
    if kind == "U":
        raise TypeError(
            f"{name}: {describe(array)} holds text; encode it (numpy.strings.encode) or use Arrow strings"
        )
    if kind == "O" or getattr(dtype, "hasobject", False):
        raise TypeError(
            f"{name}: {describe(array)} holds Python objects; "
            "give list(array) if they are bytes, or an array of a fixed-width dtype"
        )
    if not PyObject_CheckBuffer(array):
        raise TypeError(
            f"{name}: expected a 1-D array of a fixed-width dtype, a 2-D array of uint8, a (data, offsets) "
            f"pair, a list of bytes, or an Arrow array of a binary or string type, got {describe(array)}"
        )
    return array, None


cdef _check_elements(array, str spelling, int ndim, Py_ssize_t itemsize, str name):
    letters = spelling
    while letters.count(":") >= 2:  # remove the names of fields
        before, _, rest = letters.partition(":")
        letters = before + rest.partition(":")[2]
    if "O" in letters or "&" in letters:
        raise TypeError(f"{name}: {describe(array)} holds Python objects or pointers")
    if ndim == 2 and letters.lstrip("@=<>!") != "B":
        raise TypeError(f"{name}: a 2-D array must be of uint8 (one row a record), got {describe(array)}")
    if ndim not in (1, 2):
        raise ValueError(f"{name}: expected 1 dimension, or 2 of uint8, got {ndim}: {describe(array)}")


cdef str _type_name(array, str spelling):
    dtype = getattr(array, "dtype", None)
    return f"dtype {dtype}" if dtype is not None else f"elements of format {spelling!r}"


cdef _set_number(Column column, str spelling, unit):
    """Mark a column of integers or, if `unit` is NumPy's name of a datetime64 dtype, of timestamps."""
    letter = spelling.lstrip("@=<>!")
    if len(letter) == 1 and letter in "bhilqnBHILQN":
        column.number = c"i" if letter.islower() else c"u"
        column.swapped = spelling[0] in _OTHER_ENDIAN
    if unit is not None:
        column.swapped = unit[0] in _OTHER_ENDIAN
        set_unit(column, unit.partition("[")[2].rstrip("]"))


cdef Column _column_of_matrix(_Buffer buffer, str name):
    """Read rows of bytes. Copy them if the bytes of a row are not contiguous."""
    cdef Py_buffer *view = &buffer.view
    cdef Py_ssize_t rows = view.shape[0], width = view.shape[1], row, at
    cdef Column column = Column(name, "rows of uint8", True)
    cdef Segment *segment = column.add_segment(SEGMENT_FIXED, rows)
    cdef const uint8_t *source
    cdef uint8_t *copy
    segment.width = width
    if buffer.strides[1] == 1 or width <= 1:
        segment.data = <const uint8_t *>view.buf
        segment.stride = buffer.strides[0]
        column.keep(buffer)
        return column
    copy = <uint8_t *>column.own(rows * width)
    segment.data = copy
    segment.stride = width
    with nogil:
        for row in range(rows):
            source = <const uint8_t *>view.buf + row * buffer.strides[0]
            for at in range(width):
                copy[row * width + at] = source[at * buffer.strides[1]]
    return column


cdef _mask_rows(Column column, array):
    """Make the masked rows of a numpy.ma.MaskedArray null. Raise ValueError if only part of a row is masked."""
    cdef _Buffer buffer
    cdef uint8_t *nulls
    cdef Py_ssize_t bad
    kinds = [base.__module__ for base in type(array).__mro__ if base.__name__ == "MaskedArray"]
    if not any(module.startswith("numpy.ma") for module in kinds):
        return
    mask = array.mask
    if not mask.ndim:  # numpy.ma.nomask
        return
    buffer = _Buffer(mask, PyBUF_RECORDS_RO)
    nulls = <uint8_t *>column.own(column.rows)
    bad = _read_mask(&buffer.view, buffer.strides, column.rows, nulls)
    if bad >= 0:
        raise ValueError(
            f"{column.name}[{bad}]: part of the record is masked; mask all of it (null) or nothing"
        )
    column.segments[0].mask = nulls
    column.segments[0].nullable = True


cdef Py_ssize_t _read_mask(
    const Py_buffer *view, const Py_ssize_t *strides, Py_ssize_t rows, uint8_t *nulls
) noexcept nogil:
    """Write one byte per row from a mask with one or more bytes per row.

    Return the index of the first row of which only part is masked, or -1.
    """
    cdef Py_ssize_t columns = view.shape[1] if view.ndim == 2 else 1
    cdef Py_ssize_t step = strides[1] if view.ndim == 2 else 0
    cdef Py_ssize_t row, at, byte, masked
    cdef const uint8_t *start
    for row in range(rows):
        start = <const uint8_t *>view.buf + row * strides[0]
        masked = 0
        for at in range(columns):
            for byte in range(view.itemsize):
                masked += start[at * step + byte] != 0
        if masked and masked != columns * view.itemsize:
            return row
        nulls[row] = masked != 0
    return -1


cdef Column column_of_pair(object data, object offsets, str name):
    """Read any contiguous buffer: row i is data[offsets[i]:offsets[i + 1]], so n rows need n + 1 offsets."""
    cdef Column column = Column(name, "bytes", True), numbers
    cdef _Buffer buffer
    cdef Py_ssize_t bad
    cdef Segment *segment
    cdef const Segment *raw
    numbers = offsets if isinstance(offsets, Column) else column_of_integers(offsets, f"{name} offsets")
    raw = numbers.segments
    if not PyObject_CheckBuffer(data):
        raise TypeError(
            f"{name}: the data of a (data, offsets) pair must be a buffer of bytes, got {describe(data)}"
        )
    try:
        buffer = _Buffer(data, PyBUF_C_CONTIGUOUS | PyBUF_FORMAT)
    except (BufferError, ValueError) as error:
        raise ValueError(f"{name}: the data of a (data, offsets) pair must be contiguous: {error}") from error
    if numbers.rows == 0:
        raise ValueError(f"{name}: offsets must have one element more than there are rows, so at least one")
    refuse_timestamps(numbers)
    column.keep(buffer)
    column.keep(numbers)
    segment = column.add_segment(SEGMENT_OFFSETS64, numbers.rows - 1)
    segment.data = <const uint8_t *>buffer.view.buf
    segment.index = raw.data
    if (
        numbers.segment_count == 1 and numbers.number == c"i" and not numbers.swapped and not raw.nullable
        and raw.width in (4, 8) and raw.stride == raw.width and <size_t>raw.data % <size_t>raw.width == 0
    ):
        segment.kind = SEGMENT_OFFSETS32 if raw.width == 4 else SEGMENT_OFFSETS64
    else:
        segment.index = column.own(numbers.rows * sizeof(int64_t))
        numbers.copy_integers(<int64_t *>segment.index, INT64_MIN)
    bad = _check_offsets(segment, buffer.view.len)
    if bad >= 0:
        raise ValueError(
            f"{name} offsets[{bad}]: offsets must ascend, without null, from 0 or more to "
            f"at most the {buffer.view.len} bytes of the data"
        )
    return column


cdef Py_ssize_t _check_offsets(const Segment *segment, Py_ssize_t size) noexcept nogil:
    """Return the index of the first offset that is less than the one before or outside the data, or -1."""
    cdef int64_t before = 0, offset
    cdef Py_ssize_t at
    for at in range(segment.rows + 1):
        if segment.kind == SEGMENT_OFFSETS32:
            offset = (<const int32_t *>segment.index)[at]
        else:
            offset = (<const int64_t *>segment.index)[at]
        if offset < before or offset > size:
            return at
        before = offset
    return -1


cdef Column column_of_integers(object numbers, str name):
    """Read a 1-D array of integers or of datetime64, or a list of int and None."""
    cdef Column column
    cdef Segment *segment
    cdef Py_ssize_t row
    cdef int64_t *copy
    cdef uint8_t *nulls
    if not isinstance(numbers, (list, tuple)):
        column = column_of_buffer(numbers, name)
        if not column.number:
            raise TypeError(f"{name}: expected a 1-D array of integers, got {describe(numbers)}")
        return column
    numbers = tuple(numbers)
    column = Column(name, "int", False)
    column.number = c"i"
    copy = <int64_t *>column.own(len(numbers) * sizeof(int64_t))
    nulls = <uint8_t *>column.own(len(numbers))
    for row, number in enumerate(numbers):
        if number is None:
            nulls[row] = 1
        elif isinstance(number, bool) or not hasattr(number, "__index__"):
            raise TypeError(f"{name}[{row}]: expected int or None, got {type(number).__name__}")
        else:
            try:
                copy[row] = number
            except OverflowError:
                raise ValueError(f"{name}[{row}]: {number} does not fit a signed 64-bit integer") from None
    segment = column.add_segment(SEGMENT_FIXED, len(numbers))
    segment.data = <const uint8_t *>copy
    segment.stride = segment.width = sizeof(int64_t)
    segment.mask = nulls
    segment.nullable = True
    return column


cdef int set_unit(Column column, str unit) except -1:
    """Mark timestamps: `unit` is one of UNITS, after NumPy's multiplier if there is one ("10ms")."""
    letters = unit.lstrip("0123456789")
    multiplier = int(unit[:len(unit) - len(letters)] or 1)
    if letters not in UNITS:
        raise TypeError(
            f"{column.name}: timestamps in units of {unit or 'nothing'!r} cannot be read; cast them to 'ms'"
        )
    column.ms_multiplier, column.ms_divisor = UNITS[letters]
    column.ms_multiplier *= multiplier
    return 0


cdef int refuse_timestamps(Column column) except -1:
    """Raise TypeError if the column holds timestamps, for an argument that takes plain integers."""
    if column.ms_multiplier:
        raise TypeError(f"{column.name}: expected integers, got {column.type}")
    return 0
