"""Splits a batch that one front-end filled into parts: partial wire batches, each with some records of the batch.

A batch is split if the broker refuses it as too large, like RecordAccumulator.splitAndReenqueue of Kafka's producer, or
if the broker names the records that it refuses (KIP-467). This is done only if no attempt of the batch can be in the
log. The parts lie in the place of the batch in its lane and keep the order of its records.

 - Too large: the parts have the sequences of their records in the batch, so there is no gap and no new epoch. The
   largest size that the topic has accepted is aimed at, at least half of the smallest one that it has refused. Later
   batches of the topic that are not smaller than that are split before they are sent.
 - Named records: one part has the named records and ends with the broker's error at once. The other part has the rest
   and is sent in a new epoch.

The records of a part are encoded again, from the chunks of the batch into private memory, when the part is sent. A
successor of the sender encodes the same bytes again: the ranges of records are in the entry (cyp_contributor). The
parts of a partition are sent one at a time, so few of them are in this memory.
"""


# ------------------------------------------------------------ extents
#
# Keeps the results of batches that are sent in parts, until each batch has its outcome.
#
# A row of the front-end's table of extents holds the result of some records (cyp_extent). The outcome of the batch
# leads to its rows, and a row is free again once the front-end has taken that outcome. A batch is split only if there
# are rows for the results of all its parts: they are promised to it. So the sender never waits for a front-end, and one
# that takes no outcomes can only prevent the splitting of its own batches.
#
# A row is filled before the entry of its part is freed. So a successor finds the result of each record of a split batch
# in an entry or in a row.


cdef bint reserve_extents(ClientBatch *batch, uint32_t count) noexcept nogil:
    """Promise `count` more rows to the batch. Return False if that many are not free."""
    cdef FrontEnd *front_end = batch.front_end
    if front_end.front_ends.detached:
        return True  # it gets no outcomes
    if front_end.parts.extent_until == NULL and not _allocate(front_end):
        return False
    if front_end.parts.free_extent_count < front_end.parts.extents_reserved + count:
        _reclaim(front_end)
    if front_end.parts.free_extent_count < front_end.parts.extents_reserved + count:
        return False
    batch.parts.reserved_extents += count
    front_end.parts.extents_reserved += count
    return True


cdef bint _allocate(FrontEnd *front_end) noexcept nogil:
    """Allocate the private tables for the rows, all of them free. Return False without memory."""
    cdef uint32_t index
    front_end.parts.extent_until = <uint64_t *>calloc(CYP_EXTENTS_MAX, sizeof(uint64_t))
    front_end.parts.free_extents = <uint32_t *>malloc(CYP_EXTENTS_MAX * sizeof(uint32_t))
    if front_end.parts.extent_until == NULL or front_end.parts.free_extents == NULL:
        free(front_end.parts.extent_until)
        free(front_end.parts.free_extents)
        front_end.parts.extent_until = NULL
        front_end.parts.free_extents = NULL
        return False
    for index in range(CYP_EXTENTS_MAX):
        front_end.parts.free_extents[index] = CYP_EXTENTS_MAX - 1 - index
    front_end.parts.free_extent_count = CYP_EXTENTS_MAX
    return True


cdef void _reclaim(FrontEnd *front_end) noexcept nogil:
    """Free the rows that the front-end has read. If it says so wrongly, only its own results are spoiled."""
    cdef uint64_t head = min(outcomes_taken(&front_end.header.outcome_head), front_end.outcome.outcome_tail)
    cdef uint32_t index
    for index in range(front_end.outcomes_header.extents_used):
        if front_end.parts.extent_until[index] and front_end.parts.extent_until[index] <= head:
            extent_free(&front_end.extents[index])
            front_end.parts.extent_until[index] = 0
            front_end.parts.free_extents[front_end.parts.free_extent_count] = index
            front_end.parts.free_extent_count += 1


cdef uint32_t extents_in_use(FrontEnd *front_end) noexcept nogil:
    """Return how many rows have a result that the front-end has not taken, or are promised."""
    if front_end.parts.extent_until == NULL or front_end.front_ends.detached:
        return 0
    _reclaim(front_end)
    return CYP_EXTENTS_MAX - front_end.parts.free_extent_count + front_end.parts.extents_reserved


