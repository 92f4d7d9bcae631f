"""Reads Arrow arrays, tables and streams as columns, through Arrow's C data interface and without pyarrow.

The rules are those of the specification (Arrow C data, C stream and PyCapsule interfaces). A structure is moved by
copying it and clearing the original's `release`; the copy's `release` is then called exactly once, here. An array's
`offset` counts elements in all its buffers. A struct's offset applies to its children too, in addition to their own.
"""

cimport cython
from cpython.pycapsule cimport PyCapsule_GetPointer
from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.stdlib cimport free, realloc
from libc.string cimport memset, strerror

from cyproducer.producer.bulk.columns cimport (
    SEGMENT_FIXED,
    SEGMENT_NULL,
    SEGMENT_OFFSETS32,
    SEGMENT_OFFSETS64,
    SEGMENT_VIEWS,
    Column,
    Segment,
    set_unit,
)
from cyproducer.producer.results.native_only cimport native_only

from cyproducer.producer.bulk.columns import describe

# Format strings of the specification: the type's name, and the bytes of an integer
_NAMES = {
    "n": "null", "b": "bool", "e": "float16", "f": "float32", "g": "float64",
    "z": "binary", "Z": "large_binary", "vz": "binary_view",
    "u": "string", "U": "large_string", "vu": "string_view",
    "tdD": "date32", "tdm": "date64",
    "+s": "struct", "+l": "list", "+L": "large_list", "+vl": "list_view", "+m": "map",
}
_INTEGERS = {
    "c": ("int8", 1), "C": ("uint8", 1), "s": ("int16", 2), "S": ("uint16", 2),
    "i": ("int32", 4), "I": ("uint32", 4), "l": ("int64", 8), "L": ("uint64", 8),
}
_UNITS = {"s": "s", "m": "ms", "u": "us", "n": "ns"}


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

    def __init__(self):
        raise TypeError("ArrowData cannot be created directly: arrow_data() creates it")

    def __dealloc__(self):
        if self.root.release != NULL:
            self.root.release(&self.root)
        free(self.pieces)

    cdef int _add_piece(self, ArrowArray *array, int64_t offset, int64_t rows) except -1:
        cdef Piece *grown = <Piece *>realloc(self.pieces, (self.piece_count + 1) * sizeof(Piece))
        if grown == NULL:
            raise MemoryError
        self.pieces = grown
        grown[self.piece_count] = Piece(array, offset, rows)
        self.piece_count += 1
        self.rows += rows
        return 0

    def format(self) -> str:
        """Return the format string of the type, as in the specification."""
        return self.schema.format.decode()

    def type_name(self) -> str:
        """Return the name of the type for messages."""
        cdef str spelling = self.format()
        if self.schema.dictionary != NULL:
            return "Arrow dictionary"
        if spelling in _INTEGERS:
            return f"Arrow {_INTEGERS[spelling][0]}"
        if spelling.startswith("w:"):
            return f"Arrow fixed_size_binary[{spelling[2:]}]"
        if spelling.startswith("ts"):
            return f"Arrow timestamp[{_UNITS.get(spelling[2:3], spelling)}]"
        return f"Arrow {_NAMES.get(spelling, f'type of format {spelling!r}')}"

    def is_struct(self) -> bool:
        """Return whether these are rows of named columns."""
        return self.format() == "+s"

    def child_names(self) -> list[str]:
        """Return the names of a struct's columns, in order."""
        cdef int64_t at
        return [
            "" if self.schema.children[at].name == NULL else (<bytes>self.schema.children[at].name).decode()
            for at in range(self.schema.n_children)
        ]

    cdef ArrowData _new_child(self, int64_t at, str name):
        """Return child `at` without any pieces."""
        cdef ArrowData child = ArrowData.__new__(ArrowData)
        child.schema = self.schema.children[at]
        child._parent = self
        child.name = name
        return child

    cdef ArrowData child(self, int64_t at, str name):
        """Return column `at` of a struct, with the same rows."""
        cdef ArrowData child = self._new_child(at, name)
        cdef Py_ssize_t piece
        cdef ArrowArray *array
        for piece in range(self.piece_count):
            array = self.pieces[piece].array.children[at]
            child._add_piece(array, self.pieces[piece].offset + array.offset, self.pieces[piece].rows)
        return child

    cdef ArrowData list_child(self, str name):
        """Return the elements of a list type: for each piece, all elements of its lists."""
        cdef ArrowData child = self._new_child(0, name)
        cdef Py_ssize_t piece
        cdef ArrowArray *array
        for piece in range(self.piece_count):
            array = self.pieces[piece].array.children[0]
            child._add_piece(array, array.offset, array.length)
        return child

    cdef bint is_null_at(self, Py_ssize_t piece, Py_ssize_t row) noexcept nogil:
        cdef const Piece *where = &self.pieces[piece]
        cdef const uint8_t *bits
        cdef int64_t bit = where.offset + row
        if where.array.null_count == 0 or where.array.n_buffers == 0 or where.array.buffers[0] == NULL:
            return False
        bits = <const uint8_t *>where.array.buffers[0]
        return not bits[bit >> 3] >> (bit & 7) & 1

    cdef Column column(self):
        """Return the rows as a column. Raise TypeError for a type that holds no bytes, integers or timestamps."""
        cdef str spelling = self.format(), name = self.type_name()
        cdef bint is_bytes = spelling in ("n", "z", "Z", "u", "U", "vz", "vu") or spelling.startswith("w:")
        cdef Column column
        cdef Py_ssize_t piece, width = 0
        if self.schema.dictionary != NULL:
            raise TypeError(f"{self.name}: {name} cannot be read; decode it (pyarrow: dictionary_decode())")
        column = Column(self.name, name, is_bytes)
        if spelling.startswith("w:"):
            width = int(spelling[2:])
        elif spelling in _INTEGERS:
            width = _INTEGERS[spelling][1]
            column.number = c"i" if spelling.islower() else c"u"
        elif spelling.startswith("ts"):
            width = 8
            column.number = c"i"
            set_unit(column, _UNITS[spelling[2:3]])
        elif not is_bytes:
            raise TypeError(
                f"{self.name}: {name} cannot be read here; expected a binary, string, integer or timestamp type"
            )
        column.keep(self)
        for piece in range(self.piece_count):
            if self.pieces[piece].rows:
                _add_segment(column, &self.pieces[piece], spelling, width)
        return column


