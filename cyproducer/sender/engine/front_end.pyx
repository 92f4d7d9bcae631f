"""Checks a front-end's arena, and allocates, lays out and frees the sender's private tables for it."""


cdef enum:
    IDLE_AFTER_NS = 20000000        # the minimum; twice the linger time if that is longer


cdef object check_arena(int fd, uint32_t slot_count):
    """Raise ValueError if the arena does not have this layout and number of slots.

    It is read through its descriptor: a header that was never written gets no memory by that.
    """
    cdef cyp_arena_header header
    cdef bytes read = os.pread(fd, sizeof(header), 0)
    memset(&header, 0, sizeof(header))
    memcpy(&header, <const char *>read, len(read))
    if header.magic != CYP_ARENA_MAGIC:
        raise ValueError("the descriptor is not that of an arena")
    if header.layout_version != CYP_LAYOUT_VERSION:
        version = header.layout_version
        raise ValueError(f"the arena has layout {version}, but this sender has layout {CYP_LAYOUT_VERSION}")
    if header.slot_count != slot_count:
        raise ValueError(f"the arena has {header.slot_count} slots, but {slot_count} were announced")


cdef FrontEnd *new_front_end(uint32_t slot_count, dict settings) except NULL:
    """Allocate the private tables of a front-end. Raise MemoryError, or TypeError for invalid settings."""
    cdef FrontEnd *front_end = <FrontEnd *>calloc(1, sizeof(FrontEnd))
    if front_end == NULL:
        raise MemoryError
    try:
        front_end.slot_count = front_end.topic_numbers.scanned = slot_count
        front_end.batches = <ClientBatch *>pages_new(_tables_bytes(slot_count))
        if front_end.batches == NULL:
            raise MemoryError
        front_end.front_end.tables_bytes = _tables_bytes(slot_count)
        front_end.chunk_next = <uint32_t *>(front_end.batches + slot_count)
        front_end.chunk_bytes = front_end.chunk_next + slot_count
        front_end.chunk_count = front_end.chunk_bytes + slot_count
        front_end.chunk_held = <uint8_t *>(front_end.chunk_count + slot_count)
        _configure(front_end, settings)
    except BaseException:
        free_front_end(front_end)
        raise
    return front_end


cdef uint64_t _tables_bytes(uint64_t slot_count) noexcept nogil:
    return slot_count * (sizeof(ClientBatch) + 3 * sizeof(uint32_t) + sizeof(uint8_t))


cdef uint64_t free_tables(FrontEnd *front_end, uint64_t most) noexcept nogil:
    """Free up to `most` bytes at the end of the tables by slot of a front-end that ends. Return how many bytes."""
    cdef uint64_t former = front_end.front_end.tables_bytes, left = 0
    if most < former:
        left = (former - most) & ~(<uint64_t>CYP_PAGE_BYTES - 1)
    if former > left:
        pages_free(<uint8_t *>front_end.batches + left, former - left)
    front_end.front_end.tables_bytes = left
    return former - left


cdef void free_front_end(FrontEnd *front_end) noexcept nogil:
    """Free all private memory of the front-end."""
    cdef uint32_t index
    for index in range(front_end.intake.queue_capacity):
        free(front_end.intake.queues[index])
    free(front_end.intake.queues)
    free_flows(front_end)
    free_tables(front_end, front_end.front_end.tables_bytes)
    free(front_end.recovery.published)
    free(front_end.intake.unknown)
    free(front_end.parts.extent_until)
    free(front_end.parts.free_extents)
    free(front_end)


cdef void lay_out(
    FrontEnd *front_end, FrontEndGeometry *geometry, int arena_fd, uint8_t *arena, uint8_t *outcomes
) noexcept nogil:
    """Set the pointers into the regions. The offsets come from private geometry, not from the headers."""
    front_end.arena_fd = arena_fd
    front_end.submit_mask = geometry.submit_entries - 1
    front_end.outcome_mask = geometry.outcome_entries - 1
    front_end.header = <cyp_arena_header *>arena
    front_end.rows = <cyp_slot_row *>(arena + geometry.slots_offset)
    front_end.submit_ring = <uint64_t *>(arena + geometry.submit_ring_offset)
    front_end.chunks = arena + geometry.chunks_offset
    front_end.outcomes_header = <cyp_outcomes_header *>outcomes
    front_end.outcome_ring = <cyp_outcome *>(outcomes + geometry.outcome_ring_offset)
    front_end.sent = <uint32_t *>(outcomes + geometry.sent_offset)
    front_end.extents = <cyp_extent *>(outcomes + geometry.extents_offset)
    front_end.share_metrics = <cyp_share_metrics *>(outcomes + geometry.metrics_offset)
    front_end.share_metrics.windows.window_ns = front_end.settings.window_ns
    front_end.share_metrics.windows.samples = front_end.settings.samples