cdef bint _continues(const cyp_extent *row, const cyp_extent *filled) noexcept nogil:
    """Return whether `filled` is the same result for the records that follow those of the row."""
    if row.error or filled.error or row.first + row.count != filled.first or row.append_time != filled.append_time:
        return False
    if row.base_offset < 0 or filled.base_offset < 0:
        return row.base_offset < 0 and filled.base_offset < 0
    return row.base_offset + row.count == filled.base_offset


cdef bint is_covered(ClientBatch *batch, uint32_t first, uint32_t count) noexcept nogil:
    """Return whether a row of the batch has these records: the sender was killed after it had filled that row."""
    cdef uint32_t at = batch.parts.extents
    cdef const cyp_extent *row
    while at:
        row = &batch.front_end.extents[at - 1]
        if row.first <= first and first + count <= row.first + row.count:
            return True
        at = row.next
    return False


cdef cyp_extent *fill_extent(ClientBatch *batch, const cyp_extent *filled) noexcept nogil:
    """Store the result of some records of a split batch, in a row that was promised to it.

    Return a new row, to which the caller may add a text; NULL if no row was filled for these records alone.
    """
    cdef FrontEnd *front_end = batch.front_end
    cdef cyp_extent *row
    cdef cyp_extent linked
    cdef uint32_t index
    if front_end.recovery.published != NULL and is_covered(batch, filled.first, filled.count):
        return NULL
    if front_end.front_ends.detached or batch.outcome.reported:
        batch.parts.resolved_count += filled.count
        return NULL
    if batch.parts.reserved_extents == 0:
        return NULL  # only if a front-end has changed its batch before a takeover; the records end as unknown
    batch.parts.resolved_count += filled.count
    batch.parts.reserved_extents -= 1
    front_end.parts.extents_reserved -= 1
    if batch.parts.extents:
        row = &front_end.extents[batch.parts.extents - 1]
        if _continues(row, filled):
            extent_lengthen(row, row.count + filled.count)
            CRASHPOINT(b"extent.lengthened")
            return NULL
    front_end.parts.free_extent_count -= 1
    index = front_end.parts.free_extents[front_end.parts.free_extent_count]
    if index >= front_end.outcomes_header.extents_used:
        store_release32(&front_end.outcomes_header.extents_used, index + 1)  # before the row: a successor looks for it
    linked = filled[0]
    linked.slot = batch.slot
    linked.generation = batch.generation
    linked.next = batch.parts.extents
    front_end.parts.extent_until[index] = UINT64_MAX
    extent_fill(&front_end.extents[index], &linked)
    CRASHPOINT(b"extent.filled")
    batch.parts.extents = index + 1
    return &front_end.extents[index]


cdef void extents_are_published(ClientBatch *batch, uint64_t position) noexcept nogil:
    """Note that the outcome before `position` leads to the batch's rows: then they and their texts become free."""
    cdef FrontEnd *front_end = batch.front_end
    cdef uint32_t at = batch.parts.extents
    cdef cyp_extent *row
    while at:
        row = &front_end.extents[at - 1]
        front_end.parts.extent_until[at - 1] = position
        if row.text:
            front_end.outcome.text_until[row.text - 1] = position
        at = row.next
    batch.parts.extents = 0


cdef void end_reservation(ClientBatch *batch) noexcept nogil:
    """Take back the rows that were promised to the batch and not filled."""
    batch.front_end.parts.extents_reserved -= batch.parts.reserved_extents
    batch.parts.reserved_extents = 0


# ---------------------------------------------------------------- takeover


cdef object restore_extents(FrontEnd *front_end):
    """Find the rows that the predecessor has filled. Raise MemoryError."""
    cdef uint32_t index, used = min(front_end.outcomes_header.extents_used, <uint32_t>CYP_EXTENTS_MAX)
    if used == 0:
        return
    if not _allocate(front_end):
        raise MemoryError
    front_end.parts.free_extent_count = 0
    for index in range(CYP_EXTENTS_MAX - 1, -1, -1):
        if index < used and front_end.extents[index].state == CYP_EXTENT_FILLED:
            front_end.parts.extent_until[index] = UINT64_MAX
            if 0 < front_end.extents[index].text <= CYP_TEXTS:
                front_end.outcome.text_until[front_end.extents[index].text - 1] = UINT64_MAX
        else:
            front_end.parts.free_extents[front_end.parts.free_extent_count] = index
            front_end.parts.free_extent_count += 1


