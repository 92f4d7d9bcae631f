"""Publishes outcomes: each front-end gets the results of its batches.

A batch gets exactly one RESULT and one RELEASE, in most cases in one entry of the front-end's outcome ring. The ring
has two entries per chunk, so it can never be full and the sender never waits for a front-end. After a sender was
killed, its successor reads in the ring which results were published: a slot word becomes DONE only after them.
"""


cdef inline bint is_aging(ClientBatch *batch) noexcept nogil:
    """Return whether the batch's delivery timeout runs.

    It runs until the RESULT. With acks=0 the RESULT comes early, and the timeout runs on until the batch is released.
    """
    return batch.outcome.age_previous != NULL or batch.front_end.outcome.age_head == batch


cdef enum:
    AGE_STEPS_MAX = 256
    BROKER_SAYS_BYTES = 17


cdef const char *BROKER_SAYS = b"the broker says: "


cdef void push_event(Core *core, int kind, uint32_t node, int32_t error, uint64_t subject) noexcept nogil:
    """Append an event for Python, which takes it after this loop iteration. Without memory, see Loop._lost_events."""
    cdef Event *grown
    if core.outcome.event_count == core.outcome.event_capacity:
        grown = <Event *>realloc(core.outcome.events, 2 * (core.outcome.event_capacity + 32) * sizeof(Event))
        if grown == NULL:
            core.outcome.events_lost = True
            return
        core.outcome.events = grown
        core.outcome.event_capacity = 2 * (core.outcome.event_capacity + 32)
    cdef Event *event = &core.outcome.events[core.outcome.event_count]
    event.kind = kind
    event.node = node
    event.error = error
    event.subject = subject
    event.payload = NULL
    event.payload_length = 0
    core.outcome.event_count += 1


cdef bint clear_events(Core *core) noexcept nogil:
    """Drop the events, which Python has taken. Return whether there was no memory for others."""
    cdef bint lost = core.outcome.events_lost
    core.outcome.event_count = 0
    free(core.outcome.events)
    core.outcome.events = NULL
    core.outcome.event_capacity = 0
    core.outcome.events_lost = False
    return lost


cdef void age_append(Core *core, FrontEnd *front_end, ClientBatch *batch) noexcept nogil:
    """Insert the batch into its front-end's list of batches whose delivery timeout runs, by age: mostly at the end.

    Pass at most AGE_STEPS_MAX batches on the way. If that is not enough, give the batch a smaller age. The age comes
    from the front-end: without the limit, wrong ages would make each insertion walk a list of up to a million batches.
    """
    cdef ClientBatch *before = front_end.outcome.age_tail
    cdef uint32_t steps = 0
    if before != NULL and front_end.outcome.age_head.intake.born_ns > batch.intake.born_ns:
        before = NULL
    while before != NULL and before.intake.born_ns > batch.intake.born_ns:
        before = before.outcome.age_previous
        steps += 1
        if steps == AGE_STEPS_MAX and before != NULL and before.intake.born_ns > batch.intake.born_ns:
            batch.intake.born_ns = before.intake.born_ns
    batch.outcome.age_previous = before
    batch.outcome.age_next = before.outcome.age_next if before != NULL else front_end.outcome.age_head
    if before != NULL:
        before.outcome.age_next = batch
    else:
        front_end.outcome.age_head = batch
        schedule_deadline(core, front_end, batch.intake.born_ns + front_end.settings.delivery_timeout_ns)
    if batch.outcome.age_next != NULL:
        batch.outcome.age_next.outcome.age_previous = batch
    else:
        front_end.outcome.age_tail = batch


