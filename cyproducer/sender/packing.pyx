"""Compression of what the sender puts together: lingering, merged, and full batches without their owner's offer.

The raw records stay the truth: entries, bodies and chunks hold them, and a successor finds nothing else. The packed
ones are private, made before the first attempt and kept for the next ones, so no front-end can change them. What
does not become smaller goes out as it is. Compressing calls a library that needs the GIL.

It may take long (zstd at level 19: 40 ms for 64 KiB), and all batches of a host go through this loop. A turn spends
PACKING_NS and one batch on it, then the rest waits for the next turn, and all that needs no compression goes before.
"""

import logging

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.memoryview cimport PyMemoryView_FromMemory
from libc.stdint cimport INT32_MIN, int32_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcpy

from cyproducer.sender.model cimport BATCH_CLOSED, Batch, Core, FrontEnd, Wire
from cyproducer.sender.partitions cimport note_timer
from cyproducer.shm.atomics cimport load_relaxed, load_relaxed32
from cyproducer.shm.clock cimport monotonic_ns
from cyproducer.shm.layout cimport CYP_BLOCK_BYTES, CYP_NONE, CYP_UNIT_BYTES, cyp_slot_row
from cyproducer.shm.slot cimport slot_offered

from cyproducer.record.compression import CODES, compressor

cdef extern from "Python.h":
    enum:
        PyBUF_READ

cdef enum:
    PACKING_NS = 5000000            # of a turn
    CODEC_ZSTD = 4
    ZSTD_FROM = 7                   # version of Produce; older brokers refuse it
    WORTHWHILE_BYTES = 64           # fewer do not become smaller

cdef dict _compressors = {}         # (codec, level) -> function
cdef dict _NAMES = {number: name for name, number in CODES.items()}
_log = logging.getLogger("cyproducer.sender")


cdef void pack(Core *core, Wire *wire) noexcept nogil:
    """Compresses the wire's records, if its front-end wants that and it was not done; else they stay as they are."""
    cdef uint8_t *gathered = NULL
    cdef uint8_t *records
    cdef Batch *batch
    cdef uint32_t offered
    cdef uint64_t began
    if wire.codec == 0 or wire.packed != NULL:
        return
    if wire.entry.length < WORTHWHILE_BYTES or _is_too_old(wire):
        wire.codec = 0
        return
    batch = core.contributor_batches[wire.entry.contributors]
    records = wire.body if wire.body != NULL else wire.copy
    offered = _offered(batch) if records == NULL else <uint32_t>CYP_NONE
    if offered != CYP_NONE:
        _take_offer(batch, wire, offered)
    else:
        if records == NULL:
            records = _contiguous(batch, &gathered)
        if records != NULL:
            began = monotonic_ns()
            with gil:
                _compress(wire, records)
            core.packing_ns += monotonic_ns() - began
        free(gathered)
    if wire.packed == NULL:
        wire.codec = 0


cdef bint has_time(const Core *core, const FrontEnd *front_end) noexcept nogil:
    """May a batch of the front-end be compressed in this turn, if it has to be?"""
    return front_end.codec == 0 or core.packing_ns < PACKING_NS


cdef bint put_off(Core *core, Batch *batch) noexcept nogil:
    """Would a batch have to be compressed in a turn that has done so for long enough? The next comes at once."""
    if has_time(core, batch.front_end) or (batch.state == BATCH_CLOSED and _offered(batch) != CYP_NONE):
        return False
    note_timer(core, core.now)
    return True


cdef bint put_off_wire(Core *core, const Wire *wire) noexcept nogil:
    """As put_off, of a batch that has its sequence."""
    if wire.codec == 0 or wire.packed != NULL or core.packing_ns < PACKING_NS:
        return False
    note_timer(core, core.now)
    return True


cdef bint _is_too_old(Wire *wire) noexcept nogil:
    return wire.codec == CODEC_ZSTD and (
        wire.partition.leader == NULL or wire.partition.leader.produce_version < ZSTD_FROM
    )


