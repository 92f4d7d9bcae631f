"""Reads arrays in memory through the buffer protocol (PEP 3118) as columns: those of NumPy and of others.

NumPy is not imported. Masks and time units are read through attributes. Only masks and rows that are not contiguous are
copied. A value of a fixed-width dtype is all `itemsize` bytes of the element as they are in memory. So an `S` element
keeps its padding NUL bytes, which NumPy hides when it makes an object of the element. To send values without the
padding, give `list(array)` or an Arrow array.
"""

cimport cython
from cpython.buffer cimport PyBUF_RECORDS_RO, PyBuffer_Release, PyObject_CheckBuffer, PyObject_GetBuffer
from libc.stdint cimport uint8_t

from cyproducer.producer.arena.send_arguments cimport holds_addresses
from cyproducer.producer.bulk.columns cimport SEGMENT_FIXED, Column, Segment, set_unit

import sys

from cyproducer.producer.bulk.columns import describe

cdef str _OTHER_ENDIAN = ">!" if sys.byteorder == "little" else "<"


@cython.final
cdef class Buffer:
    """An acquired Py_buffer."""

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
