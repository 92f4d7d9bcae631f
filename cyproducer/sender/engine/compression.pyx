"""Compresses batches in the sender: lingering and merged ones, and full ones that the front-end did not compress.

A front-end may compress a full batch and store the result beside it: the offer. Entries, bodies and chunks always hold
the uncompressed records, and a successor finds only these. The compressed records are private memory, made before the
first attempt and kept for the next ones, so no front-end can change them. Records that do not become smaller are sent
uncompressed. Compression calls a library that needs the GIL.

Compression may take long (zstd at level 19: 40 ms for 64 KiB), and all batches of a host pass this loop. One loop
iteration starts no further compression after it has spent PACKING_NS. The remaining batches wait for the next
iteration; batches that need no compression do not wait.
"""


cdef enum:
    PACKING_NS = 5000000            # per loop iteration
    CODEC_ZSTD = 4
    ZSTD_FROM = 7                   # version of Produce; older brokers refuse zstd
    WORTHWHILE_BYTES = 64           # fewer bytes do not become smaller

cdef dict _compressors = {}         # (codec, level) -> function
cdef dict _NAMES = {number: name for name, number in CODES.items()}
_log = logging.getLogger("cyproducer.sender")


cdef void pack(Core *core, WireBatch *wire) noexcept nogil:
    """Compress the records of a wire batch that has a codec and is not compressed yet."""
    cdef uint8_t *gathered = NULL
    cdef uint8_t *records
    cdef ClientBatch *batch
    cdef uint32_t offered
    cdef uint64_t began
    if wire.entry.length < WORTHWHILE_BYTES or _is_too_old(wire):
        wire.compression.codec = 0
        return
    batch = core.contributor_batches[wire.entry.contributors]
    records = wire.wire.body if wire.wire.body != NULL else wire.wire.copy
    offered = _offered(batch) if records == NULL else <uint32_t>CYP_NONE
    if offered != CYP_NONE:
        _copy_offer(batch, wire, offered)
    else:
        if records == NULL:
            records = _contiguous(batch, &gathered)
        if records != NULL:
            began = monotonic_ns()
            with gil:
                _compress(wire, records)
            core.compression.packing_ns += monotonic_ns() - began
        free(gathered)
    if wire.compression.packed == NULL:
        wire.compression.codec = 0


cdef bint must_postpone(Core *core, ClientBatch *batch) noexcept nogil:
    """Return whether the batch must wait for the next loop iteration to be compressed. If so, that comes at once.

    The front-end has a codec.
    """
    if core.compression.packing_ns < PACKING_NS \
            or (batch.intake.state == BATCH_CLOSED and _offered(batch) != CYP_NONE):
        return False
    schedule_timer(core, core.loop.now)
    return True


cdef bint must_postpone_wire(Core *core, const WireBatch *wire) noexcept nogil:
    """Return the same as must_postpone(), for a batch that has its sequence."""
    if wire.compression.codec == 0 or wire.compression.packed != NULL or core.compression.packing_ns < PACKING_NS:
        return False
    schedule_timer(core, core.loop.now)
    return True


cdef bint _is_too_old(WireBatch *wire) noexcept nogil:
    """Return whether the broker is too old for the codec of the wire batch."""
    return wire.compression.codec == CODEC_ZSTD and (
        wire.lane.drain.leader == NULL or wire.lane.drain.leader.connections.produce_version < ZSTD_FROM
    )


cdef uint32_t _offered(ClientBatch *batch) noexcept nogil:
    """Return the first slot of the compressed records that the front-end stored beside the batch, or CYP_NONE."""
    cdef FrontEnd *front_end = batch.front_end
    cdef uint32_t slot = batch.slot
    while front_end.chunk_next[slot] != CYP_NONE:
        slot = front_end.chunk_next[slot]
    slot = slot_offered(&front_end.rows[slot])
    # it may also be a chunk in which the front-end wanted to continue the batch
    if slot >= front_end.slot_count or not row_is_written(front_end, slot) \
            or load_relaxed(&front_end.rows[slot].open_seq) != batch.open_seq \
            or load_relaxed32(&front_end.rows[slot].chunk_bytes) != batch.intake.bytes:
        return CYP_NONE
    return slot


cdef uint64_t sent_bytes(ClientBatch *batch) noexcept nogil:
    """Return the size of a sealed batch as it is sent, unless the sender will compress it: then its present size."""
    cdef FrontEnd *front_end = batch.front_end
    cdef uint32_t slot = _offered(batch) if front_end.codec else <uint32_t>CYP_NONE
    cdef uint64_t size = 0
    cdef uint32_t piece
    while slot < front_end.slot_count and row_is_written(front_end, slot):
        piece = load_relaxed32(&front_end.rows[slot].max_count)
        size += piece
        slot = load_relaxed32(&front_end.rows[slot].next)
        if slot == CYP_NONE:
            return min(size, <uint64_t>batch.intake.bytes)
        if piece < CYP_UNIT_BYTES or size >= batch.intake.bytes:
            break  # all but the last are full: a circular chain ends soon
    return batch.intake.bytes


