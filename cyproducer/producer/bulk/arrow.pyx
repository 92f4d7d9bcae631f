"""Reads Arrow arrays, tables and streams as columns, through Arrow's C data interface and without pyarrow.

The rules are those of the specification (Arrow C data, C stream and PyCapsule interfaces). A structure is moved by
copying it and clearing the original's `release`; the copy's `release` is then called exactly once, here. An array's
`offset` counts elements in all its buffers. A struct's offset applies to its children too, in addition to their own.

The structures come from other libraries. Every member is checked here before it is followed: what was released, counts
of children and buffers, NULL, lengths and offsets. The interface does not give the sizes of buffers (except those of
views). The library is relied on for them.
"""


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


# Format strings of the specification: the type's name, and the bytes of an integer
_NAMES = {
    "n": "null", "b": "bool", "e": "float16", "f": "float32", "g": "float64",
    "z": "binary", "Z": "large_binary", "vz": "binary_view",
    "u": "string", "U": "large_string", "vu": "string_view",
    "tdD": "date32", "tdm": "date64",
    "+s": "struct", "+l": "list", "+L": "large_list", "+vl": "list_view", "+vL": "large_list_view", "+m": "map",
}
_INTEGERS = {
    "c": ("int8", 1), "C": ("uint8", 1), "s": ("int16", 2), "S": ("uint16", 2),
    "i": ("int32", 4), "I": ("uint32", 4), "l": ("int64", 8), "L": ("uint64", 8),
}
_UNITS = {"s": "s", "m": "ms", "u": "us", "n": "ns"}
# Buffers of the types that are read here, except views (3 or more), integers, timestamps and fixed-size binary (2), and
# fixed-size lists (1)
_BUFFERS = {"+s": 1, "+l": 2, "+L": 2, "+m": 2, "+vl": 3, "+vL": 3, "z": 3, "u": 3, "Z": 3, "U": 3}
_BYTES = ("n", "z", "Z", "u", "U", "vz", "vu")

cdef int64_t ADDRESSABLE = 1 << 48  # no process has more bytes, so no array has more rows


@cython.final
cdef class _Array:
    """Owns an ArrowArray and releases it when it is deallocated."""

    cdef ArrowArray array

    def __dealloc__(self):
        if self.array.release != NULL:
            self.array.release(&self.array)


@cython.final
cdef class _Stream:
    """Owns an ArrowArrayStream and releases it when it is deallocated."""

    cdef ArrowArrayStream stream

    def __dealloc__(self):
        if self.stream.release != NULL:
            self.stream.release(&self.stream)


