"""Keeps the tables of each front-end, and tells which front-ends may have something new."""


# ------------------------------------------------------------ activity
#
# Tracks which front-ends the loop has to look at, so that an idle front-end costs no time in a loop iteration.
#
#  - Active front-ends are in a list: the loop looks at their submission rings in every iteration. A front-end that has
#    submitted nothing for a while becomes idle. Its next submission writes the sender's eventfd (cyp_front_end_idles in
#    rings.h).
#  - Front-ends with a deadline (linger time or delivery timeout) are in a heap. A key is never later than the
#    front-end's next deadline. A key is corrected only when it reaches the top of the heap, so a batch that is done
#    before its deadline costs nothing here.
#  - Front-ends with outcomes that were not announced are in a list.


cdef int reserve_places(Core *core) except -1:
    """Make sure that the heap has a place for one more front-end than there are. Raise MemoryError."""
    cdef FrontEnd **grown
    cdef uint32_t room = 2 * (core.front_end.count + 32)
    if core.front_end.count + 1 > core.front_end.deadline_room:
        grown = <FrontEnd **>realloc(core.front_end.deadlines, room * sizeof(FrontEnd *))
        if grown == NULL:
            raise MemoryError
        core.front_end.deadlines = grown
        core.front_end.deadline_room = room
    return 0


# ---------------------------------------------------------------- active front-ends


cdef void activate(Core *core, FrontEnd *front_end) noexcept nogil:
    """Make the loop look at the front-end's submission ring from the next iteration on."""
    if front_end.front_end.active or front_end.front_ends.detached:
        return
    front_end_acts(&front_end.outcomes_header.idle)
    front_end.front_end.active = True
    front_end.front_end.active_ns = core.loop.now
    front_end.front_end.active_previous = NULL
    front_end.front_end.active_next = core.front_end.active
    if core.front_end.active != NULL:
        core.front_end.active.front_end.active_previous = front_end
    core.front_end.active = front_end


cdef void deactivate(Core *core, FrontEnd *front_end) noexcept nogil:
    """Stop the loop from looking at the front-end's submission ring."""
    if not front_end.front_end.active:
        return
    front_end.front_end.active = False
    if front_end.front_end.active_previous != NULL:
        front_end.front_end.active_previous.front_end.active_next = front_end.front_end.active_next
    else:
        core.front_end.active = front_end.front_end.active_next
    if front_end.front_end.active_next != NULL:
        front_end.front_end.active_next.front_end.active_previous = front_end.front_end.active_previous


cdef bint make_idle(Core *core, FrontEnd *front_end) noexcept nogil:
    """Make an active front-end idle, unless it submits something at this moment. Return whether it is idle."""
    front_end_idles(&front_end.outcomes_header.idle)
    if submit_tail(&front_end.header.submit_tail) != front_end.intake.submit_head:
        front_end_acts(&front_end.outcomes_header.idle)
        return False
    deactivate(core, front_end)
    return True


# ---------------------------------------------------------------- deadlines


cdef uint64_t _deadline(FrontEnd *front_end) noexcept nogil:
    """Return the earlier of the front-end's next linger deadline and delivery timeout; UINT64_MAX if it has neither."""
    cdef uint64_t at = UINT64_MAX
    if front_end.intake.linger_head != NULL:
        at = front_end.intake.linger_head.intake.created_ns + front_end.settings.linger_ns
    if front_end.outcome.age_head != NULL:
        at = min(at, front_end.outcome.age_head.intake.born_ns + <uint64_t>front_end.settings.delivery_timeout_ns)
    return at


cdef void _put(Core *core, uint32_t place, FrontEnd *front_end) noexcept nogil:
    core.front_end.deadlines[place] = front_end
    front_end.front_end.deadline_place = place + 1


cdef void _sift_up(Core *core, uint32_t place) noexcept nogil:
    cdef FrontEnd *front_end = core.front_end.deadlines[place]
    cdef uint32_t parent
    while place > 0:
        parent = (place - 1) // 2
        if core.front_end.deadlines[parent].front_end.deadline_ns <= front_end.front_end.deadline_ns:
            break
        _put(core, place, core.front_end.deadlines[parent])
        place = parent
    _put(core, place, front_end)


cdef void _sift_down(Core *core, uint32_t place) noexcept nogil:
    cdef FrontEnd *front_end = core.front_end.deadlines[place]
    cdef uint32_t child = 2 * place + 1
    while child < core.front_end.deadline_count:
        if (
            child + 1 < core.front_end.deadline_count
            and core.front_end.deadlines[child + 1].front_end.deadline_ns
            < core.front_end.deadlines[child].front_end.deadline_ns
        ):
            child += 1
        if front_end.front_end.deadline_ns <= core.front_end.deadlines[child].front_end.deadline_ns:
            break
        _put(core, place, core.front_end.deadlines[child])
        place = child
        child = 2 * place + 1
    _put(core, place, front_end)


