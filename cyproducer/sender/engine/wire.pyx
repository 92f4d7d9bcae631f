"""Assigns batches to entries (RecordBatches), gives them sequences, and publishes their results.

An entry is persistent: it lies in the state region. It is filled, then it becomes ASSIGNED. The SENT words and the flag
UNSURE are stored before a byte of it may reach the socket. It becomes RESOLVED, with its result, before any front-end
gets an outcome. Then acked_end of the partition is stored, then the outcomes are published, and only then the entry
becomes FREE. At every point a successor of a killed sender finds enough to continue (recovery.pyx). The next sequence
is not stored: it is the largest of acked_end and the ends of the entries. If an entry causes a new epoch, the demand
for that epoch is stored before the entry may be freed.

Sequences are 64-bit numbers here and do not wrap. In the batch header they wrap from 2^31 - 1 to 0, as Kafka's do.
"""


cdef enum:
    SEQUENCE_MASK = 0x7fffffff
    TRANSACTIONAL = 0x10            # attribute of a batch that belongs to a transaction
    KAFKA_CODE_MAX = 1000           # the codes of this project are beyond it


cdef inline uint32_t wire_bytes(const WireBatch *wire) noexcept nogil:
    """Return the size of the wire batch's records in bytes as they are sent."""
    return wire.compression.packed_bytes if wire.compression.packed != NULL else wire.entry.length


cdef WireBatch *init_wire(Core *core, uint32_t index, Lane *lane) noexcept nogil:
    """Initialise the wire batch of the entry `index`, which is in no list yet, and return it.

    The entry is that of a batch of `lane`, and its flags, attempts, acks and body are filled in. The caller sets what
    the entry does not say: `idempotent`, `retried`, and what follows from the contributors.
    """
    cdef WireBatch *wire = &core.wires[index]
    cdef cyp_entry *entry = &core.entries[index]
    memset(wire, 0, sizeof(WireBatch))
    wire.wire.state = WIRE_WAITING
    wire.index = index
    wire.entry = entry
    wire.lane = lane
    wire.wire.body = NULL if entry.body == CYP_NONE else core.bodies + <uint64_t>entry.body * CYP_BLOCK_BYTES
    wire.wire.retries = INT32_MAX  # the smallest number of the contributors
    wire.acks = entry.acks
    wire.partial = (entry.flags & CYP_ENTRY_PARTIAL) != 0
    wire.wire.stamped = entry.attempts > 0
    restore_knowledge(wire)
    return wire


cdef inline uint32_t pop_entry(Core *core) noexcept nogil:
    """Take a free entry and return its index. The caller has checked that there is one."""
    core.wire.free_wire_count -= 1
    return core.wire.free_wires[core.wire.free_wire_count]


cdef WireBatch *assign(Core *core, Lane *lane, ClientBatch **batches, uint32_t count) noexcept nogil:
    """Create an entry for closed batches that left their queues. Return NULL on failure; the caller puts them back.

    The records of more than one batch are re-encoded into a body of the state region, with consecutive offset deltas.
    """
    cdef uint8_t *body = NULL
    cdef WireBatch *wire
    if core.wire.free_wire_count == 0 or core.wire.free_contributor_count < count:
        return NULL
    if count > 1:
        if core.wire.free_body_count == 0:
            return NULL
        body = alloc_body(core)
    wire = new_wire(core, lane, batches, count, body)
    CRASHPOINT(b"build.filled")
    if body == NULL:
        wire.entry.length = batches[0].intake.bytes
    elif not _merge(core, wire):
        _unassign(core, wire)
        free_wire(core, wire)
        return NULL
    give_sequence(core, wire)
    link_before(lane, wire, NULL)
    CRASHPOINT(b"build.sequenced")
    entry_enter(wire.entry, CYP_ENTRY_ASSIGNED)  # a successor sees it filled
    CRASHPOINT(b"build.assigned")
    return wire