@cython.final
cdef class ArrowData:
    """An Arrow type and its arrays (several if it was read from a stream), or one child of them."""

    cdef ArrowSchema root           # released with this object, as are all arrays
    cdef list _arrays               # owners of the arrays that were read
    cdef ArrowSchema *schema        # of the root or of a child
    cdef Piece *pieces              # one for each array
    cdef readonly Py_ssize_t piece_count
    cdef readonly Py_ssize_t rows
    cdef ArrowData _parent          # keeps the root alive
    cdef readonly str name

    def __init__(self):
        raise TypeError("ArrowData cannot be created directly: arrow_data() creates it")

    def __dealloc__(self):
        if self.root.release != NULL:
            self.root.release(&self.root)
        free(self.pieces)

    cdef object _malformed(self, str why):
        return ValueError(f"{self.name}: the {self.type_name()} array is malformed: {why}")

    cdef int _check_schema(self) except -1:
        """Raise ValueError if the type cannot be read."""
        if self.schema == NULL or self.schema.release == NULL or self.schema.format == NULL:
            raise ValueError(f"{self.name}: the Arrow schema is malformed: it was released, or has no format")
        return 0

    cdef int _check_array(self, const ArrowArray *array) except -1:
        """Raise ValueError if the array's members cannot be those of an array of this type."""
        cdef str spelling = self.format()
        cdef int64_t buffers = _buffer_count(spelling)
        if array == NULL or array.release == NULL:
            raise self._malformed("it was released")
        if not (0 <= array.length <= ADDRESSABLE and 0 <= array.offset <= ADDRESSABLE):
            raise self._malformed(f"its length is {array.length}, its offset {array.offset}")
        if not -1 <= array.null_count <= array.length:
            raise self._malformed(f"{array.null_count} of {array.length} rows are null")
        if spelling in ("vz", "vu"):
            if not buffers <= array.n_buffers <= INT32_MAX:  # a view has an index of 32 bits
                raise self._malformed(f"it has {array.n_buffers} buffers, expected {buffers} or more")
        elif buffers and array.n_buffers != buffers:
            raise self._malformed(f"it has {array.n_buffers} buffers, expected {buffers}")
        if buffers and array.buffers == NULL:
            raise self._malformed("its buffers are missing")
        if buffers and array.null_count > 0 and array.buffers[0] == NULL:
            raise self._malformed(f"{array.null_count} rows are null, but it has no validity bitmap")
        return 0

    cdef int _add_piece(self, ArrowArray *array, int64_t offset, int64_t rows) except -1:
        """Add `rows` rows of an array that has been checked, from `offset` on."""
        cdef Piece *grown
        if self.rows + rows > ADDRESSABLE:
            raise self._malformed(f"it has more than {ADDRESSABLE} rows")
        grown = <Piece *>realloc(self.pieces, (self.piece_count + 1) * sizeof(Piece))
        if grown == NULL:
            raise MemoryError
        self.pieces = grown
        grown[self.piece_count] = Piece(array, offset, rows)
        self.piece_count += 1
        self.rows += rows
        return 0

    cdef int _add_root(self, ArrowArray *array) except -1:
        """Check an array of the root, and add all its rows."""
        self._check_array(array)
        return self._add_piece(array, array.offset, array.length)

    def format(self) -> str:
        """Return the format string of the type, as in the specification."""
        return (<bytes>self.schema.format).decode(errors="backslashreplace")

    def type_name(self) -> str:
        """Return the name of the type for messages."""
        cdef str spelling = self.format()
        if self.schema.dictionary != NULL:
            return "Arrow dictionary"
        if spelling in _INTEGERS:
            return f"Arrow {_INTEGERS[spelling][0]}"
        if _width(spelling) >= 0:
            return f"Arrow fixed_size_binary[{spelling[2:]}]"
        if _number_behind("+w:", spelling) >= 0:
            return f"Arrow fixed_size_list[{spelling[3:]}]"
        if _is_timestamp(spelling):
            return f"Arrow timestamp[{_UNITS[spelling[2:3]]}]"
        return f"Arrow {_NAMES.get(spelling, f'type of format {spelling!r}')}"

    def is_struct(self) -> bool:
        """Return whether these are rows of named columns."""
        return self.format() == "+s"

    def is_list(self) -> bool:
        """Return whether each row is a list of elements."""
        return self.format() in ("+l", "+L", "+vl", "+vL", "+m") or _number_behind("+w:", self.format()) >= 0

    def child_names(self) -> list[str]:
        """Return the names of a struct's columns, in order."""
        cdef int64_t at
        cdef const char *name
        names = []
        for at in range(self.schema.n_children):
            name = self._new_child(at, self.name).schema.name
            names.append("" if name == NULL else (<bytes>name).decode(errors="backslashreplace"))
        return names

    def metadata(self) -> dict[bytes, bytes]:
        """Return the metadata of the type, up to the first malformed pair."""
        cdef const char *at = self.schema.metadata
        cdef int32_t count = 0, size = 0
        pairs = {}
        if at == NULL:
            return pairs
        memcpy(&count, at, sizeof(int32_t))
        at += sizeof(int32_t)
        for _ in range(count):
            pair = []
            for _ in range(2):
                memcpy(&size, at, sizeof(int32_t))
                if size < 0:
                    return pairs
                at += sizeof(int32_t)
                pair.append(at[:size])
                at += size
            pairs[pair[0]] = pair[1]
        return pairs

    cdef ArrowData _new_child(self, int64_t at, str name):
        """Return child `at` without any pieces."""
        cdef ArrowData child = ArrowData.__new__(ArrowData)
        if at >= self.schema.n_children or self.schema.children == NULL:
            raise ValueError(f"{self.name}: the schema of the {self.type_name()} is malformed: it has no child {at}")
        child.schema = self.schema.children[at]
        child._parent = self
        child.name = name
        child._check_schema()
        return child

    cdef ArrowArray *_child_array(self, Py_ssize_t piece, int64_t at) except NULL:
        """Return child `at` of an array. Its own members have not been checked."""
        cdef const ArrowArray *array = self.pieces[piece].array
        if array.n_children != self.schema.n_children or array.children == NULL or array.children[at] == NULL:
            raise self._malformed(
                f"it has {array.n_children} children, its type has {self.schema.n_children}, or one is missing"
            )
        return array.children[at]

    cdef ArrowData child(self, int64_t at, str name):
        """Return column `at` of a struct, with the same rows."""
        cdef ArrowData child = self._new_child(at, name)
        cdef Py_ssize_t piece
        cdef Piece *rows
        cdef ArrowArray *array
        for piece in range(self.piece_count):
            rows = &self.pieces[piece]
            array = self._child_array(piece, at)
            child._check_array(array)
            if array.length < rows.offset + rows.rows:
                raise child._malformed(f"it has {array.length} rows, its struct has {rows.offset + rows.rows}")
            child._add_piece(array, array.offset + rows.offset, rows.rows)
        return child

    cdef ArrowData list_child(self, str name, list places):
        """Return the elements of a list type, for each piece those of its lists.

        Append a `ListPlaces` to `places` for each piece. Raise ValueError if lists lead out of the elements.
        """
        cdef ArrowData child = self._new_child(0, name)
        cdef Py_ssize_t piece
        cdef ArrowArray *array
        cdef ListPlaces own
        for piece in range(self.piece_count):
            array = self._child_array(piece, 0)
            child._check_array(array)
            own = self._list_places(piece, array.length)
            places.append(own)
            child._add_piece(array, array.offset + own.first, own.count)
        return child

    cdef ListPlaces _list_places(self, Py_ssize_t piece, int64_t elements):
        """Return where the lists of an array are, a checked copy. It has `elements` elements."""
        cdef const Piece *where = &self.pieces[piece]
        cdef str spelling = self.format()
        cdef int width = 8 if spelling in ("+L", "+vL") else 4
        cdef ListPlaces own = ListPlaces(width, where.rows)
        cdef const void **buffers = where.array.buffers
        cdef int64_t size = _number_behind("+w:", spelling)
        cdef bint is_view = spelling in ("+vl", "+vL")
        cdef Py_ssize_t bad, at
        if where.rows == 0:
            return own
        if size >= 0:
            if size > 0 and where.offset + where.rows > elements // size:
                raise self._malformed(f"{where.offset + where.rows} lists of {size} have {elements} elements")
            own.set_fixed(where.offset * size, size)
            return own
        if buffers[1] == NULL or (is_view and buffers[2] == NULL):
            raise self._malformed("its offsets are missing" if buffers[1] == NULL else "its sizes are missing")
        if is_view:
            bad = own.read_views(
                <const uint8_t *>buffers[1] + where.offset * width,
                <const uint8_t *>buffers[2] + where.offset * width, elements,
            )
        else:
            bad = own.read_offsets(<const uint8_t *>buffers[1] + where.offset * width, elements)
            bad = max(bad - 1, 0) if bad >= 0 else -1
        if bad >= 0:
            for at in range(piece):
                bad += self.pieces[at].rows
            rule = "each list must be within" if is_view else "its offsets must ascend from 0 or more to at most"
            raise ValueError(
                f"{self.name}[{bad}]: the {self.type_name()} array is malformed: {rule} {elements}, "
                "the number of elements"
            )
        return own

    cdef bint is_null_at(self, Py_ssize_t piece, Py_ssize_t row) noexcept nogil:
        cdef const Piece *where = &self.pieces[piece]
        if where.array.null_count == 0 or where.array.buffers[0] == NULL:
            return False
        return not bit_at(<const uint8_t *>where.array.buffers[0], where.offset + row)

    cdef Column column(self):
        """Return the rows as a column. Raise TypeError for a type that holds no bytes, integers or timestamps."""
        return self._plain_column() if self.schema.dictionary == NULL else self._decoded()

    cdef Column _plain_column(self):
        """Return the rows of another type than a dictionary, or the indexes of a dictionary."""
        cdef str spelling = self.format(), name = self.type_name()
        cdef bint is_bytes = spelling in _BYTES or _width(spelling) >= 0
        cdef Column column = Column(self.name, name, is_bytes)
        cdef Py_ssize_t piece, width = 0
        if spelling in _INTEGERS:
            width = _INTEGERS[spelling][1]
            column.number = c"i" if spelling.islower() else c"u"
        elif _is_timestamp(spelling):
            width = 8
            column.number = c"i"
            set_unit(column, _UNITS[spelling[2:3]])
        elif is_bytes:
            width = max(_width(spelling), 0)
        else:
            raise TypeError(
                f"{self.name}: {name} cannot be read here; expected a binary, string, integer or timestamp type; "
                "cast or encode it"
            )
        column.keep(self)
        for piece in range(self.piece_count):
            if self.pieces[piece].rows:
                self._check_data(&self.pieces[piece], spelling, width)
                _add_segment(column, &self.pieces[piece], spelling, width)
        return column

    cdef Column _dictionary(self, Py_ssize_t piece):
        """Return the values of an array's dictionary; for piece -1 a column of their type without rows."""
        cdef ArrowData values = ArrowData.__new__(ArrowData)
        cdef ArrowArray *array
        values.schema = self.schema.dictionary
        values._parent = self
        values.name = f"{self.name} dictionary"
        values._check_schema()
        if values.schema.dictionary != NULL:
            raise TypeError(f"{values.name}: a dictionary of dictionaries cannot be read; decode it")
        if piece >= 0:
            array = self.pieces[piece].array.dictionary
            if array == NULL:
                raise self._malformed("its dictionary is missing")
            values._add_root(array)
        return values._plain_column()

    cdef Column _decoded(self):
        """Return the rows of a dictionary: the places of their values."""
        cdef Column indexes, values = self._dictionary(-1), column
        cdef Memory copy = Memory(self.rows * sizeof(int64_t))
        cdef Py_ssize_t piece, bad, start = 0
        cdef int64_t wrong = 0
        if self.format() not in _INTEGERS:
            raise ValueError(
                f"{self.name}: the Arrow schema is malformed: the indexes of a dictionary have the format "
                f"{self.format()!r}"
            )
        column = Column(self.name, f"Arrow dictionary of {values.type.removeprefix('Arrow ')}", values.is_bytes)
        column.number, column.unit = values.number, values.unit
        column.ms_multiplier, column.ms_divisor = values.ms_multiplier, values.ms_divisor
        column.keep(self)
        indexes = self._plain_column()
        bad = indexes.copy_numbers(<int64_t *>copy.data, ADDRESSABLE, &wrong)
        for piece in range(self.piece_count):
            if bad < 0 and self.pieces[piece].rows:
                bad = _add_decoded(
                    column, <const int64_t *>copy.data + start, self.pieces[piece].rows, self._dictionary(piece), &wrong
                )
                bad = bad + start if bad >= 0 else -1
                start += self.pieces[piece].rows
        if bad >= 0:
            raise ValueError(
                f"{self.name}[{bad}]: the {column.type} array is malformed: index {wrong} leads out of its dictionary"
            )
        return column

    cdef int _check_data(self, const Piece *piece, str spelling, Py_ssize_t width) except -1:
        """Raise ValueError if rows of the array, of which there is at least one, have no data."""
        cdef const void **buffers = piece.array.buffers
        if spelling == "n":
            return 0
        if buffers[1] == NULL and _width(spelling) != 0:
            raise self._malformed("its data or offsets are missing")
        if spelling in ("vz", "vu") and piece.array.n_buffers > 3 and buffers[piece.array.n_buffers - 1] == NULL:
            raise self._malformed("the sizes of its buffers are missing")
        if width > ADDRESSABLE // (piece.offset + piece.rows):
            raise self._malformed(f"{piece.offset + piece.rows} rows of {width} bytes")
        return 0