cdef void age_unlink(FrontEnd *front_end, ClientBatch *batch) noexcept nogil:
    """Take the batch out of the front-end's list of batches whose delivery timeout runs."""
    if batch.outcome.age_previous != NULL:
        batch.outcome.age_previous.outcome.age_next = batch.outcome.age_next
    else:
        front_end.outcome.age_head = batch.outcome.age_next
    if batch.outcome.age_next != NULL:
        batch.outcome.age_next.outcome.age_previous = batch.outcome.age_previous
    else:
        front_end.outcome.age_tail = batch.outcome.age_previous
    batch.outcome.age_next = NULL
    batch.outcome.age_previous = NULL


cdef inline bint has_expired(const Core *core, const FrontEnd *front_end) noexcept nogil:
    """Return whether the delivery timeout of the front-end's oldest batch is over."""
    cdef const ClientBatch *oldest = front_end.outcome.age_head
    return oldest != NULL and oldest.intake.born_ns + front_end.settings.delivery_timeout_ns <= core.loop.now


cdef int _by_age(const void *a, const void *b) noexcept nogil:
    cdef uint64_t left = (<ClientBatch **>a)[0].intake.born_ns, right = (<ClientBatch **>b)[0].intake.born_ns
    return (left > right) - (left < right)


cdef object sort_by_age(Core *core, FrontEnd *front_end):
    """Sort the front-end's list by age: expire() needs the oldest first, but a takeover adds them by entry and slot.

    Raise MemoryError.
    """
    cdef ClientBatch **batches = <ClientBatch **>calloc(front_end.intake.live + 1, sizeof(ClientBatch *))
    cdef ClientBatch *batch = front_end.outcome.age_head
    cdef uint32_t count = 0, index
    if batches == NULL:
        raise MemoryError
    while batch != NULL:
        batches[count] = batch
        count += 1
        batch = batch.outcome.age_next
    qsort(batches, count, sizeof(ClientBatch *), _by_age)
    front_end.outcome.age_head = front_end.outcome.age_tail = NULL
    for index in range(count):
        age_append(core, front_end, batches[index])
    free(batches)


cdef void publish_result(Core *core, ClientBatch *batch, int32_t error, const Verdict *verdict) noexcept nogil:
    """Publish the RESULT of an assigned batch with an error. Its chunks are still in use, so RELEASE follows later."""
    age_unlink(batch.front_end, batch)
    _count_failure(core, batch, error, batch.intake.count - min(batch.parts.resolved_count, batch.intake.count))
    _push_result(core, batch, error, verdict)


cdef void publish_written(Core *core, WireBatch *wire) noexcept nogil:
    """Publish the RESULT of the contributors when a request with acks=0 is written: a written batch counts as sent.

    Their memory stays in use until the broker answers.
    """
    cdef uint32_t row = wire.entry.contributors
    while row != CYP_NONE:
        if core.contributor_batches[row] != NULL and not core.contributor_batches[row].outcome.reported:
            _push_result(core, core.contributor_batches[row], 0, NULL)
        row = core.contributors[row].next


cdef void _push_result(Core *core, ClientBatch *batch, int32_t error, const Verdict *verdict) noexcept nogil:
    cdef WireBatch *wire = batch.wire.batch
    cdef WireBatch *following
    batch.outcome.reported = True
    _push(core, batch, CYP_OUTCOME_RESULT, -1, -1, error, verdict)
    CRASHPOINT(b"expire.reported")
    # after the outcome: a successor of a sender that was killed in between finds the outcome in the ring
    if not batch.parts.split:
        _store_reported(core, batch, wire)
        return
    wire = next_part(core, batch, NULL)
    while wire != NULL:
        following = next_part(core, batch, wire)
        _store_reported(core, batch, wire)
        wire = following


cdef void _store_reported(Core *core, ClientBatch *batch, WireBatch *wire) noexcept nogil:
    cdef uint32_t row = wire.entry.contributors
    while core.contributor_batches[row] != batch:
        row = core.contributors[row].next
    store_release32(&core.contributors[row].flags, CYP_CONTRIBUTOR_REPORTED)


