"""Ends or isolates batches: what a broker has refused, what is too large for it, and what has expired."""


# ------------------------------------------------------------ error flags
#
# Says what a broker's error means for a batch: the flags of cyproducer/error_table.py, for code without the GIL.
#
# The flags are read from the table when the sender starts. An unknown code counts as UNKNOWN_SERVER_ERROR.


cdef enum:
    CODES_MAX = 256                 # a code is -1 or larger
    RETRIABLE = 1
    STALE_METADATA = 2
    APPENDED_MAYBE = 4
    CONTENT = 8


cdef uint8_t _flags[CODES_MAX]     # of the code that is smaller by 1


def _fill():
    """Copy the flags of the table."""
    cdef uint32_t index
    unknown = ERRORS.get(-1)
    for index in range(CODES_MAX):
        error = ERRORS.get(<int32_t>index - 1) or unknown
        _flags[index] = (
            RETRIABLE * error.retriable
            | STALE_METADATA * error.refresh_metadata
            | APPENDED_MAYBE * error.may_be_appended
            | CONTENT * error.blames_records
        )


_fill()


cdef inline uint8_t _flags_of(int32_t error) noexcept nogil:
    return _flags[error + 1 if -1 <= error < CODES_MAX - 1 else 0]


cdef bint is_retriable(int32_t error) noexcept nogil:
    """Return whether the batch is sent again (Kafka's RetriableException)."""
    return _flags_of(error) & RETRIABLE != 0


cdef bint is_stale_metadata(int32_t error) noexcept nogil:
    """Return whether the metadata must be refreshed (Kafka's InvalidMetadataException)."""
    return _flags_of(error) & STALE_METADATA != 0


cdef bint is_appended_maybe(int32_t error) noexcept nogil:
    """Return whether the error can also concern records that the leader has appended and that wait for other replicas.

    See DelayedProduce.tryComplete and onComplete in Kafka: while the request waits, the partition leaves this broker or
    its disk, has too few replicas, or the time is up. With acks=1 a request does not wait for replicas.
    """
    return _flags_of(error) & APPENDED_MAYBE != 0


cdef bint is_content(int32_t error) noexcept nogil:
    """Return whether the error is caused by the content of the batch."""
    return _flags_of(error) & CONTENT != 0


def flags_of(int32_t error):
    """Return (retriable, refresh_metadata, may_be_appended, blames_records) as native code sees them, for tests."""
    return is_retriable(error), is_stale_metadata(error), is_appended_maybe(error), is_content(error)


# ------------------------------------------------------------ rejection
#
# Handles batches that the broker refuses, and front-ends that change committed records.
#
# A front-end never gets an error that another front-end's records caused in a merged batch. If the broker refuses a
# merged batch and names records (record_errors, Produce v8), the contributors of these records leave, and a smaller
# batch of the others is sent in its place. If the broker names no record, every contributor gets an entry of its own in
# its place. A new epoch closes the gap that is left. Before that, all other unresolved batches of the isolated
# front-ends return to their queues, and these queues move to the isolation lane.
#
# If an unsure batch is refused, an earlier attempt may still be in the log: brokers check the content before the
# sequence. The fragments in its place find that out (idempotence.pyx). Without sequences it stays unknown.
#
# For a takeover see cyp_entry_state: the entries that replace another entry become valid with one store.


cdef void add_named(
    Core *core, Verdict *verdict, uint32_t record, const uint8_t *text, uint32_t text_bytes
) noexcept nogil:
    """Note a record that the broker names in a refused batch, and mark its contributor if the batch is merged.

    The caller calls fail() next.
    """
    cdef WireBatch *wire = verdict.wire
    cdef uint32_t row = wire.entry.contributors, at = verdict.named_count, index
    while 0 < at <= NAMED_MAX and verdict.named[at - 1].record > record:  # brokers name them in order
        at -= 1
    if at and at <= NAMED_MAX and verdict.named[at - 1].record == record:
        return  # it is named twice
    if record < wire.entry.count and verdict.named_count < NAMED_MAX:
        for index in range(verdict.named_count, at, -1):
            verdict.named[index] = verdict.named[index - 1]
        verdict.named[at] = Named(record, text_bytes, text, NULL, 0)
        verdict.named_count += 1
    elif record < wire.entry.count:
        verdict.named_count = NAMED_MAX + 1  # too many: it is not known which
    if wire.wire.body == NULL:
        return
    wire.refusal.record_named = True
    while row != CYP_NONE:
        if record - core.contributors[row].first < core.contributors[row].count:
            if core.contributor_batches[row] != NULL:
                core.contributor_batches[row].refusal.withdrawn = True
            return
        row = core.contributors[row].next