cdef int _add_segment(Column column, const Piece *piece, str spelling, Py_ssize_t width) except -1:
    """Add the rows of one array, of a type that `ArrowData.column` accepts."""
    cdef const void **buffers = piece.array.buffers
    cdef Segment *segment
    if spelling == "n":
        column.add_segment(SEGMENT_NULL, piece.rows)
        return 0
    segment = column.add_segment(SEGMENT_FIXED, piece.rows)
    if piece.array.null_count != 0 and buffers[0] != NULL:
        segment.nullable = True
        segment.validity = <const uint8_t *>buffers[0]
        segment.validity_offset = piece.offset
    if width or spelling.startswith("w:"):
        segment.data = <const uint8_t *>buffers[1] + piece.offset * width
        segment.stride = segment.width = width
    elif spelling in ("vz", "vu"):
        segment.kind = SEGMENT_VIEWS
        segment.index = <const uint8_t *>buffers[1] + 16 * piece.offset
        segment.buffers = buffers + 2
    else:
        segment.data = <const uint8_t *>buffers[2]
        if spelling in ("z", "u"):
            segment.kind = SEGMENT_OFFSETS32
            segment.index = <const int32_t *>buffers[1] + piece.offset
        else:
            segment.kind = SEGMENT_OFFSETS64
            segment.index = <const int64_t *>buffers[1] + piece.offset
    return 0


cdef ArrowData arrow_data_or_none(object source, str name):
    """Return what `source` exports, or None if it has no Arrow interface."""
    if hasattr(type(source), "__arrow_c_array__") or hasattr(type(source), "__arrow_c_stream__"):
        return arrow_data(source, name)
    return None


cdef ArrowData arrow_data(object source, str name):
    """Take what `source` exports through `__arrow_c_array__` or `__arrow_c_stream__`. Raise TypeError if neither."""
    cdef ArrowData data = ArrowData.__new__(ArrowData)
    data.name = name
    data._arrays = []
    if hasattr(type(source), "__arrow_c_array__"):
        _take_array(data, source.__arrow_c_array__())
    elif hasattr(type(source), "__arrow_c_stream__"):
        _take_stream(data, source.__arrow_c_stream__())
    else:
        raise TypeError(
            f"{name}: expected something with __arrow_c_stream__ or __arrow_c_array__ "
            f"(a table or record batch of pyarrow, polars, ...), got {describe(source)}"
        )
    data.schema = &data.root
    return data


cdef int _take_array(ArrowData data, object capsules) except -1:
    """Move the structures out of a pair of capsules (schema, array)."""
    cdef ArrowSchema *schema = <ArrowSchema *>PyCapsule_GetPointer(capsules[0], "arrow_schema")
    cdef ArrowArray *array = <ArrowArray *>PyCapsule_GetPointer(capsules[1], "arrow_array")
    cdef _Array owner = _Array()
    data.root = schema[0]
    schema.release = NULL
    owner.array = array[0]
    array.release = NULL
    data._arrays.append(owner)
    data._add_piece(&owner.array, owner.array.offset, owner.array.length)
    return 0


cdef int _take_stream(ArrowData data, object capsule) except -1:
    """Read a stream to its end. Release the GIL, because another Python thread may fill the stream."""
    cdef ArrowArrayStream *source = <ArrowArrayStream *>PyCapsule_GetPointer(capsule, "arrow_array_stream")
    cdef _Stream owner = _Stream()
    cdef ArrowArrayStream *stream = &owner.stream
    cdef _Array array
    cdef int failed
    owner.stream = source[0]
    source.release = NULL
    with nogil:
        failed = stream.get_schema(stream, &data.root)
    if failed:
        raise _stream_error(data.name, stream, failed)
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
        data._add_piece(&array.array, array.array.offset, array.array.length)


cdef object _stream_error(str name, ArrowArrayStream *stream, int failed):
    cdef const char *text = stream.get_last_error(stream)
    cdef const char *reason = text if text != NULL else strerror(failed)
    return ValueError(f"{name}: the Arrow stream failed: {(<bytes>reason).decode(errors='replace')}")


native_only(ArrowData)