cdef WireBatch *next_part(Core *core, ClientBatch *batch, WireBatch *after) noexcept nogil:
    """Return the first unresolved part of a split batch, or the first one after `after`; NULL if there is none."""
    cdef WireBatch *wire = batch.queue.intake.lane.wire.head if after == NULL else after.wire.next
    while wire != NULL and not (wire.partial and core.contributor_batches[wire.entry.contributors] == batch):
        wire = wire.wire.next
    return wire


cdef void resolve_part(
    Core *core, WireBatch *wire, int64_t base_offset, int64_t append_time, const Verdict *verdict
) noexcept nogil:
    """Store the result of a RESOLVED partial wire batch. Complete its batch if that was the last part."""
    cdef cyp_entry *entry = wire.entry
    cdef uint32_t row = entry.contributors
    cdef ClientBatch *batch = core.contributor_batches[row]
    cdef cyp_extent extent
    cdef int32_t error
    cdef cyp_extent *filled
    if batch == NULL:
        return
    if entry.error and is_aging(batch):
        _count_failure(core, batch, entry.error, entry.count)
    elif is_aging(batch):
        core.totals.records += entry.count
        core.totals.bytes += entry.length
    extent.error = entry.error
    extent.append_time = append_time
    extent.cause = entry.cause if entry.error and entry.cause != entry.error else 0
    while row != CYP_NONE:
        extent.first = core.contributors[row].start
        extent.count = core.contributors[row].count
        extent.base_offset = base_offset + core.contributors[row].first if base_offset >= 0 else -1
        extent.text = 0
        filled = fill_extent(batch, &extent)
        if filled != NULL and entry.error and verdict != NULL and (
            verdict.wire == wire or entry.flags & CYP_ENTRY_REFUSED
        ):
            filled.text = _put_text(core, batch, extent.first, UINT64_MAX, verdict)
        core.contributor_batches[row] = NULL
        row = core.contributors[row].next
    batch.parts.pending -= 1
    if batch.parts.pending == 0:
        end_reservation(batch)
        error = 0 if batch.parts.resolved_count == batch.intake.count else CODE_OUTCOME_UNKNOWN
        release_batch(core, batch, -1, -1, error, verdict)


cdef void release_batch(
    Core *core, ClientBatch *batch, int64_t base_offset, int64_t append_time, int32_t error, const Verdict *verdict
) noexcept nogil:
    """Complete the batch and release its chunks. `base_offset` is the offset of its first record, -1 if unknown."""
    cdef FrontEnd *front_end = batch.front_end
    cdef uint32_t slot = batch.slot
    touch(core, front_end, slot)
    if is_aging(batch):  # with acks=0 the front-end already has a RESULT: a later failure is only counted
        age_unlink(front_end, batch)
        if error:
            _count_failure(core, batch, error, batch.intake.count - min(batch.parts.resolved_count, batch.intake.count))
        elif not batch.parts.split:
            core.totals.records += batch.intake.count
            core.totals.bytes += batch.intake.bytes
    _push(
        core,
        batch,
        CYP_OUTCOME_RELEASE if batch.outcome.reported else CYP_OUTCOME_RESULT | CYP_OUTCOME_RELEASE,
        base_offset,
        append_time,
        error, verdict,
    )
    # after the outcome: otherwise the front-end of a sender that was killed in between would get no outcome
    if row_is_written(front_end, slot):
        slot_done(&front_end.rows[slot], batch.generation)
    CRASHPOINT(b"complete.slot-done")
    forget_batch(core, batch)
    batch.wire.batch = NULL
    batch.parts.split = False
    if front_end.front_ends.detached and front_end.intake.live == 0 and not front_end.front_ends.ending:
        end_front_end(core, front_end)


cdef void schedule_outcomes(Core *core, FrontEnd *front_end) noexcept nogil:
    """Note that the front-end has new outcomes and may have to be woken. Do nothing if it has ended."""
    if not front_end.outcome.has_outcomes and not front_end.front_ends.detached:
        front_end.outcome.has_outcomes = True
        front_end.outcome.announce_next = core.outcome.to_announce
        core.outcome.to_announce = front_end