cdef void fail(Core *core, WireBatch *wire, int32_t error, const Verdict *verdict) noexcept nogil:
    """Handle a definite error of the present attempt: the broker refuses the records."""
    cdef Lane *lane = wire.lane
    cdef bint done
    store_cause(wire, error)
    if wire.idempotence.unsure and wire.idempotence.proven:
        clear_flags(core, wire)
        fail_batch(core, wire, error, verdict)  # it is in the log: the broker checks records before it checks sequences
        return
    if not wire.idempotence.unsure:
        entry_sure(wire.entry)  # for a successor, in case this sender dies during the steps below
    if _is_too_large(error):
        set_refused_size(core, wire)
    if lane.transaction != NULL and (not _is_too_large(error) or current_copy(lane.transaction).failed):
        fail_batch(core, wire, error, verdict)  # as in Kafka, a record that is refused fails the transaction
        return
    if may_divide(core, wire) and _divide(core, wire, error, verdict):
        return
    if wire.wire.body == NULL or wire.refusal.unreported == 0:
        if wire.wire.body == NULL and is_content(error):
            isolate_queue(core, core.contributor_batches[wire.entry.contributors].queue)
        end_fragment(core, wire, error, 1, verdict)
        return
    if _is_too_large(error):
        lane.refusal.merge_max = wire.entry.length // 2
    _isolate_flagged(core, wire)
    if wire.idempotence.unsure and not wire.refusal.record_named and not wire.idempotent:
        fail_batch(core, wire, error, verdict)
        return
    if wire.idempotent:
        demand_epoch(lane)
    done = _remove_flagged(core, wire, error, verdict) if wire.refusal.record_named else _split(core, wire, verdict)
    if not done:  # no free entries to replace it: it is sent again later and refused once more
        clear_flags(core, wire)
        back_off(core, wire)
        wait(core, wire)


cdef bint _divide(Core *core, WireBatch *wire, int32_t error, const Verdict *verdict) noexcept nogil:
    """Split a refused batch of one front-end if it is too large, or if the broker names records. Return whether it is.

    Without entries or memory for the parts it is sent again later and refused once more.
    """
    cdef PartCode code
    if _is_too_large(error):
        wire.wire.retried = True
        code = divide_by_size(core, wire, verdict)
        if code == PART_NO_ROOM:
            back_off(core, wire)
            wait(core, wire)
        elif code == PART_MALFORMED:
            reject_changed(core, wire, verdict)
        return code != PART_REFUSED
    if verdict == NULL or verdict.named_count == 0 or not _may_send_rest(wire):
        return False
    isolate_queue(core, core.contributor_batches[wire.entry.contributors].queue)
    if wire.idempotent:
        demand_epoch(wire.lane)
    return divide_named(core, wire, error, verdict) == PART_DONE


cdef inline bint _is_too_large(int32_t error) noexcept nogil:
    """Return whether the broker refuses the size of a batch."""
    return error == ERROR_MESSAGE_TOO_LARGE or error == ERROR_RECORD_LIST_TOO_LARGE


cdef inline bint _may_send_rest(const WireBatch *wire) noexcept nogil:
    """Return whether the records that the broker has not named may be sent again."""
    return not wire.idempotence.unsure and wire.acks != 0 and wire.wire.retries > 0


cdef bint withdraw(Core *core, ClientBatch *batch, int32_t error, const Verdict *verdict) noexcept nogil:
    """Take a batch out of a merged batch that is in no log and waits to be sent.

    The batch ends with `error`. The others stay in the same place, and a new epoch closes the gap. Return False if
    there are no free entries to do that; the batch then stays.
    """
    cdef WireBatch *wire = batch.wire.batch
    clear_flags(core, wire)
    batch.refusal.withdrawn = True
    if wire.idempotent:
        demand_epoch(wire.lane)
    if _remove_flagged(core, wire, error, verdict):
        return True
    batch.refusal.withdrawn = False
    return False


cdef void _isolate_flagged(Core *core, WireBatch *wire) noexcept nogil:
    cdef uint32_t row = wire.entry.contributors
    while row != CYP_NONE:
        if core.contributor_batches[row] != NULL and core.contributor_batches[row].refusal.withdrawn:
            isolate_queue(core, core.contributor_batches[row].queue)
        row = core.contributors[row].next


