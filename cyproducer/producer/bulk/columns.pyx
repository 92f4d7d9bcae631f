"""Reads columns of any kind: buffers, lists and integers, as addresses of their values."""


# ------------------------------------------------------------ columns
#
# Holds rows of bytes or of integers as columns, which a loop can read without the GIL.
#
# A column points to the values in the arrays that it was made of, and keeps these alive. Other threads can change the
# values, but not where they are: offsets, views, masks and validity bitmaps are copied, and the copies are checked.


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

    cdef void *data

    def __cinit__(self, size_t size):
        self.data = calloc(size or 1, 1)
        if self.data == NULL:
            raise MemoryError(f"cannot allocate {size} bytes")

    def __dealloc__(self):
        free(self.data)


@cython.final
cdef class Column:
    """Rows of bytes or null, in one or more segments. It keeps the memory alive that the segments point to."""

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


# ------------------------------------------------------------ buffers
#
# Reads arrays in memory through the buffer protocol (PEP 3118) as columns: those of NumPy and of others.
#
# NumPy is not imported. Masks and time units are read through attributes. Only masks and rows that are not contiguous
# are copied. A value of a fixed-width dtype is all `itemsize` bytes of the element as they are in memory. So an `S`
# element keeps its padding NUL bytes, which NumPy hides when it makes an object of the element. To send values without
# the padding, give `list(array)` or an Arrow array.


cdef str _OTHER_ENDIAN = ">!" if sys.byteorder == "little" else "<"


@cython.final
cdef class Buffer:
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


cdef Column column_of_buffer(object array, str name):
    """Read a 1-D array (one element per record) or a 2-D array of uint8 (one row per record). Masked rows are null."""
    cdef Column column
    cdef Buffer buffer
    cdef Py_buffer *view
    cdef Segment *segment
    source, unit = _exportable(array, name)
    try:
        buffer = buffer_of(source, PyBUF_RECORDS_RO)
    except (BufferError, TypeError, ValueError) as error:
        raise TypeError(f"{name}: {describe(array)} cannot be read as a buffer: {error}") from error
    view = &buffer.view
    spelling = format_of(buffer)
    _check_elements(array, spelling, view.ndim, name)
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


cdef Buffer buffer_of(object array, int flags):
    """Acquire the buffer of an object. Raise the exporter's error.

    Elements that no format of PEP 3118 describes are read as bytes: structures of NumPy with times, or with fields that
    overlap or are in another order. They must not hold Python objects, see refuse_objects.
    """
    try:
        return Buffer(array, flags)
    except ValueError:
        plain = _plain_array(array)
        if plain is None or plain.dtype.hasobject:
            raise
        return Buffer(plain.view(f"V{plain.itemsize}"), flags)


cdef object _plain_array(object array):
    """Return the memory of a NumPy array as one of no subclass and without a mask; None for another object."""
    for base in type(array).__mro__:
        if base.__name__ == "ndarray" and base.__module__ == "numpy":
            return base.view(array, base)
    return None


cdef tuple _exportable(array, str name):
    """Return (object that exports a buffer for `array`, NumPy's name of its type of times or None).

    Arrays of datetime64 and timedelta64 export no buffer themselves. Raise TypeError if there is no such object.
    """
    dtype = getattr(array, "dtype", None)
    kind = getattr(dtype, "kind", None)
    if isinstance(array, (bytes, bytearray, str)):
        raise TypeError(
            f"{name}: one {type(array).__name__} is not an array of records; "
            "give a list of bytes, a (data, offsets) pair, or an array"
        )
    if kind == "U":
        raise holds_text(array, name)
    refuse_objects(array, "", name)
    source = exporter_of(array)
    if source is None:
        raise TypeError(
            f"{name}: expected a 1-D array of a fixed-width dtype, a 2-D array of uint8, a (data, offsets) "
            "pair, a list of bytes, or an Arrow array of a binary or string type, "
            f"got {describe(array)}{column_hint(array)}"
        )
    return source, str(dtype.str) if kind in ("M", "m") else None


cdef object exporter_of(object array):
    """Return the array, or its integers if it holds times, if that can be read as a buffer, else None."""
    if getattr(getattr(array, "dtype", None), "kind", None) in ("M", "m") and hasattr(array, "view"):
        array = array.view("i8")
    return array if PyObject_CheckBuffer(array) else None


