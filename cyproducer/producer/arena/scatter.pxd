"""Writes one record over several chunks, for records that are larger than a chunk."""

from libc.stdint cimport int32_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy

from cyproducer.record.encode cimport RecordView, view_body_size
from cyproducer.record.varint cimport put_varint
from cyproducer.shm.protocol cimport CYP_UNIT_BYTES
from cyproducer.shm.pool cimport class_bytes


ctypedef struct Scatter:
    uint8_t *chunks                 # start of the chunk area
    const uint32_t *slots           # the chunks, in order
    const uint8_t *classes          # of each slot that starts a chunk
    uint8_t *at
    Py_ssize_t room                 # bytes left in the chunk at `at`


cdef inline void scatter_next(Scatter *out) noexcept nogil:
    """Move to the start of the next chunk."""
    out.at = out.chunks + <uint64_t>out.slots[0] * CYP_UNIT_BYTES
    out.room = class_bytes(out.classes[out.slots[0]])
    out.slots += 1


cdef inline void scatter_bytes(Scatter *out, const uint8_t *data, Py_ssize_t size) noexcept nogil:
    cdef Py_ssize_t piece
    while size > 0:
        if out.room == 0:
            scatter_next(out)
        piece = min(size, out.room)
        memcpy(out.at, data, piece)
        out.at += piece
        out.room -= piece
        data += piece
        size -= piece


cdef inline void scatter_varint(Scatter *out, int32_t number) noexcept nogil:
    cdef uint8_t encoded[5]
    scatter_bytes(out, encoded, put_varint(encoded, number) - encoded)


cdef inline void scatter_nullable(Scatter *out, const uint8_t *data, Py_ssize_t size) noexcept nogil:
    scatter_varint(out, -1 if size < 0 else <int32_t>size)
    scatter_bytes(out, data, size)


cdef inline void scatter_record(Scatter *out, const RecordView *record) noexcept nogil:
    """Write the only record of a batch: both deltas are 0. `out.room` must be 0 at first."""
    cdef uint8_t zero[3]
    cdef int i
    zero[0] = zero[1] = zero[2] = 0  # attributes, timestamp delta, offset delta
    scatter_varint(out, <int32_t>view_body_size(0, 0, record))
    scatter_bytes(out, zero, 3)
    scatter_nullable(out, record.key, record.key_length)
    scatter_nullable(out, record.value, record.value_length)
    scatter_varint(out, record.header_count)
    for i in range(record.header_count):
        scatter_nullable(out, record.headers[i].key, record.headers[i].key_length)
        scatter_nullable(out, record.headers[i].value, record.headers[i].value_length)