cdef bint _remove_flagged(Core *core, WireBatch *wire, int32_t error, const Verdict *verdict) noexcept nogil:
    """Replace a wire batch by a smaller one without the marked batches. Return False without a free entry for it.

    A marked batch ends with `error`, or as unknown if an attempt was unsure. If `error` is 0, a marked batch without
    an outcome returns to its queue.
    """
    cdef ClientBatch *staying[MERGE_MAX]
    cdef ClientBatch *batch
    cdef uint32_t row = wire.entry.contributors, count = 0, records = 0
    while row != CYP_NONE:
        batch = core.contributor_batches[row]
        if batch != NULL and not batch.refusal.withdrawn and is_aging(batch):
            staying[count] = batch
            count += 1
            records += batch.intake.count
        row = core.contributors[row].next
    if count:
        if core.wire.free_wire_count == 0 or core.wire.free_contributor_count < count or \
                (count > 1 and core.wire.free_body_count == 0):
            return False
        _prepare_wire(core, wire, staying, count, 0)
    if _prepare_flagged(core, wire, records, error, verdict) or count:
        wire.entry.error = error  # a successor ends the batches that are in no part with it; 0: it queues them
        entry_enter(wire.entry, CYP_ENTRY_SPLIT)  # from here on a successor continues with the smaller batches
        CRASHPOINT(b"split.shed")
        begin_parts(core, wire, verdict)
    elif error:
        # a successor reports the same outcome
        entry_resolve(wire.entry, CODE_OUTCOME_UNKNOWN if wire.idempotence.unsure else error, -1, -1)
        CRASHPOINT(b"split.all-shed")
    row = wire.entry.contributors
    while row != CYP_NONE:
        batch = core.contributor_batches[row]
        if batch != NULL and batch.wire.batch == wire:
            batch.refusal.withdrawn = False
            if error == 0 and not batch.outcome.reported:
                core.contributor_batches[row] = NULL
                put_back(batch)
            else:
                release_contributor(
                    core, row, -1, -1, CODE_OUTCOME_UNKNOWN if wire.idempotence.unsure or error == 0 else error, verdict
                )
        row = core.contributors[row].next
    unlink_wire(core, wire)
    return True


cdef bint _prepare_flagged(
    Core *core, WireBatch *wire, uint32_t begin, int32_t error, const Verdict *verdict
) noexcept nogil:
    """Prepare parts for the marked batches with records that the broker has named. Return whether there are any.

    Their sequences begin `begin` after that of `wire`.
    """
    cdef uint32_t row = wire.entry.contributors, following
    cdef ClientBatch *batch
    cdef bint some = False
    if error == 0 or verdict == NULL or verdict.wire != wire or not _may_send_rest(wire):
        return False
    while row != CYP_NONE:
        batch = core.contributor_batches[row]
        following = core.contributors[row].next
        if batch != NULL and batch.refusal.withdrawn and not batch.outcome.reported \
                and prepare_named(core, wire, row, begin, error, verdict):
            some = True
            begin += core.contributors[row].count
        row = following
    return some


cdef WireBatch *_prepare_wire(
    Core *core, WireBatch *wire, ClientBatch **staying, uint32_t count, uint32_t number
) noexcept nogil:
    """Create fragment `number` of `wire`: an entry for some of its contributors, linked before it."""
    cdef WireBatch *part = new_wire(core, wire.lane, staying, count, alloc_body(core) if count > 1 else NULL)
    if count > 1:
        _copy_staying(core, wire, part)
    else:
        part.entry.length = staying[0].intake.bytes
    part.entry.producer_id = wire.entry.producer_id
    part.entry.producer_epoch = wire.entry.producer_epoch
    part.entry.base_sequence = wire.entry.base_sequence
    part.entry.cause = wire.entry.cause
    set_fragment(part, wire)
    part.wire.retried = True
    if wire.idempotence.unsure:
        part.entry.flags = CYP_ENTRY_UNSURE | CYP_ENTRY_FRAGMENT
    part.entry.order = wire.entry.order + number
    part.entry.parent = wire.index
    link_before(wire.lane, part, wire)
    entry_enter(part.entry, CYP_ENTRY_PREPARED)
    CRASHPOINT(b"split.part-prepared")
    if wire.wire.state == WIRE_IN_FLIGHT and not _is_too_large(wire.entry.cause):
        count_retry(core, part)
    return part