cdef FrontEnd *pop_to_announce(Core *core) noexcept nogil:
    """Return the next front-end with outcomes to announce; NULL if there is none left."""
    cdef FrontEnd *front_end = core.outcome.to_announce
    if front_end != NULL:
        core.outcome.to_announce = front_end.outcome.announce_next
        front_end.outcome.has_outcomes = False
    return front_end


cdef void forget_outcomes(Core *core, FrontEnd *front_end) noexcept nogil:
    """Take a front-end that ends out of the list."""
    cdef FrontEnd **link = &core.outcome.to_announce
    if not front_end.outcome.has_outcomes:
        return
    front_end.outcome.has_outcomes = False
    while link[0] != front_end:
        link = &link[0].outcome.announce_next
    link[0] = front_end.outcome.announce_next


cdef void announce(Core *core) noexcept nogil:
    """Wake the front-ends that have outcomes of this loop iteration and whose waiters sleep: one write each."""
    cdef FrontEnd *front_end = pop_to_announce(core)
    while front_end != NULL:
        if waiter_needs_wake(&front_end.header.sleeping, &front_end.outcome.wake_signalled):
            CRASHPOINT(b"complete.before-wake")
            wake_signal(front_end.wake_fd)
        front_end = pop_to_announce(core)


cdef void _flag_published(FrontEnd *front_end, const cyp_outcome *outcome) noexcept nogil:
    """Note an outcome that is published in a takeover: its batch is not restored again, whatever its slot word says."""
    cdef Published *published = &front_end.recovery.published[outcome.slot]
    if published.generation != outcome.generation:
        published.generation = outcome.generation
        published.flags = 0
    published.flags |= outcome.flags


cdef void _push(
    Core *core, ClientBatch *batch, uint32_t flags, int64_t base_offset, int64_t append_time, int32_t error,
    const Verdict *verdict
) noexcept nogil:
    cdef FrontEnd *front_end = batch.front_end
    cdef cyp_outcome outcome
    if front_end.front_ends.detached:
        return
    outcome.slot = batch.slot
    outcome.generation = batch.generation
    outcome.first = 0
    outcome.count = batch.intake.count
    outcome.base_offset = base_offset
    outcome.append_time = append_time
    outcome.error = error
    outcome.flags = flags
    outcome.cause = _cause(core, batch, error)
    outcome.text = 0
    outcome.extents = 0
    if error and verdict != NULL and batch.wire.batch == verdict.wire:
        outcome.text = _put_text(core, batch, 0, front_end.outcome.outcome_tail + 1, verdict)
    if flags & CYP_OUTCOME_RESULT and batch.parts.extents:
        outcome.extents = batch.parts.extents
        extents_are_published(batch, front_end.outcome.outcome_tail + 1)
    outcome_put(front_end.outcome_ring, front_end.outcome_mask, front_end.outcome.outcome_tail, &outcome)
    CRASHPOINT(b"complete.outcome-filled")
    if front_end.recovery.published != NULL:
        _flag_published(front_end, &outcome)
    front_end.outcome.outcome_tail += 1
    outcome_publish(&front_end.outcomes_header.outcome_tail, front_end.outcome.outcome_tail)
    CRASHPOINT(b"complete.outcome-published")
    schedule_outcomes(core, front_end)


cdef int32_t _cause(Core *core, ClientBatch *batch, int32_t error) noexcept nogil:
    """Return the last error of an attempt to send the batch; 0 if there is none or it equals `error`.

    For a batch that was never sent, return why no broker takes it, or else the error of the batches that its partition
    had to send before it.
    """
    cdef int32_t cause = 0
    cdef Lane *lane
    if error == 0:
        return 0
    if batch.wire.batch != NULL:
        cause = batch.wire.batch.entry.cause
    elif (error == CODE_DELIVERY_TIMEOUT or batch.parts.split) and batch.queue != NULL:
        lane = batch.queue.intake.lane
        if core.loop.auth_failed:
            cause = CODE_AUTHENTICATION_FAILED
        elif lane.drain.leader == NULL:
            cause = ERROR_LEADER_NOT_AVAILABLE
        else:
            cause = lane.wire.last_error
    return cause if cause != error else 0