cdef void schedule_deadline(Core *core, FrontEnd *front_end, uint64_t at_ns) noexcept nogil:
    """Note that the first batch of one of the front-end's lists has this deadline."""
    if front_end.front_end.deadline_place == 0:
        front_end.front_end.deadline_ns = at_ns
        core.front_end.deadlines[core.front_end.deadline_count] = front_end
        core.front_end.deadline_count += 1
        _sift_up(core, core.front_end.deadline_count - 1)
    elif at_ns < front_end.front_end.deadline_ns:
        front_end.front_end.deadline_ns = at_ns
        _sift_up(core, front_end.front_end.deadline_place - 1)


cdef void forget_deadline(Core *core, FrontEnd *front_end) noexcept nogil:
    """Take the front-end out of the heap."""
    cdef uint32_t place = front_end.front_end.deadline_place - 1
    cdef FrontEnd *last
    if front_end.front_end.deadline_place == 0:
        return
    front_end.front_end.deadline_place = 0
    core.front_end.deadline_count -= 1
    last = core.front_end.deadlines[core.front_end.deadline_count]
    if last != front_end:
        _put(core, place, last)
        _sift_up(core, place)
        _sift_down(core, last.front_end.deadline_place - 1)


cdef FrontEnd *next_due(Core *core) noexcept nogil:
    """Return a front-end whose deadline has passed. If there is none, return NULL and note the next one as a timer."""
    cdef FrontEnd *front_end
    cdef uint64_t at
    while core.front_end.deadline_count:
        front_end = core.front_end.deadlines[0]
        at = _deadline(front_end)
        if at == UINT64_MAX:
            forget_deadline(core, front_end)
        elif at > front_end.front_end.deadline_ns:
            front_end.front_end.deadline_ns = at
            _sift_down(core, 0)
        elif at <= core.loop.now:
            return front_end
        else:
            schedule_timer(core, at)
            return NULL
    return NULL


# ---------------------------------------------------------------- outcomes that were not announced


cdef void schedule_outcomes(Core *core, FrontEnd *front_end) noexcept nogil:
    """Note that the front-end has new outcomes and may have to be woken. Do nothing if it has ended."""
    if not front_end.front_end.has_outcomes and not front_end.front_ends.detached:
        front_end.front_end.has_outcomes = True
        front_end.front_end.announce_next = core.front_end.to_announce
        core.front_end.to_announce = front_end


cdef FrontEnd *pop_to_announce(Core *core) noexcept nogil:
    """Return the next front-end with outcomes to announce; NULL if there is none left."""
    cdef FrontEnd *front_end = core.front_end.to_announce
    if front_end != NULL:
        core.front_end.to_announce = front_end.front_end.announce_next
        front_end.front_end.has_outcomes = False
    return front_end


cdef void forget_outcomes(Core *core, FrontEnd *front_end) noexcept nogil:
    """Take a front-end that ends out of the list."""
    cdef FrontEnd **link = &core.front_end.to_announce
    if not front_end.front_end.has_outcomes:
        return
    front_end.front_end.has_outcomes = False
    while link[0] != front_end:
        link = &link[0].front_end.announce_next
    link[0] = front_end.front_end.announce_next


# ------------------------------------------------------------ breadcrumb
#
# Stores in the state header which front-end's memory the sender reads, for the supervisor to see after a crash.


cdef inline void touch(Core *core, FrontEnd *front_end, uint32_t slot) noexcept nogil:
    """Note that the following code reads memory that this front-end can write."""
    store_relaxed32(&core.state_header.breadcrumb_slot, slot)
    store_relaxed(&core.state_header.breadcrumb_attach, front_end.attach_id)


cdef inline void untouch(Core *core) noexcept nogil:
    """Note that the following code reads no memory of a front-end."""
    store_relaxed(&core.state_header.breadcrumb_attach, 0)


# ------------------------------------------------------------ written
#
# Tells whether a front-end of another user has written a part of its arena.
#
# Reading a page that was never written allocates it, and its memory counts for the sender's cgroup. So the sender would
# pay for the arena of another user. Processes of the sender's own user keep to the protocol: they refer only to what
# they have written.


cdef inline bint row_is_written(const FrontEnd *front_end, uint32_t slot) noexcept nogil:
    """Return whether the row of a slot may be read."""
    return not front_end.is_stranger or has_memory(
        front_end.arena_fd, <uint64_t>&front_end.rows[slot] - <uint64_t>front_end.header, sizeof(cyp_slot_row)
    )


cdef inline bint chunk_is_written(const FrontEnd *front_end, uint32_t slot, uint64_t size) noexcept nogil:
    """Return whether the first `size` bytes of a chunk may be read."""
    return not front_end.is_stranger or has_memory(
        front_end.arena_fd,
        <uint64_t>front_end.chunks - <uint64_t>front_end.header + slot * <uint64_t>CYP_UNIT_BYTES,
        size,
    )


# ------------------------------------------------------------ front end tables
#
# Checks a front-end's arena, and allocates, lays out and frees the sender's private tables for it.


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