cdef void _copy_staying(Core *core, WireBatch *wire, WireBatch *part) noexcept nogil:
    """Copy the records of the staying contributors from body to body: the chunks may have changed since the merge.

    The records of a contributor that was not found in a takeover are dropped.
    """
    cdef uint32_t row = wire.entry.contributors, first = 0, passed = 0
    cdef const uint8_t *source = wire.wire.body
    cdef const uint8_t *end = wire.wire.body + wire.entry.length
    cdef const uint8_t *following
    cdef int64_t delta = 0, written
    cdef uint64_t at = 0
    part.entry.base_timestamp = wire.entry.base_timestamp
    part.entry.max_timestamp = wire.entry.base_timestamp
    while row != CYP_NONE:
        source = _after_records(source, end, core.contributors[row].first - passed)
        following = _after_records(source, end, core.contributors[row].count)
        passed = core.contributors[row].first + core.contributors[row].count
        if core.contributor_batches[row] != NULL and core.contributor_batches[row].wire.batch == part:
            written = merge_records(
                source, following - source, <int32_t>core.contributors[row].count, 0, <int32_t>first,
                part.wire.body + at, CYP_BLOCK_BYTES - at, &delta, &core.contributor_batches[row].intake.largest,
            )
            if written > 0:  # it fits, since deltas only become smaller
                at += written
            first += core.contributors[row].count
            if part.entry.base_timestamp + delta > part.entry.max_timestamp:
                part.entry.max_timestamp = part.entry.base_timestamp + delta
        source = following
        row = core.contributors[row].next
    part.entry.length = <uint32_t>at


cdef const uint8_t *_after_records(const uint8_t *at, const uint8_t *end, uint32_t count) noexcept nogil:
    """Return the position after `count` records of a body, which only the sender writes."""
    cdef int32_t length = 0
    cdef const uint8_t *after
    while count and at < end:
        after = get_varint(at, end, &length)
        if after == NULL or length > end - after:
            return end
        at = after + length
        count -= 1
    return at


cdef bint _split(Core *core, WireBatch *wire, const Verdict *verdict) noexcept nogil:
    """Replace the merged batch by one entry for each contributor. Return False without free entries for them.

    The parts get their sequences in the new epoch. If an earlier attempt of the merged batch may be in the log, they
    are sent under sequences of the old epoch first.
    """
    cdef uint32_t row = wire.entry.contributors, number = 0
    cdef ClientBatch *batch
    cdef WireBatch *part = wire
    if core.wire.free_wire_count < wire.wire.contributor_count \
            or core.wire.free_contributor_count < wire.wire.contributor_count:
        return False
    if _is_too_large(wire.entry.cause):
        count_split(core, wire)
    while row != CYP_NONE:
        batch = core.contributor_batches[row]
        if batch != NULL and is_aging(batch):
            batch.refusal.unmergeable = True
            _prepare_wire(core, wire, &batch, 1, number).entry.base_sequence += core.contributors[row].first
            number += 1
        row = core.contributors[row].next
    wire.entry.error = 0
    entry_enter(wire.entry, CYP_ENTRY_SPLIT)  # from here on a successor sees the parts instead
    CRASHPOINT(b"split.committed")
    while number:
        number -= 1
        part = part.wire.previous
        entry_enter(part.entry, CYP_ENTRY_ASSIGNED)
        CRASHPOINT(b"split.part-assigned")
    release_reported(core, wire, verdict)
    unlink_wire(core, wire)
    return True


cdef void release_reported(Core *core, WireBatch *wire, const Verdict *verdict) noexcept nogil:
    """Release the chunks of the contributors of a SPLIT entry that have their result already."""
    cdef uint32_t row = wire.entry.contributors
    while row != CYP_NONE:
        if core.contributor_batches[row] != NULL and not is_aging(core.contributor_batches[row]):
            release_contributor(core, row, -1, -1, CODE_OUTCOME_UNKNOWN, verdict)
        row = core.contributors[row].next


cdef bint _has_part_after(Core *core, WireBatch *wire, Queue *queue) noexcept nogil:
    """Return whether a later batch of the queue was split: its parts stay, so what comes before them stays too."""
    cdef ClientBatch *batch
    while wire.wire.next != NULL:
        wire = wire.wire.next
        batch = core.contributor_batches[wire.entry.contributors]
        if wire.partial and batch != NULL and batch.queue == queue:
            return True
    return False