cdef void find_extents(ClientBatch *batch) noexcept nogil:
    """Link the rows of a batch that the predecessor has begun to send in parts, and that has no outcome."""
    cdef FrontEnd *front_end = batch.front_end
    cdef cyp_extent *row
    cdef uint32_t index
    if front_end.parts.extent_until == NULL:
        return
    for index in range(front_end.outcomes_header.extents_used):
        row = &front_end.extents[index]
        if front_end.parts.extent_until[index] and row.slot == batch.slot and row.generation == batch.generation:
            row.next = batch.parts.extents
            batch.parts.extents = index + 1
            batch.parts.resolved_count += row.count


cdef void reclaim_extents(FrontEnd *front_end) noexcept nogil:
    """Let the rows of batches that have an outcome become free once the front-end has taken all published outcomes."""
    cdef uint32_t index
    cdef cyp_extent *row
    cdef ClientBatch *batch
    if front_end.parts.extent_until == NULL:
        return
    for index in range(front_end.outcomes_header.extents_used):
        row = &front_end.extents[index]
        if front_end.parts.extent_until[index] == 0 or row.slot >= front_end.slot_count:
            continue
        batch = &front_end.batches[row.slot]
        if not batch.parts.split or batch.outcome.reported or batch.generation != row.generation:
            front_end.parts.extent_until[index] = max(front_end.outcome.outcome_tail, <uint64_t>1)
            if 0 < row.text <= CYP_TEXTS:
                front_end.outcome.text_until[row.text - 1] = front_end.outcome.outcome_tail


# ------------------------------------------------------------ parts


cdef enum PartCode:
    PART_DONE = 0
    PART_NO_ROOM = 1                # no memory, entries or contributors: try again later
    PART_REFUSED = 2                # its front-end has not taken the results of earlier parts: it is not split
    PART_MALFORMED = 3              # the front-end has changed its records


cdef enum:
    PARTS_MAX = 64                  # of one split; a part that is still too large is split again
    LIMIT_SECONDS = 3600            # how long a refused size counts


# The read position in the chunks of a batch.
ctypedef struct RecordWalk:
    FrontEnd *front_end
    uint32_t slot
    uint32_t passed                 # records in the chunks before `slot`
    uint32_t record                 # index in the batch of the record at `at`
    const uint8_t *at


cdef bint may_divide(Core *core, WireBatch *wire) noexcept nogil:
    """Return whether the wire batch has several records of one batch, and is in no log."""
    cdef ClientBatch *batch = core.contributor_batches[wire.entry.contributors] if wire.wire.body == NULL else NULL
    return (
        batch != NULL and not batch.outcome.reported and not wire.idempotence.unsure and wire.acks != 0
        and wire.entry.count > 1
    )


# ---------------------------------------------------------------- records


cdef PartCode encode_part(Core *core, WireBatch *wire) noexcept nogil:
    """Encode the records of a wire batch with one contributing batch into wire.wire.copy, with offset deltas from 0 on.

    Return PART_DONE, PART_NO_ROOM or PART_MALFORMED.
    """
    cdef cyp_entry *entry = wire.entry
    cdef uint32_t row = entry.contributors, first = 0, start, left, taken
    cdef ClientBatch *batch = core.contributor_batches[row]
    cdef RecordWalk walk
    cdef int64_t delta = 0, latest = INT64_MIN, written
    cdef uint64_t at = 0
    cdef uint8_t *copy = <uint8_t *>malloc(entry.length)
    if copy == NULL:
        return PART_NO_ROOM
    free(wire.wire.copy)
    wire.wire.copy = copy
    _walk_from(batch, &walk)
    touch(core, batch.front_end, batch.slot)
    while row != CYP_NONE:
        start = core.contributors[row].start
        left = core.contributors[row].count
        while left:
            written = _encode_piece(&walk, start, left, first, wire.wire.copy + at, entry.length - at, &delta, &taken)
            if written < 0:
                return PART_MALFORMED
            at += <uint64_t>written
            first += taken
            start += taken
            left -= taken
            latest = max(latest, delta)
        row = core.contributors[row].next
    if wire.partial:
        entry.length = <uint32_t>at
        # unsigned, because with malicious timestamps the sum may wrap
        entry.max_timestamp = <int64_t>(<uint64_t>entry.base_timestamp + <uint64_t>latest)
    CRASHPOINT(b"parts.encoded")
    return PART_DONE if at == entry.length else PART_MALFORMED