cdef object holds_text(object array, str name):
    """Return an error for an array of str: how its elements are in memory is not what a reader expects."""
    return TypeError(
        f"{name}: {describe(array)} holds text; give [text.encode() for text in array], or pyarrow.array(array)"
    )


cdef str column_hint(object array):
    """Return, for messages, how a column of pandas can be given."""
    if not hasattr(array, "to_numpy"):
        return ""
    return "; give it as pyarrow.array(column), or as column.to_numpy() if it holds numbers or times"


cdef int refuse_objects(object array, str spelling, str name) except -1:
    """Raise TypeError if elements of the format hold Python objects or pointers: their bytes are addresses."""
    if getattr(getattr(array, "dtype", None), "kind", None) == "T":  # NumPy's StringDType holds pointers
        raise holds_text(array, name)
    if getattr(getattr(array, "dtype", None), "hasobject", False) or holds_addresses(spelling):
        raise TypeError(
            f"{name}: {describe(array)} holds Python objects or pointers; give list(array) if they are bytes, "
            "pyarrow.array(array) if they are text, or an array of a fixed-width dtype"
        )
    return 0


cdef str format_of(Buffer buffer):
    """Return the format of a buffer's elements."""
    return "B" if buffer.view.format == NULL else (<bytes>buffer.view.format).decode(errors="backslashreplace")


cdef _check_elements(array, str spelling, int ndim, str name):
    refuse_objects(array, spelling, name)
    if ndim == 2 and spelling.lstrip("@=<>!") != "B":
        raise TypeError(f"{name}: a 2-D array must be of uint8 (one row a record), got {describe(array)}")
    if ndim not in (1, 2):
        raise ValueError(f"{name}: expected 1 dimension, or 2 of uint8, got {ndim}: {describe(array)}")


cdef str _type_name(array, str spelling):
    dtype = getattr(array, "dtype", None)
    return f"dtype {dtype}" if dtype is not None else f"elements of format {spelling!r}"


cdef _set_number(Column column, str spelling, unit):
    """Mark a column of integers or, if `unit` is NumPy's name of a datetime64 dtype, of timestamps.

    timedelta64 is neither: a duration is no time, and its unit would be lost.
    """
    if unit is not None and "m8" in unit:
        return
    letter = spelling.lstrip("@=<>!")
    if len(letter) == 1 and letter in "bhilqnBHILQN":
        column.number = c"i" if letter.islower() else c"u"
        column.swapped = spelling[0] in _OTHER_ENDIAN
    if unit is not None:
        column.swapped = unit[0] in _OTHER_ENDIAN
        column.has_nat = True
        set_unit(column, unit.partition("[")[2].rstrip("]"))


cdef Column _column_of_matrix(Buffer buffer, str name):
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


cdef bint is_masked_array(object array) except -1:
    """Return whether `array` is a numpy.ma.MaskedArray, also one without masked elements."""
    for base in type(array).__mro__:
        if base.__name__ == "MaskedArray" and base.__module__.startswith("numpy.ma"):
            return True
    return False


cdef _mask_rows(Column column, array):
    """Make the masked rows of a numpy.ma.MaskedArray null. Raise ValueError if only part of a row is masked."""
    cdef Buffer buffer
    cdef uint8_t *nulls
    cdef Py_ssize_t bad
    if not is_masked_array(array):
        return
    mask = array.mask
    if not mask.ndim:  # numpy.ma.nomask
        return
    buffer = Buffer(mask, PyBUF_RECORDS_RO)
    if buffer.view.ndim not in (1, 2) or buffer.view.shape[0] != column.rows:
        raise ValueError(f"{column.name}: the mask is {describe(mask)}, but there are {column.rows} rows")
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


# ------------------------------------------------------------ list places
#
# Copies and checks where the lists of an Arrow array are in its elements: lists, list views and fixed-size lists.


