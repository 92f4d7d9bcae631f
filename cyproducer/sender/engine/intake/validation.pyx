"""Checks that a sealed batch holds valid records, as many as its front-end has declared, in memory that it has written.

A broker trusts what the sender's CRC covers, and it does not check everything that consumers rely on. So a batch that
is sent as its front-end built it is walked once, just before its CRC is computed. A merged batch was checked while its
records were copied.
"""

from libc.stdint cimport uint8_t, uint32_t, uint64_t

from cyproducer.record.check cimport check_records
from cyproducer.sender.engine.state.model cimport ClientBatch, FrontEnd
from cyproducer.sender.engine.state.written cimport chunk_is_written
from cyproducer.shm.layout cimport CYP_NONE, CYP_UNIT_BYTES


ctypedef struct RecordCursor:
    # the read position in a record that lies in several chunks
    FrontEnd *front_end
    uint32_t slot
    uint32_t at
    uint64_t left


cdef bint chunks_are_written(ClientBatch *batch) noexcept nogil:
    """Return whether the chunks of a sealed batch may be read, see written.pxd."""
    cdef FrontEnd *front_end = batch.front_end
    cdef uint32_t slot = batch.slot if front_end.is_stranger else <uint32_t>CYP_NONE
    while slot != CYP_NONE:
        if not chunk_is_written(front_end, slot, front_end.chunk_bytes[slot]):
            return False
        slot = front_end.chunk_next[slot]
    return True


cdef bint well_formed(ClientBatch *batch) noexcept nogil:
    """Return whether the batch's chunks hold exactly the declared records. Store the size of the largest one."""
    cdef FrontEnd *front_end = batch.front_end
    cdef uint32_t slot = batch.slot, first = 0
    batch.largest = 0
    if batch.count == 1 and front_end.chunk_bytes[slot] < batch.bytes:
        batch.largest = batch.bytes
        return _one_record(batch)
    while slot != CYP_NONE:
        if not check_records(
            front_end.chunks + <uint64_t>slot * CYP_UNIT_BYTES,
            front_end.chunk_bytes[slot],
            front_end.chunk_count[slot],
            first,
            &batch.largest,
        ):
            return False
        first += front_end.chunk_count[slot]
        slot = front_end.chunk_next[slot]
    return True


cdef bint _one_record(ClientBatch *batch) noexcept nogil:
    """Return whether a chain of several chunks holds exactly one record."""
    cdef RecordCursor cursor
    cdef uint64_t raw = 0
    cursor.front_end = batch.front_end
    cursor.slot = batch.slot
    cursor.at = 0
    cursor.left = batch.bytes
    if not _varint(&cursor, 32, &raw) or raw != cursor.left << 1:
        return False
    if _byte(&cursor) != 0:  # attributes
        return False
    if not _varint(&cursor, 64, &raw) or not _varint(&cursor, 32, &raw) or raw != 0:  # timestamp delta, offset delta
        return False
    if not _field(&cursor, True) or not _field(&cursor, True) or not _varint(&cursor, 32, &raw) or raw & 1:
        return False
    raw >>= 1
    while raw:
        raw -= 1
        if not _field(&cursor, False) or not _field(&cursor, True):
            return False
    return cursor.left == 0


cdef int _byte(RecordCursor *cursor) noexcept nogil:
    """Return the next byte, read once; -1 at the end."""
    cdef FrontEnd *front_end = cursor.front_end
    if cursor.left == 0 or not _enter(cursor):
        return -1
    cursor.left -= 1
    cursor.at += 1
    return (<const volatile uint8_t *>(front_end.chunks + <uint64_t>cursor.slot * CYP_UNIT_BYTES))[cursor.at - 1]


cdef bint _enter(RecordCursor *cursor) noexcept nogil:
    """Go to the chunk that has the next byte. Return False at the end."""
    while cursor.at == cursor.front_end.chunk_bytes[cursor.slot]:
        cursor.slot = cursor.front_end.chunk_next[cursor.slot]
        cursor.at = 0
        if cursor.slot == CYP_NONE:
            return False
    return True


cdef bint _varint(RecordCursor *cursor, int bits, uint64_t *value) noexcept nogil:
    """Read a varint of at most `bits` bits into `value`. Return False if it is malformed."""
    cdef int shift = 0, byte
    value[0] = 0
    while shift < bits:
        byte = _byte(cursor)
        if byte < 0 or (bits - shift < 7 and (byte & 0x7f) >> (bits - shift)):
            return False
        value[0] |= <uint64_t>(byte & 0x7f) << shift
        if byte < 0x80:
            return byte > 0 or shift == 0
        shift += 7
    return False


cdef bint _field(RecordCursor *cursor, bint null) noexcept nogil:
    """Skip a length and that many bytes. Return False if they are malformed. `null`: the length may be -1."""
    cdef uint64_t raw = 0, step
    if not _varint(cursor, 32, &raw):
        return False
    if raw & 1:
        return null and raw == 1
    raw >>= 1
    if raw > cursor.left:
        return False
    while raw:
        if not _enter(cursor):
            return False
        step = min(raw, <uint64_t>(cursor.front_end.chunk_bytes[cursor.slot] - cursor.at))
        cursor.at += <uint32_t>step
        cursor.left -= step
        raw -= step
    return True