cdef void withdraw_flagged(Core *core, Lane *lane) noexcept nogil:
    """Return the unresolved batches of isolated front-ends to their queues before a new epoch. None is unsure."""
    cdef WireBatch *wire = lane.wire.tail  # from the last: each is put back before the one that follows it
    cdef WireBatch *before
    cdef uint32_t row
    cdef bint some
    while wire != NULL and not lane.isolation:
        before = wire.wire.previous
        row = wire.entry.contributors
        some = False
        while row != CYP_NONE and wire.idempotent and not wire.partial:
            if core.contributor_batches[row] != NULL and core.contributor_batches[row].queue.refusal.isolated \
                    and not _has_part_after(core, wire, core.contributor_batches[row].queue):
                core.contributor_batches[row].refusal.withdrawn = True
                some = True
            row = core.contributors[row].next
        if some and not _remove_flagged(core, wire, 0, NULL):
            clear_flags(core, wire)
        wire = before


cdef void clear_flags(Core *core, WireBatch *wire) noexcept nogil:
    """Clear all marks of a wire batch: `record_named`, and `withdrawn` of its contributors."""
    cdef uint32_t row = wire.entry.contributors
    wire.refusal.record_named = False
    while row != CYP_NONE:
        if core.contributor_batches[row] != NULL:
            core.contributor_batches[row].refusal.withdrawn = False
        row = core.contributors[row].next


cdef bint verify(Core *core, WireBatch *wire) noexcept nogil:
    """Check the records after a CORRUPT_MESSAGE. Return False if the front-end has changed them since stamp().

    The records are copied first and checked in the copy, and every further attempt sends the copy. Without memory for
    the copy the next attempt sends the chunks again.
    """
    cdef ClientBatch *batch
    cdef FrontEnd *front_end
    cdef uint32_t slot
    cdef uint64_t at = 0
    wire.refusal.corrupt += 1
    if wire.wire.body != NULL or wire.wire.copy != NULL or wire.compression.packed != NULL:
        return True
    wire.wire.copy = <uint8_t *>malloc(wire.entry.length)
    if wire.wire.copy == NULL:
        return True
    batch = core.contributor_batches[wire.entry.contributors]
    front_end = batch.front_end
    slot = batch.slot
    touch(core, front_end, slot)
    while slot != CYP_NONE:
        memcpy(
            wire.wire.copy + at, front_end.chunks + <uint64_t>slot * CYP_UNIT_BYTES, front_end.chunk_bytes[slot]
        )
        at += front_end.chunk_bytes[slot]
        slot = front_end.chunk_next[slot]
    return crc32c(0, wire.wire.copy, wire.entry.length) == wire.entry.crc


cdef void reject_changed(Core *core, WireBatch *wire, const Verdict *verdict) noexcept nogil:
    """End a batch whose only contributor committed malformed records or changed them, and report its violation."""
    cdef ClientBatch *batch = core.contributor_batches[wire.entry.contributors]
    if not batch.front_end.front_ends.detached:
        flag_violation(core, batch.front_end, VIOLATION_CHANGED if wire.wire.stamped else VIOLATION_CHAIN)
    isolate_queue(core, batch.queue)
    end_fragment(core, wire, CODE_INVALID_BATCH, 0, verdict)


# ------------------------------------------------------------ isolation
#
# Moves front-ends whose records the broker refused to the isolation lane of the partition, and back.
#
# Every refused batch leaves a gap in the sequences. To close it, all front-ends that share the sequences need a new
# epoch. So the batches of isolated front-ends are sent under a separate producer id, unmerged, with one batch in
# flight: a gap there affects no other batch. A front-end enters and leaves the isolation lane with nothing in flight,
# which keeps its batches in order, but for a late attempt that was reported as unknown (DESIGN.md, "Refused batches and
# sequences"). It leaves after `isolation_batches` accepted batches. This number doubles with each isolation.
#
# Each row of the partition table is one lane (cyp_partition_row.lane). After a takeover, a front-end with an unresolved
# entry in an isolation lane belongs to that lane. All other front-ends start in the ordinary lane.


cdef enum:
    ISOLATION_BATCHES_FIRST = 16             # batches
    ISOLATION_BATCHES_MAX = 4096


cdef void isolate_queue(Core *core, Queue *queue) noexcept nogil:
    """Isolate a queue whose records were refused. If it is in the isolation lane already, restart its count of batches.

    The only front-end of a sender stays in the ordinary lane, since it affects no other front-end. A transactional
    producer has a lane of its own.
    """
    if queue.intake.lane.transaction != NULL:
        return
    if queue.intake.lane.isolation:
        queue.refusal.isolation_left = queue.refusal.isolation_batches
    elif not queue.refusal.isolated and core.front_end.count > 1:
        flag_for_isolation(queue)
        queue.intake.lane.refusal.isolation_pending = True