@cython.final
cdef class ListPlaces:
    """The first and last element of each list of an array: checked copies."""

    cdef readonly Py_ssize_t rows
    cdef readonly int64_t first     # of the elements that the lists use
    cdef readonly int64_t count     # from `first` on
    cdef int width                  # bytes of a number, 4 or 8
    cdef Memory _memory
    cdef const void *starts         # one for each row; without `ends`, one more
    cdef const int64_t *ends        # NULL: each list ends where the next one starts

    def __cinit__(self, int width, Py_ssize_t rows):
        self.width = width
        self.rows = rows

    cdef int64_t start(self, Py_ssize_t row) noexcept nogil:
        """Return the index of the first element of a list."""
        if self.width == 4:
            return (<const int32_t *>self.starts)[row]
        return (<const int64_t *>self.starts)[row]

    cdef int64_t end(self, Py_ssize_t row) noexcept nogil:
        """Return the index behind the last element of a list."""
        if self.ends != NULL:
            return self.ends[row]
        return self.start(row + 1)

    cdef Py_ssize_t read_offsets(self, const void *source, int64_t elements) except -2:
        """Copy the offsets of lists, one more than there are rows, and at least two.

        Return the index of the first one that does not ascend, or is not from 0 to `elements`, or -1.
        """
        cdef Py_ssize_t bad, longest = 0
        self._memory = Memory((self.rows + 1) * self.width)
        self.starts = self._memory.data
        bad = copy_offsets(self._memory.data, source, self.rows + 1, self.width, elements, &longest)
        if bad < 0:
            self.first = self.start(0)
            self.count = self.start(self.rows) - self.first
        return bad

    cdef Py_ssize_t read_views(self, const void *starts, const void *sizes, int64_t elements) except -2:
        """Copy the offsets and sizes of list views, which may be in any order, and may share elements.

        Return the first row whose list leads out of the elements, or -1.
        """
        cdef Memory copy = Memory(2 * self.rows * self.width)
        cdef const void *sources[2]
        cdef Py_ssize_t row
        cdef int64_t *places
        cdef int64_t start, size, lowest = INT64_MAX, highest = 0
        sources[:] = [starts, sizes]
        for row in range(2):
            copy_bytes(
                <char *>copy.data + row * self.rows * self.width, sources[row], self.rows * self.width
            )
        self._memory = Memory(2 * self.rows * sizeof(int64_t))
        places = <int64_t *>self._memory.data
        for row in range(self.rows):
            if self.width == 4:
                start, size = (<const int32_t *>copy.data)[row], (<const int32_t *>copy.data)[self.rows + row]
            else:
                start, size = (<const int64_t *>copy.data)[row], (<const int64_t *>copy.data)[self.rows + row]
            if not (0 <= start <= elements and 0 <= size <= elements - start):
                return row
            places[row] = start
            places[self.rows + row] = start + size
            if size:
                lowest = min(lowest, start)
                highest = max(highest, start + size)
        self.width = sizeof(int64_t)
        self.starts, self.ends = places, places + self.rows
        self.first = min(lowest, highest)
        self.count = highest - self.first
        return -1

    cdef int set_fixed(self, int64_t first, int64_t size) except -1:
        """Let the lists have `size` elements each, from element `first` on."""
        cdef Py_ssize_t row
        cdef int64_t *places
        self._memory = Memory((self.rows + 1) * sizeof(int64_t))
        places = <int64_t *>self._memory.data
        for row in range(self.rows + 1):
            places[row] = first + row * size
        self.width = sizeof(int64_t)
        self.starts = places
        self.first = first
        self.count = self.rows * size
        return 0


# ------------------------------------------------------------ integers
#
# Reads arrays and lists of integers, and arrays of timestamps, as columns.


_NO_NUMBERS = ("U", "T", "O")  # kinds of NumPy's dtypes of text and objects


cdef str time_hint(object time):
    """Return, for messages, how milliseconds are made of a time of Python or NumPy; "" for another object."""
    if getattr(getattr(time, "dtype", None), "kind", None) == "M":
        return "; give int(time.astype('datetime64[ms]').astype('int64'))"
    if isinstance(time, datetime):
        return "; give int(time.timestamp() * 1000)"
    return ""