cdef Py_ssize_t _width(str spelling) except -2:
    """Return the width of a fixed-size binary type, -1 for another type or a malformed one."""
    return _number_behind("w:", spelling)


cdef Py_ssize_t _number_behind(str start, str spelling) except -2:
    """Return the number in a format of a fixed size that begins with `start`, -1 if it is another or malformed."""
    digits = spelling[len(start):]
    if spelling.startswith(start) and digits.isascii() and digits.isdigit() and len(digits) <= 10:
        return int(digits)
    return -1


cdef bint _is_timestamp(str spelling) except -1:
    return spelling.startswith("ts") and spelling[2:3] in _UNITS and spelling[3:4] == ":"


cdef int64_t _buffer_count(str spelling) except -1:
    """Return how many buffers an array has at least, 0 for a type of which no buffer is read."""
    if spelling in ("vz", "vu"):
        return 3
    if spelling in _INTEGERS or _is_timestamp(spelling) or _width(spelling) >= 0:
        return 2
    if _number_behind("+w:", spelling) >= 0:
        return 1
    return _BUFFERS.get(spelling, 0)


cdef int _add_segment(Column column, const Piece *piece, str spelling, Py_ssize_t width) except -1:
    """Add the rows of one array, of a type that `ArrowData.column` accepts."""
    cdef const void **buffers = piece.array.buffers
    cdef Segment *segment
    cdef Py_ssize_t bad = -1
    if spelling == "n":
        column.add_segment(SEGMENT_NULL, piece.rows)
        return 0
    segment = column.add_segment(SEGMENT_FIXED, piece.rows)
    if piece.array.null_count != 0 and buffers[0] != NULL:
        column.set_validity(segment, buffers[0], piece.offset)
    if width or _width(spelling) == 0:
        segment.data = <const uint8_t *>buffers[1] + piece.offset * width
        segment.stride = segment.width = width
    elif spelling in ("vz", "vu"):
        bad = column.set_views(
            segment, <const uint8_t *>buffers[1] + 16 * piece.offset, buffers + 2, piece.array.n_buffers - 3
        )
        if bad >= 0:
            raise ValueError(
                f"{column.name}[{segment.start + bad}]: the {column.type} array is malformed: the view has a negative "
                "length, or leads out of its buffer"
            )
    else:
        width = 4 if spelling in ("z", "u") else 8
        bad = column.set_offsets(
            segment, buffers[2], <const uint8_t *>buffers[1] + piece.offset * width, width, ADDRESSABLE
        )
        if bad >= 0:
            raise ValueError(
                f"{column.name}[{segment.start + max(bad - 1, 0)}]: the {column.type} array is malformed: its offsets "
                "must ascend from 0 or more"
            )
        if buffers[2] == NULL and segment.longest > 0:
            raise ValueError(f"{column.name}: the {column.type} array is malformed: its data are missing")
    return 0


