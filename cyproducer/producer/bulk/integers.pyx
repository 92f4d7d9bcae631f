"""Reads arrays and lists of integers, and arrays of timestamps, as columns."""

from libc.stdint cimport int64_t, uint8_t

from cyproducer.producer.bulk.buffers cimport column_hint, column_of_buffer, exporter_of
from cyproducer.producer.bulk.columns cimport SEGMENT_FIXED, Column, Segment

from datetime import datetime
from operator import index as _index

from cyproducer.producer.bulk.columns import describe


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