cdef uint32_t _put_text(
    Core *core, ClientBatch *batch, uint32_t start, uint64_t until, const Verdict *verdict
) noexcept nogil:
    """Copy the reason of an error to the next text place, so that an outcome can refer to it. Return the place + 1.

    That is the message for record `start` of the batch, or else that of the verdict. The place is reused when the
    front-end has read the outcomes before `until`. Return 0 if there is no message, or if the front-end has not yet
    read the outcome that refers to the next place. The front-end itself says how far it has read. If that is wrong,
    only its own texts are spoiled.
    """
    cdef FrontEnd *front_end = batch.front_end
    cdef uint32_t place = front_end.outcome.text_place
    cdef const uint8_t *reason = verdict.text
    cdef uint32_t begin = BROKER_SAYS_BYTES if verdict.by_broker else 0
    cdef uint32_t size = verdict.text_bytes, index
    cdef cyp_text *text = &front_end.outcomes_header.texts[place]
    cdef const Named *named
    for index in range(min(verdict.named_count, <uint32_t>NAMED_MAX)):
        named = &verdict.named[index]
        if named.batch == batch and named.start == start and named.text_bytes:
            reason, size = named.text, named.text_bytes
            break
    if size == 0:
        return 0
    size = min(begin + size, <uint32_t>CYP_TEXT_BYTES)
    if outcomes_taken(&front_end.header.outcome_head) < front_end.outcome.text_until[place]:
        return 0
    text.bytes = size
    memcpy(text.text, BROKER_SAYS, begin)
    memcpy(text.text + begin, reason, size - begin)
    front_end.outcome.text_until[place] = until
    front_end.outcome.text_place = (place + 1) % <uint32_t>CYP_TEXTS
    return place + 1


cdef void _count_failure(Core *core, ClientBatch *batch, int32_t error, uint32_t records) noexcept nogil:
    """Count a failure. The transaction of its front-end fails with it, before the outcome is published."""
    cdef uint32_t topic = batch.queue.intake.lane.topic.number if batch.queue != NULL else 0xffffffffU
    if batch.front_end.transaction != NULL:
        fail_transaction(batch.front_end.transaction, error)
    if error != CODE_TRANSACTION_ABORTED:  # the record that is the reason was counted
        add_failure(core, batch.front_end.attach_id, topic, error, records)
    count_errors(core, batch.front_end, batch.queue.intake.lane.topic if batch.queue != NULL else NULL, records)


cdef void add_failure(Core *core, uint64_t attach_id, uint32_t topic, int32_t error, uint64_t records) noexcept nogil:
    """Add a failure to the table, which Python empties. `topic` is 2^32 - 1 if it is unknown."""
    cdef uint32_t index
    cdef Failure *failure
    core.totals.errors += records
    for index in range(core.outcome.failure_count):
        failure = &core.outcome.failures[index]
        if failure.attach_id == attach_id and failure.topic == topic and failure.error == error:
            failure.records += records
            return
    if core.outcome.failure_count == FAILURES_MAX:
        # the table is full: the total stays right, but these records are counted under the error of the last row
        core.outcome.failures[FAILURES_MAX - 1].records += records
        return
    failure = &core.outcome.failures[core.outcome.failure_count]
    failure.attach_id = attach_id
    failure.topic = topic
    failure.error = error
    failure.records = records
    core.outcome.failure_count += 1


cdef void clear_failures(Core *core) noexcept nogil:
    """Empty the table of failures, which Python has taken."""
    core.outcome.failure_count = 0