cdef void flag_for_isolation(Queue *queue) noexcept nogil:
    """Mark the queue as isolated and set how many accepted batches let it leave the isolation lane."""
    queue.refusal.isolated = True
    cdef uint32_t doubled = max(2 * queue.refusal.isolation_batches, <uint32_t>ISOLATION_BATCHES_FIRST)
    queue.refusal.isolation_batches = min(doubled, <uint32_t>ISOLATION_BATCHES_MAX)
    queue.refusal.isolation_left = queue.refusal.isolation_batches


cdef void move_to_isolation(Core *core, Lane *lane) noexcept nogil:
    """Move the isolated queues that have no unresolved entry in the ordinary lane to the isolation lane."""
    cdef Queue *queue = <Queue *>lane.intake.queues.first
    cdef Queue *following
    cdef uint32_t left = lane.intake.queues.length
    lane.refusal.isolation_pending = False
    if lane.topics.other_lane == NULL:
        append_lane(core, lane)
    while left:
        left -= 1
        following = <Queue *>queue.link.next
        if queue.refusal.isolated and lane.topics.other_lane == NULL:
            queue.refusal.isolated = False  # no memory or table row for the isolation lane: it stays in its lane
        elif queue.refusal.isolated and _has_unresolved(core, queue):
            lane.refusal.isolation_pending = True
        elif queue.refusal.isolated:
            queue.refusal.isolation_left = queue.refusal.isolation_batches
            move_queue(queue, lane.topics.other_lane)
        queue = following


cdef bint _has_unresolved(Core *core, Queue *queue) noexcept nogil:
    """Return whether an unresolved entry of the lane contains a batch of this queue."""
    cdef WireBatch *wire = queue.intake.lane.wire.head
    cdef uint32_t row
    while wire != NULL:
        row = wire.entry.contributors
        while row != CYP_NONE:
            if core.contributor_batches[row] != NULL and core.contributor_batches[row].queue == queue:
                return True
            row = core.contributors[row].next
        wire = wire.wire.next
    return False


cdef void count_isolated_batch(Queue *queue) noexcept nogil:
    """Count a batch accepted in the isolation lane. After the last one, move the queue back to the ordinary lane."""
    queue.refusal.isolation_left -= queue.refusal.isolation_left > 0
    if queue.refusal.isolation_left == 0:
        queue.refusal.isolated = False
        move_queue(queue, queue.intake.lane.topics.other_lane)


# ------------------------------------------------------------ oversized requests
#
# Handles requests that make a broker close the connection: they are larger than its socket.request.max.bytes.
#
# The closed connection is the only sign of this, and all requests in flight on that connection are lost with it. If the
# broker closed the connection twice while a batch was in flight, this batch may be the cause (needs_exclusive). Then it
# is sent alone, with nothing else in flight, and after growing pauses. So it causes no other request to be lost, and it
# gets a response if it is not the cause. If a request of several such batches is lost, the size of requests to that
# broker is halved for an hour, since possibly only their sum is too large.
#
# Such a batch fails with REQUEST_TOO_LARGE if its request is larger than every request that the broker has answered,
# and the connection was closed several times while it was alone: three times if other requests were answered in
# between, else ten times. That is no proof that the broker did not append it, so this error is an OutcomeUnknownError.


cdef enum:
    SUSPECT_BREAKS = 2
    EXCLUSIVE_BREAKS_MIN = 3         # if other requests were answered in between
    EXCLUSIVE_BREAKS_MAX = 10
    BREAKS_KEPT = 100           # the counters stop here
    NODE_LIMIT_SECONDS = 3600


cdef uint64_t request_limit(const Core *core, Node *node) noexcept nogil:
    """Return the limit in bytes for a request of several batches to this broker. Remove a limit that is too old."""
    if node.refusal.limit and core.loop.now - node.refusal.limited_ns > <uint64_t>NODE_LIMIT_SECONDS * 1000000000:
        node.refusal.limit = 0
    cdef uint64_t most = core.settings.max_request_size
    return min(most, node.refusal.limit) if node.refusal.limit else most