cdef Py_ssize_t _add_decoded(
    Column column, const int64_t *indexes, Py_ssize_t rows, Column values, int64_t *wrong
) except -2:
    """Add the rows of one array: indexes of `values`, -1 for null. The column does not keep `values`.

    Return the first row whose index is too large, and set `wrong` to the index; or return -1.
    """
    cdef Span *spans = <Span *>column.own(rows * sizeof(Span))
    cdef Py_ssize_t row, bad = -1
    cdef Segment *segment
    with nogil:
        for row in range(rows):
            spans[row].length = -1
            if indexes[row] >= values.rows:
                wrong[0] = indexes[row]
                bad = row
                break
            if indexes[row] >= 0:  # values of one array have one segment
                spans[row].length = segment_get(values.segments, indexes[row], &spans[row].data)
    segment = column.add_segment(SEGMENT_SPANS, rows)
    segment.index = spans
    segment.longest = max(values.longest(), 0)
    segment.width = values.segments.width if values.rows else 0
    return bad


cdef ArrowData arrow_data_or_none(object source, str name):
    """Return the column that `source` exports, or None if it has no Arrow interface. Raise TypeError for a table."""
    cdef ArrowData data
    if not hasattr(type(source), "__arrow_c_array__") and not hasattr(type(source), "__arrow_c_stream__"):
        return None
    data = arrow_data(source, name)
    if data.is_struct():
        raise TypeError(
            f"{name}: {describe(source)} holds rows of named columns; send a table with send_arrow(), or give one of "
            "its columns"
        )
    return data


