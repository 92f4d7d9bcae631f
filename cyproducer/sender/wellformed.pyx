"""Does a sealed batch hold records, and as many as its front-end has said?

The sender's CRC makes a broker trust what it covers, and a broker does not look at everything that consumers rely
on. So a batch that goes out as its front-end built it is walked once, just before its CRC is computed; a merged
one was checked while it was copied.
"""

from libc.stdint cimport uint8_t, uint32_t, uint64_t

from cyproducer.record.check cimport check_records
from cyproducer.shm.layout cimport CYP_NONE, CYP_UNIT_BYTES
from cyproducer.sender.model cimport Batch, FrontEnd


ctypedef struct Spread:
    # a record that lies in several chunks, as far as it was read
    FrontEnd *front_end
    uint32_t slot
    uint32_t at
    uint64_t left


cdef bint well_formed(Batch *batch) noexcept nogil:
    cdef FrontEnd *front_end = batch.front_end
    cdef uint32_t slot = batch.slot, first = 0
    if batch.count == 1 and front_end.chunk_bytes[slot] < batch.bytes:
        return _one_record(batch)
    while slot != CYP_NONE:
        if not check_records(
            front_end.chunks + <uint64_t>slot * CYP_UNIT_BYTES,
            front_end.chunk_bytes[slot],
            front_end.chunk_count[slot],
            first,
        ):
            return False
        first += front_end.chunk_count[slot]
        slot = front_end.chunk_next[slot]
    return True


cdef bint _one_record(Batch *batch) noexcept nogil:
    """A record that fills a chain of chunks alone."""
    cdef Spread spread
    cdef uint64_t raw = 0
    spread.front_end = batch.front_end
    spread.slot = batch.slot
    spread.at = 0
    spread.left = batch.bytes
    if not _varint(&spread, 32, &raw) or raw != spread.left << 1:
        return False
    if _byte(&spread) != 0:  # attributes
        return False
    if not _varint(&spread, 64, &raw) or not _varint(&spread, 32, &raw) or raw != 0:  # timestamp delta, offset delta
        return False
    if not _field(&spread, True) or not _field(&spread, True) or not _varint(&spread, 32, &raw) or raw & 1:
        return False
    raw >>= 1
    while raw:
        raw -= 1
        if not _field(&spread, False) or not _field(&spread, True):
            return False
    return spread.left == 0


cdef int _byte(Spread *spread) noexcept nogil:
    """The next byte, read once; -1 behind the end."""
    cdef FrontEnd *front_end = spread.front_end
    if spread.left == 0 or not _enter(spread):
        return -1
    spread.left -= 1
    spread.at += 1
    return (<const volatile uint8_t *>(front_end.chunks + <uint64_t>spread.slot * CYP_UNIT_BYTES))[spread.at - 1]


cdef bint _enter(Spread *spread) noexcept nogil:
    """To the chunk where the next byte is."""
    while spread.at == spread.front_end.chunk_bytes[spread.slot]:
        spread.slot = spread.front_end.chunk_next[spread.slot]
        spread.at = 0
        if spread.slot == CYP_NONE:
            return False
    return True


cdef bint _varint(Spread *spread, int bits, uint64_t *value) noexcept nogil:
    cdef int shift = 0, byte
    value[0] = 0
    while shift < bits:
        byte = _byte(spread)
        if byte < 0 or (bits - shift < 7 and (byte & 0x7f) >> (bits - shift)):
            return False
        value[0] |= <uint64_t>(byte & 0x7f) << shift
        if byte < 0x80:
            return byte > 0 or shift == 0
        shift += 7
    return False


cdef bint _field(Spread *spread, bint null) noexcept nogil:
    """Steps over a length and so many bytes."""
    cdef uint64_t raw = 0, step
    if not _varint(spread, 32, &raw):
        return False
    if raw & 1:
        return null and raw == 1
    raw >>= 1
    if raw > spread.left:
        return False
    while raw:
        if not _enter(spread):
            return False
        step = min(raw, <uint64_t>(spread.front_end.chunk_bytes[spread.slot] - spread.at))
        spread.at += <uint32_t>step
        spread.left -= step
        raw -= step
    return True