cdef void on_break(Core *core, Node *node, Request *request, int32_t reason) noexcept nogil:
    """Record that the connection was closed for `reason` before the request got a response.

    This must be called before the request's wire batches are prepared for their next attempt.
    """
    cdef uint32_t index
    cdef WireBatch *wire
    cdef bint all_suspects = True
    if request.kind != REQUEST_PRODUCE or not request.connection.started:
        return
    if reason != CLOSE_BY_PEER and reason != ECONNRESET and reason != EPIPE:
        return
    for index in range(request.produce.wire_count):
        wire = request.produce.wires[index]
        if wire.wire.state != WIRE_IN_FLIGHT or wire.wire.request != request:
            continue
        if wire.refusal.breaks == 0:
            wire.refusal.exclusive_breaks = 0
        wire.refusal.breaks = min(wire.refusal.breaks + 1, <uint32_t>BREAKS_KEPT)
        all_suspects = all_suspects and needs_exclusive(wire)
        if request.drain.exclusive:
            _on_exclusive_break(core, node, request, wire)
    if all_suspects and request.produce.wire_count > 1:
        node.refusal.limit = min(request_limit(core, node), max(request.produce.total // 2, <uint64_t>CYP_BLOCK_BYTES))
        node.refusal.limited_ns = core.loop.now


cdef void _on_exclusive_break(Core *core, Node *node, Request *request, WireBatch *wire) noexcept nogil:
    if wire.refusal.exclusive_breaks == 0:
        wire.refusal.answers_before = node.connection.answers
    wire.refusal.exclusive_breaks = min(wire.refusal.exclusive_breaks + 1, <uint32_t>BREAKS_KEPT)
    if wire.entry.length <= CYP_BLOCK_BYTES or request.produce.total <= node.connection.largest_answered:
        return  # its size is not the cause
    if wire.refusal.exclusive_breaks >= EXCLUSIVE_BREAKS_MAX or (
        wire.refusal.exclusive_breaks >= EXCLUSIVE_BREAKS_MIN and node.connection.answers > wire.refusal.answers_before
    ):
        _fail(core, wire)


cdef void _fail(Core *core, WireBatch *wire) noexcept nogil:
    """Report REQUEST_TOO_LARGE to the contributors that have no outcome yet, then end the entry as unknown."""
    cdef uint32_t row = wire.entry.contributors
    cdef ClientBatch *batch
    if wire.partial:
        set_unsure(wire)  # the attempt had begun
        fail_batch(core, wire, CODE_REQUEST_TOO_LARGE, NULL)
        return
    while row != CYP_NONE:
        batch = core.contributor_batches[row]
        row = core.contributors[row].next
        if batch != NULL and not batch.outcome.reported:
            publish_result(core, batch, CODE_REQUEST_TOO_LARGE, NULL)
            wire.refusal.unreported -= 1
    set_unsure(wire)  # the attempt had begun
    fail_batch(core, wire, CODE_OUTCOME_UNKNOWN, NULL)


# ------------------------------------------------------------ expiry
#
# Ends batches whose delivery timeout is over: delivery_timeout_ms of their front-end since they were opened.
#
# The front-end gets the outcome at once. The error states exactly what is known:
#
#  - DELIVERY_TIMEOUT: the batch is in no log and is never sent again. It was not sent yet, or every attempt was
#    refused. A batch that is part of an entry is taken out of it; the gap in the sequences is closed by a new epoch.
#  - OUTCOME_UNKNOWN: an attempt is in flight, or the result of an earlier attempt is not known. The batch stays in its
#    entry, because other batches follow the entry's sequences. Its memory is released when the broker has answered.


cdef void expire(Core *core, FrontEnd *front_end) noexcept nogil:
    """Report the batches of the front-end whose delivery timeout is over."""
    while has_expired(core, front_end):
        _expire_with_reason(core, front_end.outcome.age_head)


cdef void _expire_with_reason(Core *core, ClientBatch *batch) noexcept nogil:
    """Let the outcome tell why the broker that the batch waited for cannot be used, if that is so."""
    cdef Node *node = first_connection(batch.queue.intake.lane.drain.leader) if batch.queue != NULL else NULL
    cdef Verdict verdict = Verdict(batch.wire.batch, NULL, 0, False, 0, NULL)
    if node != NULL and (node.connection.state != CONNECTION_READY or node.connection.muted_until_ns > core.loop.now):
        verdict.text, verdict.text_bytes = node.connections.error, node.connections.error_bytes
    abandon(core, batch, _reason(batch), &verdict)


cdef void abandon(Core *core, ClientBatch *batch, int32_t error, const Verdict *verdict) noexcept nogil:
    """End a batch before its broker has answered, with `error` if it is certain that it is in no log.

    The delivery timeout ends them here. For a purge see below: it ends only what is certain.
    """
    cdef WireBatch *wire = batch.wire.batch
    cdef bint certain
    if batch.parts.split:
        _abandon_parts(core, batch, error, verdict)
        return
    if batch.intake.state == BATCH_ASSIGNED and wire.idempotence.unsure and wire.idempotence.proven \
            and wire.wire.state == WIRE_WAITING:
        acknowledge(core, wire, wire.idempotence.proven_offset, -1)
        return
    if batch.intake.state == BATCH_ASSIGNED:
        certain = _is_in_no_log(batch)
        if certain and wire.refusal.unreported == 1:
            fail_batch(core, wire, error, verdict)
            return
        if certain and withdraw(core, batch, error, verdict):
            return
        if batch.outcome.reported:
            age_unlink(batch.front_end, batch)
        else:
            publish_result(core, batch, CODE_OUTCOME_UNKNOWN, verdict)
        wire.refusal.unreported -= 1
        fail_reported(core, wire.lane, verdict)
        return
    _drop_queued(core, batch, error, verdict)


cdef inline bint _is_in_no_log(const ClientBatch *batch) noexcept nogil:
    """Return whether an assigned batch without an outcome is in no log: each attempt has ended without an append."""
    return not batch.outcome.reported and batch.wire.batch.wire.state == WIRE_WAITING \
        and not batch.wire.batch.idempotence.unsure


cdef void _drop_queued(Core *core, ClientBatch *batch, int32_t error, const Verdict *verdict) noexcept nogil:
    """End a batch that is not assigned. One that is malformed leaves its queue as a violation instead."""
    if batch.intake.state != BATCH_CLOSED and not seal(core, batch):
        return
    remove(batch.queue, batch)
    release_batch(core, batch, -1, -1, error, verdict)


cdef void _abandon_parts(Core *core, ClientBatch *batch, int32_t error, const Verdict *verdict) noexcept nogil:
    """End the parts of a split batch of which it is certain what became of them. The outcome of the others is unknown.

    Parts that were acknowledged before keep their offsets.
    """
    cdef Lane *lane = batch.queue.intake.lane
    cdef WireBatch *wire = next_part(core, batch, NULL)
    cdef WireBatch *following
    while wire != NULL and batch.parts.split:
        following = next_part(core, batch, wire)
        if wire.wire.state == WIRE_WAITING and wire.idempotence.unsure and wire.idempotence.proven:
            acknowledge(core, wire, wire.idempotence.proven_offset, -1)
        elif wire.wire.state == WIRE_WAITING and not wire.idempotence.unsure:
            fail_batch(core, wire, error, verdict)
        wire = following
    if not batch.parts.split:
        return
    publish_result(core, batch, CODE_OUTCOME_UNKNOWN, verdict)
    wire = next_part(core, batch, NULL)
    while wire != NULL:
        wire.refusal.unreported = 0
        wire = next_part(core, batch, wire)
    fail_reported(core, lane, verdict)


cdef inline int32_t _reason(const ClientBatch *batch) noexcept nogil:
    """Return the error of an expired batch that is in no log: its topic does not exist, or the delivery timeout."""
    if batch.queue != NULL and batch.queue.intake.lane.topic.loop.error == ERROR_UNKNOWN_TOPIC_OR_PARTITION:
        return ERROR_UNKNOWN_TOPIC_OR_PARTITION
    return CODE_DELIVERY_TIMEOUT


# ------------------------------------------------------------ purge
#
# Ends the batches of a front-end that are in no log, because its program drops them. A batch of which an attempt is in
# flight, or may be in the log, is not touched: it gets the outcome that it would have without the purge.


cdef void purge(Core *core, FrontEnd *front_end) noexcept nogil:
    """End all batches of the front-end of which it is certain that they are in no log, with PURGED."""
    cdef ClientBatch *batch = front_end.outcome.age_head
    cdef ClientBatch *following
    cdef WireBatch *wire
    while batch != NULL:
        following = batch.outcome.age_next  # what ends a batch here ends no other one of the front-end
        wire = batch.wire.batch
        if batch.parts.split:
            pass  # some of its records may be in the log
        elif batch.intake.state != BATCH_ASSIGNED:
            _drop_queued(core, batch, CODE_PURGED, NULL)
        elif _is_in_no_log(batch) and wire.refusal.unreported == 1:
            fail_batch(core, wire, CODE_PURGED, NULL)
        elif _is_in_no_log(batch):
            withdraw(core, batch, CODE_PURGED, NULL)  # without free entries it stays
        batch = following