cdef void _copy_offer(ClientBatch *batch, WireBatch *wire, uint32_t slot) noexcept nogil:
    """Copy the compressed records of the front-end. An invalid offer is ignored: the batch is sent uncompressed.

    A broker decompresses and checks every record of such a batch, so wrong records only hurt their own front-end.
    """
    cdef FrontEnd *front_end = batch.front_end
    cdef cyp_slot_row *row
    cdef uint8_t *packed = <uint8_t *>malloc(batch.intake.bytes)
    cdef uint8_t *trimmed
    cdef uint32_t piece
    cdef uint64_t size = 0
    while packed != NULL and slot < front_end.slot_count:
        row = &front_end.rows[slot]
        if not row_is_written(front_end, slot):
            break
        piece = load_relaxed32(&row.max_count)
        if load_relaxed(&row.open_seq) != batch.open_seq or piece == 0 or piece > CYP_BLOCK_BYTES \
                or piece > (front_end.slot_count - slot) * <uint64_t>CYP_UNIT_BYTES \
                or size + piece >= batch.intake.bytes:
            break
        if not chunk_is_written(front_end, slot, piece):
            break
        memcpy(packed + size, front_end.chunks + <uint64_t>slot * CYP_UNIT_BYTES, piece)
        size += piece
        slot = load_relaxed32(&row.next)
        if slot == CYP_NONE:
            trimmed = <uint8_t *>realloc(packed, size)
            wire.compression.packed = packed if trimmed == NULL else trimmed
            wire.compression.packed_bytes = <uint32_t>size
            return
        if piece < CYP_UNIT_BYTES:
            break  # all but the last are full: a circular chain ends soon
    free(packed)


cdef uint8_t *_contiguous(ClientBatch *batch, uint8_t **gathered) noexcept nogil:
    """Return the records of one batch in one piece; NULL without memory. The caller frees `gathered`."""
    cdef FrontEnd *front_end = batch.front_end
    cdef uint32_t slot = batch.slot
    cdef uint64_t at = 0
    if front_end.chunk_bytes[slot] == batch.intake.bytes:
        return front_end.chunks + <uint64_t>slot * CYP_UNIT_BYTES
    gathered[0] = <uint8_t *>malloc(batch.intake.bytes)
    if gathered[0] == NULL:
        return NULL
    while slot != CYP_NONE:
        memcpy(gathered[0] + at, front_end.chunks + <uint64_t>slot * CYP_UNIT_BYTES, front_end.chunk_bytes[slot])
        at += front_end.chunk_bytes[slot]
        slot = front_end.chunk_next[slot]
    return gathered[0]


cdef void _compress(WireBatch *wire, uint8_t *records) noexcept:
    """Compress `records` into wire.compression.packed if they become smaller."""
    cdef Py_buffer packed
    try:
        compress = _compressor(wire.compression.codec, wire.level)
        if compress is None:
            return
        view = PyMemoryView_FromMemory(<char *>records, wire.entry.length, PyBUF_READ)
        PyObject_GetBuffer(compress(view), &packed, PyBUF_SIMPLE)
    except Exception as error:
        _log.error("batch sent uncompressed: compressing it with %s failed: %s", _NAMES[wire.compression.codec], error)
        return
    if packed.len < <Py_ssize_t>wire.entry.length:
        wire.compression.packed = <uint8_t *>malloc(packed.len)
        if wire.compression.packed != NULL:
            memcpy(wire.compression.packed, packed.buf, packed.len)
            wire.compression.packed_bytes = <uint32_t>packed.len
    PyBuffer_Release(&packed)


cdef object _compressor(int codec, int32_t level):
    """Return the compression function; None if its library is missing, which is logged once."""
    key = (codec, level)
    if key not in _compressors:
        try:
            _compressors[key] = compressor(_NAMES[codec], None if level == INT32_MIN else level)
        except ImportError as error:
            _compressors[key] = None
            _log.error("batches of %s are sent uncompressed: install cramjam for the sender (%s)", _NAMES[codec], error)
    return _compressors[key]


cdef inline void free_packed(WireBatch *wire) noexcept nogil:
    """Free the private copy of the compressed records."""
    free(wire.compression.packed)
    wire.compression.packed = NULL
