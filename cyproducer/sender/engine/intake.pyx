"""Takes batches from the arenas of the front-ends: from a hint in a submission ring to a checked batch in a queue."""


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


# ------------------------------------------------------------ validation
#
# Checks that a sealed batch holds valid records, as many as its front-end has declared, in memory that it has written.
#
# A broker trusts what the sender's CRC covers, and it does not check everything that consumers rely on. So a batch that
# is sent as its front-end built it is walked once, just before its CRC is computed. A merged batch was checked while
# its records were copied.


ctypedef struct RecordCursor:
    # the read position in a record that lies in several chunks
    FrontEnd *front_end
    uint32_t slot
    uint32_t at
    uint64_t left


cdef bint chunks_are_written(ClientBatch *batch) noexcept nogil:
    """Return whether the chunks of a sealed batch may be read."""
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
    batch.intake.largest = 0
    if batch.intake.count == 1 and front_end.chunk_bytes[slot] < batch.intake.bytes:
        batch.intake.largest = batch.intake.bytes
        return _one_record(batch)
    while slot != CYP_NONE:
        if not check_records(
            front_end.chunks + <uint64_t>slot * CYP_UNIT_BYTES,
            front_end.chunk_bytes[slot],
            front_end.chunk_count[slot],
            first,
            &batch.intake.largest,
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
    cursor.left = batch.intake.bytes
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


# ------------------------------------------------------------ accumulator
#
# Queues the batches of all front-ends by partition until they are drained, like RecordAccumulator in Kafka.
#
# The entries of a submission ring are only hints; the slot table is authoritative. Everything that a front-end can
# write is read once, checked against private geometry, and kept in private memory. A front-end that breaks the protocol
# is detached. It can lose only its own records.


cdef const char *NO_LANE = b"the sender has too many partitions of transactional producers: use fewer of them"


cdef enum:
    SLOTS_PER_TURN = 16384          # rows scanned per iteration, of front-ends that have ended
    HINTS_PER_TURN = 16384          # per front-end and iteration; the rest waits, so that others are served


cdef void flag_violation(Core *core, FrontEnd *front_end, int why) noexcept nogil:
    """Note that the front-end broke the protocol: nothing of it is read again, and Python detaches it."""
    if not front_end.intake.violation:
        front_end.intake.violation = <uint8_t>why
        push_event(core, EVENT_VIOLATION, 0, why, front_end.attach_id)


cdef bint anything_submitted(Core *core) noexcept nogil:
    """Return whether an active front-end has submitted something: the last check before sleeping."""
    cdef FrontEnd *front_end = core.loop.active
    while front_end != NULL:
        if not front_end.intake.violation \
                and submit_tail(&front_end.header.submit_tail) != front_end.intake.submit_head:
            return True
        front_end = front_end.loop.active_next
    return False


cdef void accumulate(Core *core) noexcept nogil:
    """Take what every active front-end has submitted. Make a front-end idle if it submits nothing for a while."""
    cdef FrontEnd *front_end = core.loop.active
    cdef FrontEnd *following
    while front_end != NULL:
        following = front_end.loop.active_next
        core.totals.looks += 1
        if front_end.intake.violation:
            deactivate(core, front_end)
        elif submit_tail(&front_end.header.submit_tail) != front_end.intake.submit_head:
            read_submissions(core, front_end)
        elif core.loop.now - front_end.loop.active_ns > front_end.idle_after_ns:
            make_idle(core, front_end)
        front_end = following
    untouch(core)


cdef bint read_submissions(Core *core, FrontEnd *front_end) noexcept nogil:
    """Take what a front-end has submitted, up to HINTS_PER_TURN entries. Return whether that is all.

    It never is all after a violation. Call untouch() after this.
    """
    cdef uint64_t entry, _taken, tail = submit_tail(&front_end.header.submit_tail)
    front_end.loop.active_ns = core.loop.now
    touch(core, front_end, CYP_NONE)
    if tail - front_end.intake.submit_head > front_end.submit_mask + 1:
        flag_violation(core, front_end, VIOLATION_RING)
    for _taken in range(min(tail - front_end.intake.submit_head, <uint64_t>HINTS_PER_TURN)):
        if front_end.intake.violation:
            break
        entry = submit_read(front_end.submit_ring, front_end.submit_mask, front_end.intake.submit_head)
        front_end.intake.submit_head += 1
        _read_hint(core, front_end, submit_kind(entry), submit_slot(entry), submit_generation(entry))
        CRASHPOINT(b"accumulate.hint-taken")
    front_end.outcomes_header.submit_head = front_end.intake.submit_head
    return not front_end.intake.violation and tail == front_end.intake.submit_head


cdef void _read_hint(Core *core, FrontEnd *front_end, uint32_t kind, uint32_t slot, uint32_t generation) noexcept nogil:
    """Handle an entry of a submission ring: a batch was opened (OPEN) or is full (FULL)."""
    cdef ClientBatch *batch
    if slot >= front_end.slot_count or (kind != CYP_SUBMIT_OPEN and kind != CYP_SUBMIT_FULL):
        flag_violation(core, front_end, VIOLATION_HINT)
        return
    if not row_is_written(front_end, slot):
        flag_violation(core, front_end, VIOLATION_HINT)
        return
    touch(core, front_end, slot)
    batch = &front_end.batches[slot]
    if batch.intake.state == BATCH_NONE:
        batch = admit(core, front_end, slot, generation, False)
        if batch == NULL:
            return
    elif batch.generation != generation:
        return  # the batch was completed before its hint was read
    if kind == CYP_SUBMIT_FULL and (batch.intake.state == BATCH_LINGERING or batch.intake.state == BATCH_DUE):
        seal(core, batch)


cdef ClientBatch *admit(
    Core *core, FrontEnd *front_end, uint32_t slot, uint32_t generation, bint in_takeover
) noexcept nogil:
    """Queue a batch that the sender does not know yet. Return NULL if there is none, or if it ended with an error.

    `in_takeover`: this is a takeover, so the predecessor may have seen the batch, and sealed it.
    """
    cdef Verdict verdict
    cdef cyp_slot_row *row = &front_end.rows[slot]
    cdef uint64_t word = slot_peek(row)
    cdef uint32_t id = load_relaxed32(&row.topic)  # each field is read once: the front-end may change it at any time
    cdef uint32_t topic = topic_id_number(id)
    cdef int32_t partition_number = load_relaxed_i32(&row.partition)
    cdef ClientBatch *batch
    cdef Queue *queue
    if not word_is_live(word, generation) and not (in_takeover and word_is_taken(word, generation)):
        return NULL
    batch = init_batch(core, front_end, slot, generation)
    if topic >= core.topics.count or partition_number < 0 \
            or partition_number >= core.topics.table[topic].topics.partition_count:
        _linger_append(core, front_end, batch)
        seal(core, batch)
        if batch.intake.state != BATCH_NONE:
            release_batch(core, batch, -1, -1, CODE_UNKNOWN_PARTITION, NULL)
        return NULL
    if id != topic_id(topic, core.topics.table[topic].generation):
        flag_violation(core, front_end, VIOLATION_TOPIC)
        release_batch(core, batch, -1, -1, CODE_INVALID_BATCH, NULL)
        return NULL
    queue = queue_for(front_end, core.topics.table[topic].topics.partitions[partition_number])
    if queue == NULL and front_end.transaction != NULL:
        _linger_append(core, front_end, batch)
        if seal(core, batch):
            verdict = Verdict(NULL, <const uint8_t *>NO_LANE, <uint32_t>strlen(NO_LANE), False, 0, NULL)
            release_batch(core, batch, -1, -1, CODE_TRANSACTION_ABORTED, &verdict)
        return NULL
    if queue == NULL:
        release_batch(core, batch, -1, -1, CODE_INVALID_BATCH, NULL)
        return NULL
    if not core.topics.table[topic].topics.used:
        flag_use(core, core.topics.table[topic])
    if core.topics.table[topic].loop.not_refreshed \
            or (queue.intake.lane.drain.leader == NULL and queue.intake.lane.intake.queues.first == NULL):
        core.topics.table[topic].loop.not_refreshed = False
        want_refresh(core)
    _enqueue(queue, batch)
    _linger_append(core, front_end, batch)
    if front_end.transaction != NULL and current_copy(front_end.transaction).failed:
        schedule_failing(front_end.transaction)
    CRASHPOINT(b"accumulate.admitted")
    return batch


cdef ClientBatch *init_batch(Core *core, FrontEnd *front_end, uint32_t slot, uint32_t generation) noexcept nogil:
    """Create the private state of the batch that starts in `slot`: LINGERING, live, without a result.

    Its delivery timeout and its linger time start with its first record, in this arena or an earlier one. The sender
    may see it late, or may have been stopped or killed. The front-end's times are not trusted: a time in the future, or
    0, counts as now, and an old time only makes its own batch due or expired sooner. The linger list stays sorted, so
    that its head is always the next batch that becomes due: created_ns is never earlier than that of the batch before.
    """
    cdef cyp_slot_row *row = &front_end.rows[slot]
    cdef uint64_t opened_ns = load_relaxed(&row.opened_ns)
    cdef uint64_t waited_ns = load_relaxed32(&row.waited_ms) * <uint64_t>1000000   # in an earlier arena
    cdef ClientBatch *batch = &front_end.batches[slot]
    memset(batch, 0, sizeof(ClientBatch))
    batch.intake.state = BATCH_LINGERING
    batch.slot = slot
    batch.generation = generation
    batch.open_seq = load_relaxed(&row.open_seq)
    batch.intake.base_timestamp = <int64_t>load_relaxed(<uint64_t *>&row.base_timestamp)
    batch.intake.max_timestamp = batch.intake.base_timestamp
    batch.intake.born_ns = opened_ns if 0 < opened_ns < core.loop.now else core.loop.now
    batch.intake.born_ns -= min(batch.intake.born_ns, waited_ns)
    batch.intake.created_ns = batch.intake.born_ns
    if front_end.intake.linger_tail != NULL:
        batch.intake.created_ns = max(batch.intake.created_ns, front_end.intake.linger_tail.intake.created_ns)
    batch.front_end = front_end
    front_end.intake.live += 1
    core.intake.live_batches += 1
    age_append(core, front_end, batch)
    return batch


cdef Queue *queue_for(FrontEnd *front_end, Lane *lane) noexcept nogil:
    """Return the front-end's queue for the partition with this ordinary lane, created if needed; NULL without memory.

    The queue of a transactional producer is in the lane of its transaction.
    """
    cdef uint32_t index = lane.index, capacity
    cdef Queue **grown
    if index < front_end.intake.queue_capacity and front_end.intake.queues[index] != NULL:
        return front_end.intake.queues[index]
    if front_end.transaction != NULL:
        lane = lane_of(front_end.transaction, lane)
        if lane == NULL:
            return NULL
    if index >= front_end.intake.queue_capacity:
        capacity = 2 * (index + 32)
        grown = <Queue **>realloc(front_end.intake.queues, capacity * sizeof(Queue *))
        if grown == NULL:
            return NULL
        memset(
            grown + front_end.intake.queue_capacity, 0, (capacity - front_end.intake.queue_capacity) * sizeof(Queue *)
        )
        front_end.intake.queues = grown
        front_end.intake.queue_capacity = capacity
    front_end.intake.queues[index] = <Queue *>calloc(1, sizeof(Queue))
    if front_end.intake.queues[index] != NULL:
        front_end.intake.queues[index].front_end = front_end
        front_end.intake.queues[index].intake.lane = lane
    return front_end.intake.queues[index]


cdef void _enlist_queue(Queue *queue) noexcept nogil:
    """Append the queue to the ring of its lane; its deficit starts at 0."""
    cdef Lane *lane = queue.intake.lane
    queue.drain.deficit = 0
    ring_append(&lane.intake.queues, &queue.link)
    if queue.refusal.isolated and not lane.isolation:
        lane.refusal.isolation_pending = True


cdef void rotate_queues(Queue *queue, Queue *first) noexcept nogil:
    """Rotate the lane's ring so that it begins with `first`, and move `queue`, another one, to its end."""
    cdef Ring *ring = &queue.intake.lane.intake.queues
    ring_remove(ring, &queue.link)
    ring_rotate(ring, &first.link)
    ring_append(ring, &queue.link)


cdef void _enqueue(Queue *queue, ClientBatch *batch) noexcept nogil:
    batch.queue = queue
    batch.intake.next = NULL
    if queue.intake.head == NULL:
        queue.intake.head = batch
        _enlist_queue(queue)
    else:
        queue.intake.tail.intake.next = batch
        batch.intake.previous = queue.intake.tail
        if queue.intake.tail.intake.state == BATCH_LINGERING:
            _due(queue.intake.tail)  # a newer batch exists: the front-end will not add to this one
    queue.intake.tail = batch
    queue.intake.length += 1
    relist(queue.intake.lane)
    relist_queue(queue)


cdef ClientBatch *pop_head(Queue *queue) noexcept nogil:
    """Remove the head, which must be CLOSED, from the queue and return it."""
    cdef ClientBatch *batch = queue.intake.head
    queue.intake.head = batch.intake.next
    batch.intake.next = NULL
    queue.intake.length -= 1
    if queue.intake.head == NULL:
        queue.intake.tail = NULL
        ring_remove(&queue.intake.lane.intake.queues, &queue.link)
    else:
        queue.intake.head.intake.previous = NULL
    queue.intake.lane.intake.ready -= 1
    relist(queue.intake.lane)
    relist_queue(queue)
    return batch


cdef void remove(Queue *queue, ClientBatch *batch) noexcept nogil:
    """Remove a CLOSED batch from any position of its queue."""
    if queue.intake.head == batch:
        pop_head(queue)
        return
    batch.intake.previous.intake.next = batch.intake.next
    if batch.intake.next != NULL:
        batch.intake.next.intake.previous = batch.intake.previous
    else:
        queue.intake.tail = batch.intake.previous
    batch.intake.next = NULL
    batch.intake.previous = NULL
    queue.intake.length -= 1
    queue.intake.lane.intake.ready -= 1
    relist(queue.intake.lane)
    relist_queue(queue)


cdef void put_back(ClientBatch *batch) noexcept nogil:
    """Put a batch that was assigned back at the front of its queue."""
    cdef Queue *queue = batch.queue
    batch.intake.state = BATCH_CLOSED
    batch.wire.batch = NULL
    batch.intake.next = queue.intake.head
    if queue.intake.head == NULL:
        queue.intake.tail = batch
        queue.intake.head = batch
        _enlist_queue(queue)
    else:
        queue.intake.head.intake.previous = batch
    queue.intake.head = batch
    queue.intake.length += 1
    queue.intake.lane.intake.ready += 1
    relist(queue.intake.lane)
    relist_queue(queue)


cdef void move_queue(Queue *queue, Lane *lane) noexcept nogil:
    """Move the queue to the other lane of its partition. None of its batches may be assigned."""
    cdef Lane *left = queue.intake.lane
    cdef ClientBatch *batch = queue.intake.head
    cdef uint32_t ready = 0
    while batch != NULL:
        ready += batch.intake.state != BATCH_LINGERING
        batch = batch.intake.next
    if queue.intake.head != NULL:
        ring_remove(&queue.intake.lane.intake.queues, &queue.link)
    if queue.drain.backlog.flow != NULL:
        unlist_backlog(&queue.drain.backlog)
    left.intake.ready -= ready
    relist(left)
    queue.intake.lane = lane
    if queue.intake.head != NULL:
        _enlist_queue(queue)
    lane.intake.ready += ready
    relist(lane)
    relist_queue(queue)


cdef void _linger_append(Core *core, FrontEnd *front_end, ClientBatch *batch) noexcept nogil:
    batch.intake.linger_previous = front_end.intake.linger_tail
    batch.intake.linger_next = NULL
    if front_end.intake.linger_tail != NULL:
        front_end.intake.linger_tail.intake.linger_next = batch
    else:
        front_end.intake.linger_head = batch
        schedule_deadline(core, front_end, batch.intake.created_ns + front_end.settings.linger_ns)
    front_end.intake.linger_tail = batch


cdef void _linger_unlink(FrontEnd *front_end, ClientBatch *batch) noexcept nogil:
    if batch.intake.linger_previous != NULL:
        batch.intake.linger_previous.intake.linger_next = batch.intake.linger_next
    else:
        front_end.intake.linger_head = batch.intake.linger_next
    if batch.intake.linger_next != NULL:
        batch.intake.linger_next.intake.linger_previous = batch.intake.linger_previous
    else:
        front_end.intake.linger_tail = batch.intake.linger_previous


cdef void _due(ClientBatch *batch) noexcept nogil:
    """Make a LINGERING batch DUE."""
    _linger_unlink(batch.front_end, batch)
    batch.intake.state = BATCH_DUE
    batch.queue.intake.lane.intake.ready += 1
    relist(batch.queue.intake.lane)
    relist_queue(batch.queue)


cdef bint seal(Core *core, ClientBatch *batch) noexcept nogil:
    """Close an open batch and measure its chain. Return False if it was malformed; then it is finished.

    The count and bytes of each chunk are read once and kept privately, so that nothing the front-end stores later
    changes what is sent. A chunk is held until its batch is released, so that no other chain can use it.
    """
    cdef FrontEnd *front_end = batch.front_end
    cdef uint32_t slot = batch.slot, chunks = 0
    cdef uint64_t size = 0, count = 0
    cdef uint64_t word, room
    cdef int64_t max_timestamp = batch.intake.base_timestamp
    if batch.intake.state == BATCH_LINGERING:
        _linger_unlink(front_end, batch)
        if batch.queue != NULL:
            batch.queue.intake.lane.intake.ready += 1
    touch(core, front_end, slot)
    batch.intake.state = BATCH_CLOSED
    if batch.queue != NULL:
        relist(batch.queue.intake.lane)
        relist_queue(batch.queue)
    while True:
        if front_end.chunk_held[slot] or not row_is_written(front_end, slot):
            return _malformed(core, batch)
        room = (front_end.slot_count - slot) * <uint64_t>CYP_UNIT_BYTES
        word = slot_seal(&front_end.rows[slot], chunks == 0, batch.generation, room)
        if word_state(word) == CYP_TAKEN:
            CRASHPOINT(b"seal.taken")
        chunks += 1
        size += word_bytes(word)
        count += word_count(word)
        if word == 0 or chunks > front_end.slot_count or count > INT32_MAX \
                or size > core.settings.max_request_size + 65536:
            return _malformed(core, batch)
        if not _chunk_max_timestamp(front_end, batch, slot, word, &max_timestamp):
            return _malformed(core, batch)
        front_end.chunk_held[slot] = 1
        batch.intake.chunks = chunks
        front_end.chunk_bytes[slot] = word_bytes(word)
        front_end.chunk_count[slot] = word_count(word)
        front_end.chunk_next[slot] = CYP_NONE
        if not word_continues(word):
            break
        front_end.chunk_next[slot] = slot_next(&front_end.rows[slot])
        slot = front_end.chunk_next[slot]
        if slot >= front_end.slot_count:
            return _malformed(core, batch)
    batch.intake.count = <uint32_t>count
    batch.intake.bytes = <uint32_t>size
    batch.intake.max_timestamp = max_timestamp
    front_end.intake.bytes_live += size
    CRASHPOINT(b"seal.measured")
    if count == 0:
        return _malformed(core, batch)
    return True


cdef bint _chunk_max_timestamp(
    FrontEnd *front_end, ClientBatch *batch, uint32_t slot, uint64_t word, int64_t *maximum
) noexcept nogil:
    """Update `maximum` with the timestamps of a chunk. Return False if its records are malformed.

    The front-end's hint is used if it covers exactly the records that the word counts; else the records are walked.
    """
    cdef int64_t found = 0, delta = 0
    cdef const uint8_t *chunk
    if word_count(word) == 0:
        return True
    if not slot_hinted(&front_end.rows[slot], word, &found):
        chunk = front_end.chunks + <uint64_t>slot * CYP_UNIT_BYTES
        if not chunk_is_written(front_end, slot, word_bytes(word)):
            return False
        if scan_records(chunk, word_bytes(word), word_count(word), &delta) < 0:
            return False
        # unsigned, because with malicious timestamps the sum may wrap
        found = <int64_t>(<uint64_t>batch.intake.base_timestamp + <uint64_t>delta)
    if found > maximum[0]:
        maximum[0] = found
    return True


cdef bint _malformed(Core *core, ClientBatch *batch) noexcept nogil:
    """Finish a malformed batch with an error and report the violation. Return False."""
    cdef FrontEnd *front_end = batch.front_end
    if batch.queue != NULL:
        remove(batch.queue, batch)
    flag_violation(core, front_end, VIOLATION_CHAIN)
    release_batch(core, batch, -1, -1, CODE_INVALID_BATCH, NULL)
    return False


cdef void linger(Core *core, FrontEnd *front_end) noexcept nogil:
    """Make the front-end's batches due whose linger time is over."""
    cdef ClientBatch *batch = front_end.intake.linger_head
    while batch != NULL and batch.intake.created_ns + front_end.settings.linger_ns <= core.loop.now:
        _due(batch)
        batch = front_end.intake.linger_head


cdef int _by_open_seq(const void *a, const void *b) noexcept nogil:
    cdef uint64_t left = (<const uint64_t *>a)[0], right = (<const uint64_t *>b)[0]
    return (left > right) - (left < right)


cdef bint next_used(FrontEnd *front_end, uint32_t *first, uint32_t *end) noexcept nogil:
    """Find the next slots, from `first` on, with rows that may be used: [first, end). Return False if there are none.

    Rows without memory were never written. Reading them would allocate it, and it would count for the sender's cgroup:
    64 MiB for an arena of 4 GiB.
    """
    cdef uint64_t at = <uint64_t>front_end.rows - <uint64_t>front_end.header, start = 0, to = 0
    if not next_data(
        front_end.arena_fd, at + first[0] * sizeof(cyp_slot_row), at + front_end.slot_count * sizeof(cyp_slot_row),
        &start, &to,
    ):
        return False
    first[0] = <uint32_t>((start - at) // sizeof(cyp_slot_row))
    end[0] = <uint32_t>((to - at + sizeof(cyp_slot_row) - 1) // sizeof(cyp_slot_row))
    return True


cdef void scan(Core *core, FrontEnd *front_end) noexcept nogil:
    """Scan the whole slot table of a front-end that ends: take all that it committed, and revoke the used slots."""
    while not scan_some(core, front_end, front_end.slot_count):
        pass


cdef bint scan_some(Core *core, FrontEnd *front_end, uint32_t most) noexcept nogil:
    """Scan up to `most` further slots. Return True when all are done and the batches found are queued by open_seq.

    The control word must be stored before: in a slot that was never used, it keeps the owner from committing a record.
    """
    cdef uint32_t slot, end = 0, index
    cdef uint64_t word
    if front_end.intake.unknown == NULL:
        front_end.intake.unknown = <uint64_t *>calloc(front_end.slot_count, 2 * sizeof(uint64_t))
    while next_used(front_end, &front_end.intake.scanned, &end):
        end = min(end, front_end.intake.scanned + most)
        for slot in range(front_end.intake.scanned, end):
            word = slot_revoke(&front_end.rows[slot])
            if word_state(word) == CYP_REVOKED:
                CRASHPOINT(b"reclaim.slot-revoked")
            if not word_is_live(word, word_generation(word)) or front_end.intake.unknown == NULL:
                continue
            if front_end.batches[slot].intake.state == BATCH_NONE:
                front_end.intake.unknown[2 * front_end.intake.unknown_count] = load_relaxed(
                    &front_end.rows[slot].open_seq
                )
                front_end.intake.unknown[2 * front_end.intake.unknown_count + 1] = slot
                front_end.intake.unknown_count += 1
        most -= end - front_end.intake.scanned
        front_end.intake.scanned = end
        if most == 0:
            return False
    CRASHPOINT(b"reclaim.scanned")
    if front_end.intake.unknown != NULL:
        qsort(front_end.intake.unknown, front_end.intake.unknown_count, 2 * sizeof(uint64_t), _by_open_seq)
    for index in range(front_end.intake.unknown_count):
        slot = <uint32_t>front_end.intake.unknown[2 * index + 1]
        if front_end.batches[slot].intake.state == BATCH_NONE:
            admit(core, front_end, slot, word_generation(slot_peek(&front_end.rows[slot])), False)
    free(front_end.intake.unknown)
    front_end.intake.unknown = NULL
    front_end.intake.unknown_count = 0
    while front_end.intake.linger_head != NULL:
        seal(core, front_end.intake.linger_head)
    return True


cdef void forget_batch(Core *core, ClientBatch *batch) noexcept nogil:
    """Note that a batch is released: its chunks are not held any longer, and its slots may have another batch."""
    cdef FrontEnd *front_end = batch.front_end
    cdef uint32_t slot = batch.slot
    while batch.intake.chunks:
        batch.intake.chunks -= 1
        front_end.chunk_held[slot] = 0
        slot = front_end.chunk_next[slot]
    batch.intake.state = BATCH_NONE
    front_end.intake.live -= 1
    front_end.intake.bytes_live -= batch.intake.bytes
    core.intake.live_batches -= 1


cdef void scan_ending(Core *core) noexcept nogil:
    """Scan a part of the slot table of a front-end that has ended or is released, if there is one."""
    cdef FrontEnd *front_end = core.front_ends.ending
    if front_end == NULL:
        return
    if scan_some(core, front_end, SLOTS_PER_TURN):
        end_scan(core, front_end)
        if front_end.front_ends.detached and front_end.intake.live == 0:
            end_front_end(core, front_end)
    untouch(core)
    if core.front_ends.ending != NULL:
        schedule_timer(core, core.loop.now)