cdef void describe_outcomes(FrontEnd *front_end, FrontEndGeometry *geometry) noexcept nogil:
    """Fill in the header of a new outcomes region, for the front-end."""
    cdef cyp_outcomes_header *header = front_end.outcomes_header
    header.layout_version = CYP_LAYOUT_VERSION
    header.slot_count = geometry.slot_count
    header.ring_entries = geometry.outcome_entries
    header.sent_offset = geometry.sent_offset
    header.ring_offset = geometry.outcome_ring_offset
    header.extents_offset = geometry.extents_offset
    header.region_bytes = geometry.outcomes_bytes
    header.attach_id = front_end.attach_id
    header.control = CYP_CONTROL_ATTACHED
    header.magic = CYP_OUTCOMES_MAGIC


cdef object _configure(FrontEnd *front_end, dict settings):
    read_front_end_settings(&front_end.settings, settings)
    # idempotence needs acks=all: otherwise the broker's sequences cannot be relied on
    front_end.idempotent = front_end.settings.enable_idempotence and front_end.settings.acks == -1
    codec, level = settings.get("compression_type"), settings.get("compression_level")
    front_end.codec = 0 if codec is None else CODES[codec]
    front_end.level = INT32_MIN if level is None else level
    front_end.is_stranger = settings.get("other_user", False)
    front_end.idle_after_ns = max(2 * <uint64_t>front_end.settings.linger_ns, <uint64_t>IDLE_AFTER_NS)


cdef uint32_t reserve_front_end(Core *core) except? 0xffffffff:
    """Make space for one more front-end in the tables. Return the index of its epoll tag. Raise MemoryError."""
    cdef FrontEnd **grown
    cdef uint32_t tag = 0, room = 2 * (core.front_end.tag_room + 32)
    reserve_places(core)
    while tag < core.front_end.tag_room and core.front_end.tagged[tag] != NULL:
        tag += 1
    if tag == core.front_end.tag_room:
        grown = <FrontEnd **>realloc(core.front_end.tagged, room * sizeof(FrontEnd *))
        if grown == NULL:
            raise MemoryError
        memset(grown + core.front_end.tag_room, 0, (room - core.front_end.tag_room) * sizeof(FrontEnd *))
        core.front_end.tagged = grown
        core.front_end.tag_room = room
    return tag


cdef void list_front_end(Core *core, FrontEnd *front_end) noexcept nogil:
    """Add the front-end to the list of front-ends, and make it active."""
    core.front_end.acks_seen |= <uint8_t>(1 << (front_end.settings.acks + 1))
    core.front_end.tagged[front_end.tag] = front_end
    activate(core, front_end)
    front_end.front_end.next = core.front_end.first
    if front_end.front_end.next != NULL:
        front_end.front_end.next.front_end.previous = front_end
    core.front_end.first = front_end
    core.front_end.count += 1


cdef void end_front_end(Core *core, FrontEnd *front_end) noexcept nogil:
    """Move the front-end from the list of front-ends to the list of the ended ones, which Python unmaps."""
    if front_end.front_end.previous != NULL:
        front_end.front_end.previous.front_end.next = front_end.front_end.next
    else:
        core.front_end.first = front_end.front_end.next
    if front_end.front_end.next != NULL:
        front_end.front_end.next.front_end.previous = front_end.front_end.previous
    core.front_end.count -= 1
    core.front_end.tagged[front_end.tag] = NULL
    deactivate(core, front_end)
    forget_deadline(core, front_end)
    forget_outcomes(core, front_end)
    front_end.front_end.previous = NULL
    front_end.front_end.next = core.front_ends.ended
    core.front_ends.ended = front_end