cdef Column column_of_integers(object numbers, str name):
    """Read a 1-D array of integers or of datetime64, or a list of int and None."""
    cdef Column column
    cdef Segment *segment
    cdef Py_ssize_t row
    cdef int64_t *copy
    cdef uint8_t *nulls
    if not isinstance(numbers, (list, tuple)):
        kind = getattr(getattr(numbers, "dtype", None), "kind", None)
        if kind not in _NO_NUMBERS and exporter_of(numbers) is not None:
            column = column_of_buffer(numbers, name)
            if column.number:
                return column
        raise TypeError(
            f"{name}: expected a 1-D array of integers, a list of int and None, or an Arrow array of integers, "
            f"got {describe(numbers)}{column_hint(numbers)}"
        )
    numbers = tuple(numbers)
    column = Column(name, "int", False)
    column.number = c"i"
    copy = <int64_t *>column.own(len(numbers) * sizeof(int64_t))
    nulls = <uint8_t *>column.own(len(numbers))
    for row, number in enumerate(numbers):
        if number is None:
            nulls[row] = 1
        elif isinstance(number, bool) or not hasattr(number, "__index__"):
            hint = time_hint(number) if name == "timestamps_ms" else ""
            raise TypeError(f"{name}[{row}]: expected int or None, got {type(number).__name__}{hint}")
        else:
            try:
                copy[row] = _index(number)
            except TypeError as error:
                raise TypeError(f"{name}[{row}]: expected int or None, got {describe(number)}") from error
            except OverflowError:
                raise ValueError(f"{name}[{row}]: {number} does not fit a signed 64-bit integer") from None
    segment = column.add_segment(SEGMENT_FIXED, len(numbers))
    segment.data = <const uint8_t *>copy
    segment.stride = segment.width = sizeof(int64_t)
    segment.mask = nulls
    segment.nullable = True
    return column


# ------------------------------------------------------------ pairs
#
# Reads (data, offsets) pairs as columns: row i is data[offsets[i]:offsets[i + 1]].


cdef Column column_of_pair(object data, object offsets, str name):
    """Read any contiguous buffer: row i is data[offsets[i]:offsets[i + 1]], so n rows need n + 1 offsets."""
    cdef Column column = Column(name, "bytes", True), numbers
    cdef Buffer buffer
    cdef Memory wide
    cdef int64_t wrong = 0
    cdef Py_ssize_t bad
    cdef Segment *segment
    cdef const Segment *raw
    numbers = offsets if isinstance(offsets, Column) else column_of_integers(offsets, f"{name} offsets")
    raw = numbers.segments
    if not PyObject_CheckBuffer(data):
        raise TypeError(
            f"{name}: the data of a (data, offsets) pair must be a buffer of bytes, got {describe(data)}"
        )
    if is_masked_array(data):
        raise TypeError(f"{name}: the data of a (data, offsets) pair is a masked array; give its attribute data")
    refuse_objects(data, "", name)
    try:
        buffer = buffer_of(data, PyBUF_C_CONTIGUOUS | PyBUF_FORMAT)
    except (BufferError, ValueError) as error:
        raise ValueError(f"{name}: the data of a (data, offsets) pair must be contiguous: {error}") from error
    refuse_objects(data, format_of(buffer), name)
    if numbers.rows == 0:
        raise ValueError(f"{name}: offsets must have one element more than there are rows, so at least one")
    refuse_timestamps(numbers)
    column.keep(buffer)
    segment = column.add_segment(SEGMENT_OFFSETS64, numbers.rows - 1)
    if (
        numbers.segment_count == 1 and numbers.number == c"i" and not numbers.swapped and not raw.nullable
        and raw.width in (4, 8) and raw.stride == raw.width
    ):
        bad = column.set_offsets(segment, buffer.view.buf, raw.data, raw.width, buffer.view.len)
    else:
        wide = Memory(numbers.rows * sizeof(int64_t))
        bad = numbers.copy_numbers(<int64_t *>wide.data, buffer.view.len, &wrong)
        if bad < 0:
            bad = column.set_offsets(segment, buffer.view.buf, wide.data, sizeof(int64_t), buffer.view.len)
    if bad >= 0:
        raise ValueError(
            f"{name} offsets[{bad}]: offsets must ascend, without null, from 0 or more to "
            f"at most the {buffer.view.len} bytes of the data"
        )
    return column


# ------------------------------------------------------------ checked copies
#
# Copies the numbers that are followed (offsets, views, validity bits) out of foreign memory, and checks the copies.
#
# Other threads can change foreign memory at any time: NumPy writes without the GIL. So a number that was checked there
# need not be the number that is read later. Nothing behind these functions reads such a number from foreign memory.
# Copies are made and checked in blocks that fit the fastest cache, so that the check costs less than the copy.


cdef struct Span:
    const uint8_t *data
    Py_ssize_t length   # -1: null


cdef inline bint bit_at(const uint8_t *bits, int64_t at) noexcept nogil:
    return bits[at >> 3] >> (at & 7) & 1