cdef ArrowData arrow_data(object source, str name):
    """Take what `source` exports through `__arrow_c_array__` or `__arrow_c_stream__`. Raise TypeError if neither."""
    cdef ArrowData data = ArrowData.__new__(ArrowData)
    data.name = name
    data._arrays = []
    data.schema = &data.root
    if hasattr(type(source), "__arrow_c_array__"):
        _import_array(data, source.__arrow_c_array__())
    elif hasattr(type(source), "__arrow_c_stream__"):
        _read_stream(data, source.__arrow_c_stream__())
    else:
        raise TypeError(
            f"{name}: expected something with __arrow_c_stream__ or __arrow_c_array__ "
            f"(a table or record batch of pyarrow, polars, ...), got {describe(source)}; make one with pyarrow.table()"
        )
    return data


cdef void *_pointer(object capsule, const char *kind, str name) except NULL:
    """Return the address of the structure in a capsule."""
    if not PyCapsule_IsValid(capsule, kind):
        raise TypeError(f"{name}: expected a capsule {(<bytes>kind).decode()!r} of Arrow, got {type(capsule).__name__}")
    return PyCapsule_GetPointer(capsule, kind)


cdef object _released(str name, str method):
    return ValueError(
        f"{name}: the capsule of Arrow has been read before; {method}() must return a new one each time"
    )


