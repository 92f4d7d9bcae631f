"""Compresses the batches that a process fills to the limit, on the CPU of that process.

The batch is closed first and belongs to the sender, with its raw records. The compressed records are offered beside it,
in extra chunks that are freed with the batch. The sender compresses the raw records itself if it finds no others: the
batch's linger time ended earlier, the arena had no space, or the sender has taken over from another one. So no batch
waits longer than without compression here, and a process that dies in between loses nothing. A record that is a batch
of its own is compressed before it is written.

Only fast compression is left to the sender, because other front-ends wait while the sender compresses.

A batch may have more than batch_size bytes of records if they are expected to become batch_size bytes. As in Kafka's
producer (CompressionRatioEstimator), the expected ratio of a topic falls slowly and rises at once.
"""


cdef enum:
    LEFT_NS = 5000000           # a batch may be left to the sender if compressing one takes less than this
    RAW_NS = 10000000           # a batch has no more records than this process compresses in this time

cdef double RATIO_FALLS = 0.005         # most per batch
cdef double RATIO_RISES = 0.05          # at least, per batch
cdef double SAFETY_FACTOR = 1.05        # the next batch may be compressed less well


cdef int pack_closed(Arena arena) except -1:
    """Compress the batch that was closed full, if there is one, and announce it.

    The GIL may be released, and a signal handler may raise: call this before the commit of a record, and look up the
    session, topic and chain again afterwards.
    """
    cdef uint32_t head = arena.closed_head, generation = arena.closed_generation
    cdef Topic topic = arena.closed_topic
    if head == CYP_NONE:
        return 0
    arena.closed_head = CYP_NONE
    arena.closed_topic = None
    try:
        if not _leave_to_sender(arena, head, generation):
            _pack(arena, topic, head, generation)
    finally:
        # Other threads may have run: the sender may be gone, or the batch may be finished.
        if _is_there(arena, head, generation):
            arena.given_head, arena.given_generation = head, generation
            announce(&arena.port, CYP_SUBMIT_FULL, head, generation, 0)
    return 0


cdef bint _leave_to_sender(Arena arena, uint32_t head, uint32_t generation) noexcept:
    """Return whether the sender has little work and should compress this batch. Note the batch as left to the sender.

    At most LEFT_MAX of the batches left to the sender may be unsent: the sender compresses one of them while this
    process fills and compresses the next. If none is unsent, the sender must have sent the batch that was announced
    last, or be asleep: then the announcement has to wake it.
    """
    cdef int i, place = -1, unsent = 0
    if not 0 < arena.compress_ns < LEFT_NS:
        return False
    for i in range(LEFT_MAX):
        if _is_sent(arena, arena.left_heads[i], arena.left_generations[i]):
            place = i
        else:
            unsent += 1
    if place < 0 or unsent == 0 and not sender_asleep(arena.port.snapshot) \
            and not _is_sent(arena, arena.given_head, arena.given_generation):
        return False
    arena.left_heads[place], arena.left_generations[place] = head, generation
    return True


cdef bint _is_sent(Arena arena, uint32_t head, uint32_t generation) noexcept:
    return not is_alive(arena) or not arena.is_waiting(head, generation)


cdef bint _is_there(Arena arena, uint32_t head, uint32_t generation) noexcept:
    return is_alive(arena) and arena.slots[head].generation == generation


cdef int _pack(Arena arena, Topic topic, uint32_t head, uint32_t generation) except -1:
    cdef const uint8_t[::1] packed
    raw = _copy_records(arena, head)  # a copy: the arena may be unmapped while the compression library reads
    packed = _compressed(arena, raw)
    if arena.compress is not None:
        _learn(arena, topic, len(raw), packed.shape[0] if packed is not None else len(raw))
    if packed is not None and _is_there(arena, head, generation):
        arena.offer(head, <uint32_t>len(raw), &packed[0], packed.shape[0])
    return 0


cdef void _learn(Arena arena, Topic topic, Py_ssize_t raw_bytes, Py_ssize_t packed_bytes) noexcept:
    """Update the topic's expected ratio, and the size of its next batches.

    A process that compresses slowly gets smaller batches: the sender compresses those that it does not fill in time.
    """
    cdef double observed = <double>packed_bytes / <double>raw_bytes
    cdef double ratio = topic.compression_ratio
    cdef double limit
    ratio = max(ratio + RATIO_RISES, observed) if observed > ratio else max(ratio - RATIO_FALLS, observed)
    topic.compression_ratio = min(ratio, 1.0)
    limit = <double>raw_bytes * RAW_NS / <double>max(arena.compress_ns, <uint64_t>1)
    topic.raw_most = <uint32_t>min(limit, <double>arena.large_max)
    limit = arena.port.batch_limit / (topic.compression_ratio * SAFETY_FACTOR)
    limit = min(limit, <double>topic.raw_most)
    topic.raw_limit = <uint32_t>limit if limit > arena.port.batch_limit else 0


cdef object pack_alone(Arena arena, const RecordView *record):
    """Return the compressed bytes of a record that is a batch of its own; None: write it uncompressed.

    The GIL may be released, and a signal handler may raise.
    """
    raw = PyBytes_FromStringAndSize(NULL, record_size(0, 0, record))
    put_record(<uint8_t *>PyBytes_AS_STRING(raw), 0, 0, record)
    return _compressed(arena, raw)


cdef object _compressed(Arena arena, bytes raw):
    """Return a buffer; None if the records do not become smaller, or compression fails in this process."""
    cdef uint64_t began = monotonic_ns()
    try:
        packed = memoryview(arena.compress(raw))
    except Exception as error:
        _log.error("compression failed in this process; from here on the sender compresses its batches: %s", error)
        arena.compress = None
        return None
    arena.compress_ns = monotonic_ns() - began
    return packed if 0 < packed.nbytes < len(raw) else None


cdef bytes _copy_records(Arena arena, uint32_t slot):
    parts = []
    while slot != CYP_NONE:
        parts.append(PyBytes_FromStringAndSize(
            <char *>arena.chunk(slot), word_bytes(slot_glance(&arena.rows[slot]))
        ))
        slot = arena.slots[slot].next
    return parts[0] if len(parts) == 1 else b"".join(parts)