cdef uint32_t _offered(Batch *batch) noexcept nogil:
    """Where the compressed records begin that the batch's owner has put beside it; CYP_NONE."""
    cdef FrontEnd *front_end = batch.front_end
    cdef uint32_t slot = batch.slot
    while front_end.chunk_next[slot] != CYP_NONE:
        slot = front_end.chunk_next[slot]
    slot = slot_offered(&front_end.rows[slot])
    # It may also be a chunk that the owner wanted to go on in.
    if slot >= front_end.slot_count or load_relaxed(&front_end.rows[slot].open_seq) != batch.open_seq \
            or load_relaxed32(&front_end.rows[slot].chunk_bytes) != batch.bytes:
        return CYP_NONE
    return slot


cdef void _take_offer(Batch *batch, Wire *wire, uint32_t slot) noexcept nogil:
    """Copies what its owner has compressed. What is no honest offer is not: the batch goes out as it is.

    A broker decompresses and checks every record of such a batch, so nobody but the owner is hurt by a wrong one.
    """
    cdef FrontEnd *front_end = batch.front_end
    cdef cyp_slot_row *row
    cdef uint8_t *packed = <uint8_t *>malloc(batch.bytes)
    cdef uint8_t *trimmed
    cdef uint32_t piece
    cdef uint64_t size = 0
    while packed != NULL and slot < front_end.slot_count:
        row = &front_end.rows[slot]
        piece = load_relaxed32(&row.max_count)
        if load_relaxed(&row.open_seq) != batch.open_seq or piece == 0 or piece > CYP_BLOCK_BYTES \
                or piece > (front_end.slot_count - slot) * <uint64_t>CYP_UNIT_BYTES or size + piece >= batch.bytes:
            break
        memcpy(packed + size, front_end.chunks + <uint64_t>slot * CYP_UNIT_BYTES, piece)
        size += piece
        slot = load_relaxed32(&row.next)
        if slot == CYP_NONE:
            trimmed = <uint8_t *>realloc(packed, size)
            wire.packed = packed if trimmed == NULL else trimmed
            wire.packed_bytes = <uint32_t>size
            return
        if piece < CYP_UNIT_BYTES:
            break  # all but the last are full: a chain in a circle ends soon
    free(packed)


cdef uint8_t *_contiguous(Batch *batch, uint8_t **gathered) noexcept nogil:
    """The records of one batch in one piece; `gathered` is to be freed. NULL without memory."""
    cdef FrontEnd *front_end = batch.front_end
    cdef uint32_t slot = batch.slot
    cdef uint64_t at = 0
    if front_end.chunk_bytes[slot] == batch.bytes:
        return front_end.chunks + <uint64_t>slot * CYP_UNIT_BYTES
    gathered[0] = <uint8_t *>malloc(batch.bytes)
    if gathered[0] == NULL:
        return NULL
    while slot != CYP_NONE:
        memcpy(gathered[0] + at, front_end.chunks + <uint64_t>slot * CYP_UNIT_BYTES, front_end.chunk_bytes[slot])
        at += front_end.chunk_bytes[slot]
        slot = front_end.chunk_next[slot]
    return gathered[0]


cdef void _compress(Wire *wire, uint8_t *records) noexcept:
    """Fills in wire.packed if the records become smaller."""
    cdef Py_buffer packed
    try:
        compress = _compressor(wire.codec, wire.level)
        if compress is None:
            return
        view = PyMemoryView_FromMemory(<char *>records, wire.entry.length, PyBUF_READ)
        PyObject_GetBuffer(compress(view), &packed, PyBUF_SIMPLE)
    except Exception as error:
        _log.error("a batch of %s goes out as it is: it cannot be compressed: %s", _NAMES[wire.codec], error)
        return
    if packed.len < <Py_ssize_t>wire.entry.length:
        wire.packed = <uint8_t *>malloc(packed.len)
        if wire.packed != NULL:
            memcpy(wire.packed, packed.buf, packed.len)
            wire.packed_bytes = <uint32_t>packed.len
    PyBuffer_Release(&packed)


cdef object _compressor(int codec, int32_t level):
    """The function; None, said once, where the library is missing."""
    key = (codec, level)
    if key not in _compressors:
        try:
            _compressors[key] = compressor(_NAMES[codec], None if level == INT32_MIN else level)
        except ImportError as error:
            _compressors[key] = None
            _log.error("batches of %s go out as they are: install cramjam for the sender (%s)", _NAMES[codec], error)
    return _compressors[key]