cdef int _import_array(ArrowData data, object capsules) except -1:
    """Move the structures out of a pair of capsules (schema, array)."""
    cdef _Array owner = _Array()
    cdef ArrowSchema *schema
    cdef ArrowArray *array
    if not isinstance(capsules, (tuple, list)) or len(capsules) != 2:
        raise TypeError(f"{data.name}: __arrow_c_array__() must return two capsules, got {describe(capsules)}")
    data._arrays.append(owner)
    first, second = capsules
    schema = <ArrowSchema *>_pointer(first, "arrow_schema", data.name)
    array = <ArrowArray *>_pointer(second, "arrow_array", data.name)
    if schema.release == NULL or array.release == NULL:
        raise _released(data.name, "__arrow_c_array__")
    data.root = schema[0]
    schema.release = NULL
    owner.array = array[0]
    array.release = NULL
    data._check_schema()
    data._add_root(&owner.array)
    return 0


cdef int _read_stream(ArrowData data, object capsule) except -1:
    """Read a stream to its end. Release the GIL, because another Python thread may fill the stream."""
    cdef _Stream owner = _Stream()
    cdef ArrowArrayStream *source = <ArrowArrayStream *>_pointer(capsule, "arrow_array_stream", data.name)
    cdef ArrowArrayStream *stream = &owner.stream
    cdef _Array array
    cdef int failed
    if source.release == NULL:
        raise _released(data.name, "__arrow_c_stream__")
    if source.get_schema == NULL or source.get_next == NULL or source.get_last_error == NULL:
        raise ValueError(f"{data.name}: the Arrow stream is malformed: a function is missing")
    owner.stream = source[0]
    source.release = NULL
    with nogil:
        failed = stream.get_schema(stream, &data.root)
    if failed:
        memset(&data.root, 0, sizeof(ArrowSchema))
        raise _stream_error(data.name, stream, failed)
    data._check_schema()
    while True:
        array = _Array()
        with nogil:
            failed = stream.get_next(stream, &array.array)
        if failed:
            memset(&array.array, 0, sizeof(ArrowArray))
            raise _stream_error(data.name, stream, failed)
        if array.array.release == NULL:
            return 0
        data._arrays.append(array)
        data._add_root(&array.array)


cdef object _stream_error(str name, ArrowArrayStream *stream, int failed):
    cdef const char *text = stream.get_last_error(stream)
    cdef const char *reason = text if text != NULL else strerror(failed)
    return ValueError(f"{name}: the Arrow stream failed: {(<bytes>reason).decode(errors='replace')}")


native_only(ArrowData)