cdef extern from *:
    """
    /* The compiler may not read again what was copied before. */
    static inline void cyp_forget_memory(void) {
        __asm__ volatile("" ::: "memory");
    }
    """
    void forget_memory "cyp_forget_memory"() noexcept nogil


ctypedef fused offset_t:
    int32_t
    int64_t

cdef enum:
    OFFSETS_OF_BLOCK = 1024
    VIEWS_OF_BLOCK = 64
    INLINE_BYTES = 12       # a view of at most this length holds its value


cdef struct View:
    int32_t length
    uint8_t prefix[4]
    int32_t buffer
    int32_t offset


cdef void copy_bytes(void *out, const void *source, Py_ssize_t size) noexcept nogil:
    """Copy `size` bytes, of which each is read once."""
    memcpy(out, source, size)
    forget_memory()


cdef Py_ssize_t copy_offsets(
    void *out, const void *source, Py_ssize_t count, int width, int64_t most, Py_ssize_t *longest
) noexcept nogil:
    """Copy `count` offsets of `width` bytes, 4 or 8, which need not be aligned.

    Set `longest` to the largest distance of two that follow each other. Return the index of the first offset that is
    less than the one before it, or not from 0 to `most`, or -1.
    """
    cdef Py_ssize_t start = 0, end, bad
    longest[0] = 0
    while start < count:
        end = min(start + OFFSETS_OF_BLOCK, count)
        copy_bytes(<uint8_t *>out + start * width, <const uint8_t *>source + start * width, (end - start) * width)
        if width == 4:
            bad = _check_block(<const int32_t *>out, start, end, most, longest)
        else:
            bad = _check_block(<const int64_t *>out, start, end, most, longest)
        if bad >= 0:
            return bad
        start = end
    return -1


cdef Py_ssize_t _check_block(
    const offset_t *offsets, Py_ssize_t start, Py_ssize_t end, int64_t most, Py_ssize_t *longest
) noexcept nogil:
    """Do what `copy_offsets` says for offsets `start` to `end`. Those before have been checked.

    The loops have no branches, so that the compiler can use vector instructions.
    """
    cdef offset_t before = offsets[start - 1] if start else 0
    cdef offset_t furthest = 0
    cdef bint descends = offsets[start] < before
    cdef Py_ssize_t at
    for at in range(start + 1, end):
        descends |= offsets[at] < offsets[at - 1]
    if descends or offsets[end - 1] > most:
        for at in range(start, end):
            if offsets[at] < before or offsets[at] > most:
                return at
            before = offsets[at]
    if start:
        furthest = offsets[start] - before
    for at in range(start + 1, end):
        furthest = max(furthest, offsets[at] - offsets[at - 1])
    longest[0] = max(longest[0], <Py_ssize_t>furthest)
    return -1


cdef Py_ssize_t copy_views(
    Span *out, const void *source, Py_ssize_t rows, const uint8_t *bits, int64_t first_bit, const Span *buffers,
    Py_ssize_t buffer_count, Py_ssize_t *longest
) noexcept nogil:
    """Turn Arrow's 16-byte views, which need not be aligned, into the places of the values.

    bits       the validity bitmap, NULL if no row is null; that of the first row is `first_bit`
    buffers    the buffers in which long values are; they and `bits` are not foreign memory
    longest    is set to the length of the longest value

    Return the index of the first row whose view leads out of its buffer, or -1.
    """
    cdef View views[VIEWS_OF_BLOCK]
    cdef const View *view
    cdef const Span *buffer
    cdef const uint8_t *first
    cdef Py_ssize_t start = 0, end, row
    longest[0] = 0
    while start < rows:
        end = min(start + VIEWS_OF_BLOCK, rows)
        first = <const uint8_t *>source + start * sizeof(View)
        copy_bytes(views, first, (end - start) * sizeof(View))
        for row in range(start, end):
            view = &views[row - start]
            out[row].length = -1
            if bits != NULL and not bit_at(bits, first_bit + row):
                continue
            if view.length < 0:
                return row
            if view.length <= INLINE_BYTES:
                out[row].data = first + (row - start) * sizeof(View) + sizeof(int32_t)
            else:
                if not 0 <= view.buffer < buffer_count:
                    return row
                buffer = &buffers[view.buffer]
                if view.offset < 0 or view.offset > buffer.length - view.length:
                    return row
                out[row].data = buffer.data + view.offset
            out[row].length = view.length
            longest[0] = max(longest[0], out[row].length)
        start = end
    return -1