cdef void _walk_from(ClientBatch *batch, RecordWalk *walk) noexcept nogil:
    walk.front_end = batch.front_end
    walk.slot = batch.slot
    walk.passed = walk.record = 0
    walk.at = batch.front_end.chunks + <uint64_t>batch.slot * CYP_UNIT_BYTES


cdef int64_t _encode_piece(
    RecordWalk *walk, uint32_t start, uint32_t count, uint32_t first, uint8_t *target, uint64_t room, int64_t *delta,
    uint32_t *taken
) noexcept nogil:
    """Encode up to `count` records from `start` on that are in one chunk. Set `taken` to their number.

    The first gets the offset delta `first`. Return the number of bytes written; a negative number if the front-end has
    changed its records. `start` never falls from call to call.
    """
    cdef FrontEnd *front_end = walk.front_end
    cdef uint32_t largest = 0
    cdef const uint8_t *end
    cdef const uint8_t *following
    while start >= walk.passed + front_end.chunk_count[walk.slot]:
        walk.passed += front_end.chunk_count[walk.slot]
        walk.slot = front_end.chunk_next[walk.slot]
        if walk.slot == CYP_NONE:
            return -1
        walk.record = walk.passed
        walk.at = front_end.chunks + <uint64_t>walk.slot * CYP_UNIT_BYTES
    end = front_end.chunks + <uint64_t>walk.slot * CYP_UNIT_BYTES + front_end.chunk_bytes[walk.slot]
    taken[0] = min(count, walk.passed + front_end.chunk_count[walk.slot] - start)
    walk.at = skip_records(walk.at, end, start - walk.record)
    if walk.at == NULL:
        return -1
    following = skip_records(walk.at, end, taken[0])
    if following == NULL:
        return -1
    count = taken[0]
    room = min(room, <uint64_t>0x7fffffff)
    cdef int64_t written = merge_records(
        walk.at, following - walk.at, <int32_t>count, 0, <int32_t>first, target, room, delta, &largest
    )
    walk.at = following
    walk.record = start + count
    return written


# ---------------------------------------------------------------- entries


cdef WireBatch *_new_part(Core *core, WireBatch *wire, ClientBatch *batch) noexcept nogil:
    """Take an entry for a part of `wire` that has no records yet. The caller has checked that there is one."""
    cdef uint32_t index = pop_entry(core)
    cdef cyp_entry *entry = &core.entries[index]
    cdef cyp_entry *whole = wire.entry
    cdef WireBatch *part
    entry.flags = CYP_ENTRY_PARTIAL
    entry.partition = whole.partition
    entry.count = 0
    entry.producer_id = whole.producer_id
    entry.producer_epoch = whole.producer_epoch
    entry.base_sequence = whole.base_sequence
    entry.base_timestamp = whole.base_timestamp if wire.wire.body == NULL else batch.intake.base_timestamp
    entry.max_timestamp = entry.base_timestamp
    entry.created_ns = whole.created_ns
    entry.length = 0
    entry.attributes = whole.attributes
    entry.acks = whole.acks
    entry.cause = whole.cause
    entry.attempts = 0
    entry.contributors = CYP_NONE
    entry.body = CYP_NONE
    # after the fragments of the smaller batch that replaces a merged one
    entry.order = whole.order + (<uint32_t>MERGE_MAX if wire.wire.body != NULL else 0)
    entry.parent = wire.index
    part = init_wire(core, index, wire.lane)
    part.idempotent = wire.idempotent
    part.wire.retried = wire.wire.retried
    part.compression.codec = batch.front_end.codec
    part.level = batch.front_end.level
    part.refusal.unreported = 1
    part.wire.retries = wire.wire.retries
    return part


