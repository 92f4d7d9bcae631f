"""Reads (data, offsets) pairs as columns: row i is data[offsets[i]:offsets[i + 1]]."""

from cpython.buffer cimport PyBUF_C_CONTIGUOUS, PyBUF_FORMAT, PyObject_CheckBuffer
from libc.stdint cimport int64_t

from cyproducer.producer.bulk.buffers cimport Buffer, buffer_of, format_of, is_masked_array, refuse_objects
from cyproducer.producer.bulk.columns cimport SEGMENT_OFFSETS64, Column, Memory, Segment, refuse_timestamps
from cyproducer.producer.bulk.integers cimport column_of_integers

from cyproducer.producer.bulk.columns import describe


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