cdef uint8_t *alloc_body(Core *core) noexcept nogil:
    """Take a free body: 64 KiB of the state region. The caller has checked that there is one."""
    core.wire.free_body_count -= 1
    return core.bodies + <uint64_t>core.wire.free_bodies[core.wire.free_body_count] * CYP_BLOCK_BYTES


cdef WireBatch *new_wire(Core *core, Lane *lane, ClientBatch **batches, uint32_t count, uint8_t *body) noexcept nogil:
    """Take a free entry and fill in everything except its length and sequence."""
    cdef uint32_t index = pop_entry(core), row, previous_row = CYP_NONE, first = 0
    cdef cyp_contributor *contributor
    cdef WireBatch *wire
    cdef cyp_entry *entry = &core.entries[index]
    entry.flags = 0
    entry.partition = lane.index
    entry.attempts = 0
    entry.cause = 0
    entry.acks = batches[0].front_end.settings.acks
    entry.order = core.wire.next_order
    entry.parent = CYP_NONE
    core.wire.next_order += CYP_ENTRY_ORDER_STEP
    entry.attributes = TRANSACTIONAL if lane.transaction != NULL else 0
    entry.created_ns = core.loop.now
    entry.base_timestamp = batches[0].intake.base_timestamp
    entry.max_timestamp = batches[0].intake.max_timestamp
    entry.body = CYP_NONE if body == NULL else <uint32_t>((body - core.bodies) // CYP_BLOCK_BYTES)
    entry.contributors = CYP_NONE
    wire = init_wire(core, index, lane)
    wire.idempotent = batches[0].front_end.idempotent
    wire.compression.codec = batches[0].front_end.codec
    wire.level = batches[0].front_end.level
    wire.wire.contributor_count = count
    wire.refusal.unreported = count
    charge_new(core, wire, batches[0].front_end)
    for index in range(count):
        core.wire.free_contributor_count -= 1
        row = core.wire.free_contributors[core.wire.free_contributor_count]
        contributor = &core.contributors[row]
        contributor.attach_id = batches[index].front_end.attach_id
        contributor.slot = batches[index].slot
        contributor.generation = batches[index].generation
        contributor.first = first
        contributor.count = batches[index].intake.count
        contributor.start = 0
        contributor.flags = 0
        contributor.next = CYP_NONE
        core.contributor_batches[row] = batches[index]
        if previous_row == CYP_NONE:
            entry.contributors = row
        else:
            core.contributors[previous_row].next = row
        previous_row = row
        first += batches[index].intake.count
        wire.wire.retries = min(wire.wire.retries, batches[index].front_end.settings.retries)
        batches[index].intake.state = BATCH_ASSIGNED
        batches[index].wire.batch = wire
    entry.count = first
    return wire


cdef bint _merge(Core *core, WireBatch *wire) noexcept nogil:
    """Re-encode the contributors' records into the body. Return False if they do not fit or some are malformed."""
    cdef uint32_t row = wire.entry.contributors, slot, first = 0
    cdef uint64_t at = 0
    cdef int64_t written, base = wire.entry.base_timestamp, delta = 0
    cdef ClientBatch *batch
    cdef FrontEnd *front_end
    while row != CYP_NONE:
        batch = core.contributor_batches[row]
        front_end = batch.front_end
        slot = batch.slot
        touch(core, front_end, slot)
        batch.intake.largest = 0
        if not chunks_are_written(batch):
            batch.refusal.unmergeable = True
            return False
        while slot != CYP_NONE:
            if front_end.chunk_count[slot] == 0:  # sealed just after the front-end had added this chunk
                slot = front_end.chunk_next[slot]
                continue
            written = merge_records(
                front_end.chunks + <uint64_t>slot * CYP_UNIT_BYTES,
                front_end.chunk_bytes[slot],
                front_end.chunk_count[slot],
                batch.intake.base_timestamp - base,
                first,
                wire.wire.body + at,
                CYP_BLOCK_BYTES - at,
                &delta,
                &batch.intake.largest,
            )
            if written < 0:
                batch.refusal.unmergeable = True  # it is sent alone, so that the broker checks only this batch
                return False
            at += written
            first += front_end.chunk_count[slot]
            slot = front_end.chunk_next[slot]
        if batch.intake.max_timestamp > wire.entry.max_timestamp:
            wire.entry.max_timestamp = batch.intake.max_timestamp
        row = core.contributors[row].next
    wire.entry.length = <uint32_t>at
    CRASHPOINT(b"build.merged")
    core.totals.merged += wire.wire.contributor_count
    return True


cdef void _unassign(Core *core, WireBatch *wire) noexcept nogil:
    cdef uint32_t row = wire.entry.contributors
    while row != CYP_NONE:
        core.contributor_batches[row].intake.state = BATCH_CLOSED
        core.contributor_batches[row].wire.batch = NULL
        row = core.contributors[row].next


cdef bint any_idempotent(Lane *lane) noexcept nogil:
    """Return whether the lane has an unresolved entry with a sequence."""
    cdef WireBatch *wire = lane.wire.head
    while wire != NULL:
        if wire.idempotent:
            return True
        wire = wire.wire.next
    return False


cdef WireBatch *newest_unsure(Lane *lane) noexcept nogil:
    """Return the last batch of the lane that may be in the log; NULL if there is none."""
    cdef WireBatch *wire = lane.wire.tail
    while wire != NULL and not (wire.idempotent and wire.idempotence.unsure):
        wire = wire.wire.previous
    return wire


cdef bint is_retrying(Lane *lane) noexcept nogil:
    """Return whether an attempt of an unresolved entry with a sequence has failed in this lane."""
    cdef WireBatch *wire = lane.wire.head
    while wire != NULL:
        if wire.idempotent and wire.wire.retried:
            return True
        wire = wire.wire.next
    return False


cdef void link_before(Lane *lane, WireBatch *wire, WireBatch *following) noexcept nogil:
    """Insert the wire batch into the lane's list of unresolved entries before `following`, or at the end if NULL."""
    cdef WireBatch *before = lane.wire.tail if following == NULL else following.wire.previous
    wire.wire.next = following
    wire.wire.previous = before
    if before != NULL:
        before.wire.next = wire
    else:
        lane.wire.head = wire
    if following != NULL:
        following.wire.previous = wire
    else:
        lane.wire.tail = wire
    lane.wire.unresolved += 1
    lane.wire.waiting += 1


cdef void unlink_wire(Core *core, WireBatch *wire) noexcept nogil:
    """Remove the wire batch from the lane's list and free its entry."""
    cdef Lane *lane = wire.lane
    if wire.wire.state == WIRE_IN_FLIGHT:
        lane.wire.in_flight -= 1
    else:
        lane.wire.waiting -= 1
    if wire.wire.previous != NULL:
        wire.wire.previous.wire.next = wire.wire.next
    else:
        lane.wire.head = wire.wire.next
    if wire.wire.next != NULL:
        wire.wire.next.wire.previous = wire.wire.previous
    else:
        lane.wire.tail = wire.wire.previous
    lane.wire.unresolved -= 1
    free_wire(core, wire)
    relist(lane)
    if lane.transaction != NULL and lane.transaction.awaited:
        schedule_news(lane.transaction)


cdef void free_wire(Core *core, WireBatch *wire) noexcept nogil:
    cdef cyp_entry *entry = wire.entry
    cdef uint32_t row = entry.contributors, following
    discharge(wire)
    while row != CYP_NONE:
        following = core.contributors[row].next
        core.contributor_batches[row] = NULL
        core.wire.free_contributors[core.wire.free_contributor_count] = row
        core.wire.free_contributor_count += 1
        row = following
    if wire.wire.body != NULL:
        core.wire.free_bodies[core.wire.free_body_count] = entry.body
        core.wire.free_body_count += 1
    CRASHPOINT(b"complete.unlisted")
    free(wire.wire.copy)
    if wire.compression.packed != NULL:
        free_packed(wire)
    leave_reserve(core, wire)
    wire.wire.state = WIRE_FREE
    wire.wire.body = NULL
    wire.wire.copy = NULL
    wire.wire.request = NULL
    wire.lane = NULL
    entry_enter(entry, CYP_ENTRY_FREE)
    CRASHPOINT(b"complete.freed")
    core.wire.free_wires[core.wire.free_wire_count] = wire.index
    core.wire.free_wire_count += 1


cdef uint32_t records_crc(Core *core, WireBatch *wire) noexcept nogil:
    """Return the CRC-32C of the wire batch's records as they are in memory at this moment."""
    cdef uint32_t crc = 0, slot
    cdef ClientBatch *batch
    cdef FrontEnd *front_end
    if wire.wire.body != NULL:
        return crc32c(0, wire.wire.body, wire.entry.length)
    if wire.wire.copy != NULL:
        return crc32c(0, wire.wire.copy, wire.entry.length)
    batch = core.contributor_batches[wire.entry.contributors]
    front_end = batch.front_end
    slot = batch.slot
    touch(core, front_end, slot)
    while slot != CYP_NONE:
        crc = crc32c(crc, front_end.chunks + <uint64_t>slot * CYP_UNIT_BYTES, front_end.chunk_bytes[slot])
        slot = front_end.chunk_next[slot]
    return crc


cdef bint stamp(Core *core, WireBatch *wire) noexcept nogil:
    """Write the batch header with its CRC for the next attempt.

    Return False if the records differ from the attempt before: the front-end changed committed records. A new epoch
    does not hide this, since the CRC that is kept and compared covers the records without the header. Also return False
    if the records are malformed. This is checked after the CRC is computed: the broker finds every later change.
    """
    cdef cyp_entry *entry = wire.entry
    cdef bint in_chunks = wire.wire.body == NULL and wire.wire.copy == NULL
    cdef uint32_t crc
    if in_chunks and not chunks_are_written(core.contributor_batches[entry.contributors]):
        return False
    crc = records_crc(core, wire)
    if wire.wire.stamped:
        if entry.crc != crc:
            return False
    elif in_chunks and not well_formed(core.contributor_batches[entry.contributors]):
        return False
    entry.crc = crc
    CRASHPOINT(b"build.stamped")
    wire.wire.stamped = True
    if wire.compression.codec and wire.compression.packed == NULL:
        pack(core, wire)
    if wire.compression.packed != NULL:
        CRASHPOINT(b"build.packed")
        crc = crc32c(0, wire.compression.packed, wire.compression.packed_bytes)
    put_batch_header(
        wire.wire.header,
        wire_bytes(wire),
        entry.attributes | (wire.compression.codec if wire.compression.packed != NULL else 0),
        entry.count,
        entry.base_timestamp,
        entry.max_timestamp,
        entry.producer_id,
        entry.producer_epoch,
        <int32_t>(entry.base_sequence & SEQUENCE_MASK) if entry.producer_id >= 0 else -1,
    )
    crc = crc32c_combine(crc32c(0, wire.wire.header + CRC_START, BATCH_HEADER_BYTES - CRC_START), crc, wire_bytes(wire))
    put_crc(wire.wire.header, crc)
    return True


cdef void store_sent(Core *core, WireBatch *wire) noexcept nogil:
    """Note that the records may be in the log from here on. This must be called before the first byte is written."""
    cdef uint32_t row = wire.entry.contributors
    cdef ClientBatch *batch
    if wire.lane.transaction != NULL:
        open_transaction(wire.lane.transaction)
    while row != CYP_NONE:
        batch = core.contributor_batches[row]
        if batch != NULL:
            sent_mark(&batch.front_end.sent[batch.slot], batch.generation)
        row = core.contributors[row].next
    CRASHPOINT(b"write.sent-said")
    entry_unsure(wire.entry)
    CRASHPOINT(b"write.unsure")


cdef void release_contributor(
    Core *core, uint32_t row, int64_t base_offset, int64_t append_time, int32_t error, const Verdict *verdict
) noexcept nogil:
    """Remove a contributor's batch from its entry and finish it."""
    cdef ClientBatch *batch = core.contributor_batches[row]
    if batch != NULL:
        core.contributor_batches[row] = NULL
        release_batch(core, batch, base_offset, append_time, error, verdict)


cdef void acknowledge(Core *core, WireBatch *wire, int64_t base_offset, int64_t append_time) noexcept nogil:
    """Acknowledge a wire batch whose records the broker has. `base_offset` is -1 if the broker does not give it."""
    entry_resolve(wire.entry, 0, base_offset, append_time)
    CRASHPOINT(b"complete.resolved")
    publish_resolved(core, wire, NULL)


cdef void publish_resolved(Core *core, WireBatch *wire, const Verdict *verdict) noexcept nogil:
    """Publish the result of a RESOLVED entry to its contributors and free the entry."""
    cdef Lane *lane = wire.lane
    cdef cyp_entry *entry = wire.entry
    cdef uint32_t row = entry.contributors
    cdef int64_t offset = -1, append_time = -1
    cdef Queue *queue = NULL
    if entry.error == 0:
        lane.wire.last_error = 0
        append_time = entry.append_time
        core.totals.batches += 1
        if entry.producer_id >= 0:
            lane.wire.acknowledged_ns = core.loop.now
            store_acked(lane, entry)
            CRASHPOINT(b"complete.acked")
        if lane.isolation and row != CYP_NONE and core.contributor_batches[row] != NULL \
                and (not wire.partial or core.contributor_batches[row].parts.pending == 1):
            queue = core.contributor_batches[row].queue
    if wire.partial:
        resolve_part(core, wire, entry.base_offset if entry.error == 0 else -1, append_time, verdict)
        row = CYP_NONE
    while row != CYP_NONE:
        if entry.error == 0 and entry.base_offset >= 0:
            offset = entry.base_offset + core.contributors[row].first
        release_contributor(core, row, offset, append_time, entry.error, verdict)
        CRASHPOINT(b"complete.one-finished")
        row = core.contributors[row].next
    unlink_wire(core, wire)
    if queue != NULL:
        count_isolated_batch(queue)


cdef void store_cause(WireBatch *wire, int32_t error) noexcept nogil:
    """Store the Kafka error of a failed attempt. The final error of the batch gives the last one as its cause."""
    if error != 0 and -KAFKA_CODE_MAX < error < KAFKA_CODE_MAX:
        wire.entry.cause = wire.lane.wire.last_error = <int16_t>error
        CRASHPOINT(b"read.cause-noted")


cdef void fail_batch(Core *core, WireBatch *wire, int32_t error, const Verdict *verdict) noexcept nogil:
    """End the entry for all of its contributors: with `error`, or as unknown if an attempt was unsure.

    A batch that is proven to be in the log is acknowledged instead.
    """
    if wire.idempotence.unsure and wire.idempotence.proven:
        acknowledge(core, wire, wire.idempotence.proven_offset, -1)
        return
    if wire.idempotent and wire.idempotence.unsure:
        store_doubtful_end(wire)
    fail_unappended(core, wire, error, verdict)


cdef void fail_unappended(Core *core, WireBatch *wire, int32_t error, const Verdict *verdict) noexcept nogil:
    """End an entry that is not in the log, like fail_batch(). The batch of which it is a fragment may be in the log."""
    store_cause(wire, error)
    if wire.lane.transaction != NULL:
        fail_transaction(wire.lane.transaction, error)
        if wire.idempotence.unsure:
            error = CODE_TRANSACTION_ABORTED  # it may be in the log, and is not committed
    if wire.idempotent:
        demand_epoch(wire.lane)
    if wire.idempotence.unsure and wire.lane.transaction == NULL and error != CODE_REQUEST_TOO_LARGE:
        error = CODE_OUTCOME_UNKNOWN
    entry_resolve(wire.entry, error, -1, -1)
    CRASHPOINT(b"complete.given-up")
    publish_resolved(core, wire, verdict)


cdef void abort_batch(Core *core, WireBatch *wire) noexcept nogil:
    """End a waiting entry of a failed transaction."""
    demand_producer_epoch(wire.lane.transaction)
    entry_resolve(wire.entry, CODE_TRANSACTION_ABORTED, -1, -1)
    CRASHPOINT(b"transaction.entry-dropped")
    publish_resolved(core, wire, NULL)


cdef inline void put_in_flight(WireBatch *wire, Request *request) noexcept nogil:
    """Note that a waiting wire batch is in a request that will be written."""
    wire.wire.state = WIRE_IN_FLIGHT
    wire.wire.request = request
    wire.lane.wire.in_flight += 1
    wire.lane.wire.waiting -= 1


cdef void wait(Core *core, WireBatch *wire) noexcept nogil:
    """Let an entry wait for its next attempt."""
    if wire.wire.state == WIRE_IN_FLIGHT:
        count_retry(core, wire)
        wire.lane.wire.in_flight -= 1
        wire.lane.wire.waiting += 1
        wire.wire.state = WIRE_WAITING
    wire.wire.request = NULL
    wire.wire.retried = True
    relist(wire.lane)
    if wire.lane.transaction != NULL and current_copy(wire.lane.transaction).failed:
        schedule_failing(wire.lane.transaction)


cdef void retry(Core *core, WireBatch *wire, int32_t error, bint unsure, const Verdict *verdict) noexcept nogil:
    """Let the entry wait to be sent again, in order. Give it up with `error` if its retries are used up.

    `unsure`: the attempt may have been appended. With acks=0, an entry that was reported as sent is not sent again.
    """
    cdef Lane *lane = wire.lane
    # the leader's answer about the producer's state is from before this attempt: the state may expire before the next
    forget_state(lane)
    store_cause(wire, error)
    if unsure:
        set_unsure(wire)
    elif not wire.idempotence.unsure:
        entry_sure(wire.entry)
    if wire.entry.attempts > wire.wire.retries or (wire.refusal.unreported == 0 and not wire.idempotent) \
            or (wire.acks == 0 and wire.wire.request.connection.finished):
        fail_batch(core, wire, error, verdict)
        return
    wait(core, wire)
    core.totals.retries += 1
    fail_reported(core, lane, verdict)


cdef void fail_reported(Core *core, Lane *lane, const Verdict *verdict) noexcept nogil:
    """Give up entries whose contributors all have an outcome already, if that leaves no gap in the sequences.

    Entries without a sequence are given up at once. Others stay until the broker has answered. If all entries of the
    lane have such contributors, they are given up too: the next batch starts a new epoch, so there is no gap.
    """
    cdef WireBatch *wire = lane.wire.head
    cdef WireBatch *following
    cdef bint hopeless = lane.wire.in_flight == 0
    while wire != NULL:
        following = wire.wire.next
        if wire.refusal.unreported:
            hopeless = False
        elif not wire.idempotent and wire.wire.state == WIRE_WAITING:
            fail_batch(core, wire, CODE_OUTCOME_UNKNOWN, verdict)
        wire = following
    while hopeless and lane.wire.head != NULL:
        fail_batch(core, lane.wire.head, CODE_OUTCOME_UNKNOWN, verdict)