cdef void _add_part_records(
    Core *core, WireBatch *part, WireBatch *wire, uint32_t first, uint32_t count, bint apart
) noexcept nogil:
    """Add the records `first` .. `first + count - 1` of `wire` to its part. `apart`: never to an existing range."""
    cdef uint32_t row = wire.entry.contributors, new, last = CYP_NONE, offset, taken
    cdef cyp_contributor *source
    cdef cyp_contributor *added
    new = part.entry.contributors
    while new != CYP_NONE:
        last = new
        new = core.contributors[new].next
    while count:
        source = &core.contributors[row]
        if first >= source.first + source.count:
            row = source.next
            continue
        offset = first - source.first
        taken = min(count, source.count - offset)
        first += taken
        count -= taken
        if not apart and last != CYP_NONE \
                and core.contributors[last].start + core.contributors[last].count == source.start + offset:
            core.contributors[last].count += taken
            part.entry.count += taken
            continue
        core.wire.free_contributor_count -= 1
        new = core.wire.free_contributors[core.wire.free_contributor_count]
        added = &core.contributors[new]
        added.attach_id = source.attach_id
        added.slot = source.slot
        added.generation = source.generation
        added.first = part.entry.count
        added.count = taken
        added.start = source.start + offset
        added.flags = 0
        added.next = CYP_NONE
        core.contributor_batches[new] = core.contributor_batches[row]
        if last == CYP_NONE:
            part.entry.contributors = new
        else:
            core.contributors[last].next = new
        last = new
        part.wire.contributor_count += 1
        part.entry.count += taken


cdef void _prepare_part(
    Core *core, WireBatch *part, WireBatch *wire, ClientBatch *batch, uint32_t length
) noexcept nogil:
    """Let the part wait before `wire`, PREPARED. `length`: of its records, at most."""
    part.entry.length = length
    charge_new(core, part, batch.front_end)
    link_before(wire.lane, part, wire)
    entry_enter(part.entry, CYP_ENTRY_PREPARED)
    CRASHPOINT(b"parts.prepared")


cdef void _enter_parts(Core *core, WireBatch *wire, ClientBatch *batch, uint32_t parts) noexcept nogil:
    """Note in the batch that `wire`, or its part of `wire`, is replaced by this number of parts."""
    cdef uint32_t row = wire.entry.contributors
    while row != CYP_NONE:
        if core.contributor_batches[row] == batch:
            core.contributor_batches[row] = NULL
        row = core.contributors[row].next
    batch.parts.pending += parts - (1 if wire.partial else 0)
    batch.parts.split = True
    batch.refusal.withdrawn = False
    batch.wire.batch = NULL


cdef void begin_parts(Core *core, WireBatch *wire, const Verdict *verdict) noexcept nogil:
    """Let the prepared parts of a SPLIT wire batch begin: those that the broker has refused end at once."""
    cdef WireBatch *part = wire.wire.previous
    cdef WireBatch *before
    while part != NULL and part.entry.state == CYP_ENTRY_PREPARED and part.entry.parent == wire.index:
        before = part.wire.previous
        if part.entry.flags & CYP_ENTRY_REFUSED:
            entry_resolve(part.entry, part.entry.error, -1, -1)
            CRASHPOINT(b"parts.refused")
            publish_resolved(core, part, verdict)
        else:
            entry_enter(part.entry, CYP_ENTRY_ASSIGNED)
            CRASHPOINT(b"parts.assigned")
        part = before


cdef void _commit(Core *core, WireBatch *wire, const Verdict *verdict) noexcept nogil:
    """Replace a wire batch by its prepared parts."""
    wire.entry.error = 0
    entry_enter(wire.entry, CYP_ENTRY_SPLIT)  # from here on a successor sees the parts instead
    CRASHPOINT(b"parts.committed")
    begin_parts(core, wire, verdict)
    unlink_wire(core, wire)


# ---------------------------------------------------------------- too large


cdef inline uint32_t _size(const WireBatch *wire) noexcept nogil:
    """Return the size of the record batch that was sent, which the broker compares with max.message.bytes."""
    return wire_bytes(wire) + BATCH_HEADER_BYTES


cdef void set_refused_size(Core *core, WireBatch *wire) noexcept nogil:
    """Note that the topic refuses batches of this size, if it is not compressed.

    A broker may compare the size after it has compressed the records with another codec. So the size of a compressed
    batch says nothing about other batches.
    """
    cdef Topic *topic = wire.lane.topic
    if wire.compression.packed != NULL:
        return
    topic.parts.too_large = min(topic.parts.too_large, _size(wire)) if topic.parts.too_large else _size(wire)
    topic.parts.too_large_ns = core.loop.now
    if topic.parts.accepted >= topic.parts.too_large:
        topic.parts.accepted = 0


cdef void set_accepted_size(WireBatch *wire) noexcept nogil:
    """Note that the topic accepts batches of this size, if it is not compressed."""
    cdef Topic *topic = wire.lane.topic
    if wire.compression.packed != NULL:
        return
    topic.parts.accepted = max(topic.parts.accepted, _size(wire))
    if topic.parts.accepted >= topic.parts.too_large:
        topic.parts.too_large = 0


cdef bint exceeds_limit(Core *core, WireBatch *wire) noexcept nogil:
    """Return whether a stamped wire batch that was never sent should be split, since its topic refuses its size.

    The topic has a size that it refuses.
    """
    cdef Topic *topic = wire.lane.topic
    if wire.compression.packed != NULL or _size(wire) < topic.parts.too_large:
        return False
    if core.loop.now - topic.parts.too_large_ns > <uint64_t>LIMIT_SECONDS * 1000000000:
        topic.parts.too_large = 0
        return False
    return wire.entry.attempts == 0 and not wire.lane.idempotence.bumping and may_divide(core, wire)


cdef uint32_t _target(const WireBatch *wire) noexcept nogil:
    """Return how many bytes of records a part should have: of a compressed batch, about half of the records."""
    cdef const Topic *topic = wire.lane.topic
    cdef uint64_t size = (
        max(topic.parts.too_large // 2, topic.parts.accepted) if wire.compression.packed == NULL else _size(wire) // 2
    )
    if size <= BATCH_HEADER_BYTES:
        return 1
    size = (size - BATCH_HEADER_BYTES) * wire.entry.length // wire_bytes(wire)
    return <uint32_t>min(max(size, <uint64_t>1), <uint64_t>(wire.entry.length - 1))


cdef uint32_t _measure(WireBatch *wire, uint32_t most, uint32_t *counts, uint32_t *sizes) noexcept nogil:
    """Set the number and the bytes of the records of each part, of which there are at most `most`. Return how many."""
    cdef const uint8_t *at = wire.wire.copy
    cdef const uint8_t *end = wire.wire.copy + wire.entry.length
    cdef const uint8_t *following
    cdef uint32_t parts = 0, target = _target(wire)
    while at < end:
        following = skip_records(at, end, 1)
        if following == NULL:
            return 0  # never: encode_part has written them
        if parts == 0 or (sizes[parts - 1] + (following - at) > target and parts < most):
            counts[parts] = sizes[parts] = 0
            parts += 1
        counts[parts - 1] += 1
        sizes[parts - 1] += <uint32_t>(following - at)
        at = following
    return parts


cdef PartCode divide_by_size(Core *core, WireBatch *wire, const Verdict *verdict) noexcept nogil:
    """Replace a wire batch that is too large by parts. may_divide() must be true."""
    cdef uint32_t[PARTS_MAX] counts, sizes
    cdef uint32_t parts = 0, index, room, first = 0
    cdef ClientBatch *batch = core.contributor_batches[wire.entry.contributors]
    cdef WireBatch *part
    cdef PartCode code = encode_part(core, wire)
    if code != PART_DONE:
        return code
    room = min(split_room(core, batch), <uint32_t>PARTS_MAX)
    if room >= 2:
        parts = _measure(wire, room, counts, sizes)
    # parts that begin in the middle of a range need a contributor more than the wire batch has
    if (
        parts < 2
        or core.wire.free_contributor_count - (core.wire.free_wire_count - parts) < parts + wire.wire.contributor_count
        - 1
    ):
        return PART_NO_ROOM
    if not reserve_extents(batch, parts - (1 if wire.partial else 0)):
        return PART_REFUSED
    for index in range(parts):
        part = _new_part(core, wire, batch)
        if wire.idempotent:
            part.entry.base_sequence += first
        _add_part_records(core, part, wire, first, counts[index], False)
        _prepare_part(core, part, wire, batch, sizes[index])
        first += counts[index]
    count_split(core, wire)
    _enter_parts(core, wire, batch, parts)
    _commit(core, wire, verdict)
    return PART_DONE


# ---------------------------------------------------------------- named records


cdef bint prepare_named(
    Core *core, WireBatch *wire, uint32_t row, uint32_t begin, int32_t error, const Verdict *verdict
) noexcept nogil:
    """Prepare two parts for the records of a batch: those that the broker has named, and the others.

    `row` is the batch's contributor in a merged wire batch, and else the first contributor. The sequences of the others
    begin `begin` after that of `wire`: no two parts that replace a wire batch have the same sequence. Return False
    without entries or without rows for the results, or if it is one record. The caller then ends the batch with
    `error`.
    """
    cdef ClientBatch *batch = core.contributor_batches[row]
    cdef uint32_t low = 0 if wire.wire.body == NULL else core.contributors[row].first
    cdef uint32_t high = wire.entry.count if wire.wire.body == NULL else low + core.contributors[row].count
    return _prepare_named(core, wire, batch, low, high, begin, error, verdict)


cdef bint _prepare_named(
    Core *core, WireBatch *wire, ClientBatch *batch, uint32_t low, uint32_t high, uint32_t place, int32_t error,
    const Verdict *verdict
) noexcept nogil:
    """Prepare the parts for the records `low` .. `high - 1` of `wire`, which are all records of the batch in it."""
    cdef uint32_t begin = 0, end, index, rows, record
    cdef WireBatch *rest
    cdef WireBatch *named
    cdef bint apart
    if verdict.named_count > NAMED_MAX:
        return False  # it is not known which
    while begin < verdict.named_count and verdict.named[begin].record < low:
        begin += 1
    end = begin
    while end < verdict.named_count and verdict.named[end].record < high:
        end += 1
    for index in range(begin, end):
        verdict.named[index].batch = batch
        verdict.named[index].start = _start_of(core, wire, verdict.named[index].record)
    if high - low == 1:
        return False
    rows = 2 * (end - begin) + 1 + (wire.wire.contributor_count if wire.partial else 1)
    if begin == end or split_room(core, batch) < 2 or range_room(core, batch, 2) < rows \
            or not reserve_extents(batch, rows):
        return False
    if high - low > end - begin:
        rest = _new_part(core, wire, batch)
        rest.wire.retried = True
        if wire.idempotent:
            rest.entry.base_sequence += place
        record = low
        for index in range(begin, end):
            _add_part_records(core, rest, wire, record, verdict.named[index].record - record, False)
            record = verdict.named[index].record + 1
        _add_part_records(core, rest, wire, record, high - record, False)
        _prepare_part(core, rest, wire, batch, wire.entry.length if wire.wire.body == NULL else batch.intake.bytes)
        if wire.wire.state == WIRE_IN_FLIGHT:
            count_retry(core, rest)
    named = _new_part(core, wire, batch)
    named.entry.flags = CYP_ENTRY_PARTIAL | CYP_ENTRY_REFUSED
    named.entry.error = error
    for index in range(begin, end):
        apart = index > begin and not _same_text(verdict, index)
        _add_part_records(core, named, wire, verdict.named[index].record, 1, apart)
    _prepare_part(core, named, wire, batch, 0)
    _enter_parts(core, wire, batch, 2 if high - low > end - begin else 1)
    return True


cdef bint _same_text(const Verdict *verdict, uint32_t index) noexcept nogil:
    """Return whether the broker says the same about this named record as about the one before."""
    cdef const Named *before = &verdict.named[index - 1]
    cdef const Named *named = &verdict.named[index]
    return before.text_bytes == named.text_bytes \
        and (named.text_bytes == 0 or memcmp(before.text, named.text, named.text_bytes) == 0)


cdef uint32_t _start_of(const Core *core, const WireBatch *wire, uint32_t record) noexcept nogil:
    """Return the index in its batch of a record of the wire batch."""
    cdef uint32_t row = wire.entry.contributors
    while record - core.contributors[row].first >= core.contributors[row].count:
        row = core.contributors[row].next
    return core.contributors[row].start + record - core.contributors[row].first


cdef PartCode divide_named(Core *core, WireBatch *wire, int32_t error, const Verdict *verdict) noexcept nogil:
    """End the records that the broker has named with `error`, and let the others of one batch be sent again."""
    if not prepare_named(core, wire, wire.entry.contributors, 0, error, verdict):
        return PART_REFUSED
    _commit(core, wire, verdict)
    return PART_DONE
