"""Publishes outcomes: each front-end gets the results of its batches.

A batch gets exactly one RESULT and one RELEASE, in most cases in one entry of the front-end's outcome ring. The ring
has two entries per chunk, so it can never be full and the sender never waits for a front-end. After a sender was
killed, its successor reads in the ring which results were published: a slot word becomes DONE only after them.
"""

from libc.stdint cimport int32_t, int64_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, qsort, realloc
from libc.string cimport memcpy

from cyproducer.protocol.error_codes cimport ERROR_LEADER_NOT_AVAILABLE
from cyproducer.sender.engine.state.activity cimport note_deadline, note_outcomes, take_to_announce
from cyproducer.sender.engine.state.breadcrumb cimport touch
from cyproducer.sender.engine.state.front_end_tables cimport end_front_end
from cyproducer.sender.engine.state.model cimport (
    BATCH_NONE,
    FAILURES_MAX,
    ClientBatch,
    Core,
    Event,
    Failure,
    FrontEnd,
    Lane,
    WireBatch,
)
from cyproducer.shm.atomics cimport load_acquire, store_release32
from cyproducer.shm.clock cimport wake_signal
from cyproducer.shm.crash cimport CRASHPOINT
from cyproducer.shm.layout cimport (
    CYP_CONTRIBUTOR_REPORTED,
    CYP_NONE,
    CYP_OUTCOME_RELEASE,
    CYP_OUTCOME_RESULT,
    CYP_TEXT_BYTES,
    CYP_TEXTS,
    cyp_outcome,
    cyp_text,
)
from cyproducer.shm.ring cimport outcome_publish, outcome_put
from cyproducer.shm.slot cimport slot_done
from cyproducer.shm.wake cimport waiter_needs_wake

cdef enum:
    AGE_STEPS_MAX = 256


cdef void push_event(Core *core, int kind, uint32_t node, int32_t error, uint64_t attach_id) noexcept nogil:
    """Append an event for Python, which takes it after this loop iteration. Without memory, see Loop._lost_events."""
    cdef Event *grown
    if core.event_count == core.event_capacity:
        grown = <Event *>realloc(core.events, 2 * (core.event_capacity + 32) * sizeof(Event))
        if grown == NULL:
            core.events_lost = True
            return
        core.events = grown
        core.event_capacity = 2 * (core.event_capacity + 32)
    cdef Event *event = &core.events[core.event_count]
    event.kind = kind
    event.node = node
    event.error = error
    event.attach_id = attach_id
    event.payload = NULL
    event.payload_length = 0
    core.event_count += 1


cdef void age_append(Core *core, FrontEnd *front_end, ClientBatch *batch) noexcept nogil:
    """Insert the batch into its front-end's list of batches whose delivery timeout runs, by age: mostly at the end.

    Pass at most AGE_STEPS_MAX batches on the way. If that is not enough, give the batch a smaller age. The age comes
    from the front-end: without the limit, wrong ages would make each insertion walk a list of up to a million batches.
    """
    cdef ClientBatch *before = front_end.age_tail
    cdef uint32_t steps = 0
    if before != NULL and front_end.age_head.born_ns > batch.born_ns:
        before = NULL
    while before != NULL and before.born_ns > batch.born_ns:
        before = before.age_previous
        steps += 1
        if steps == AGE_STEPS_MAX and before != NULL and before.born_ns > batch.born_ns:
            batch.born_ns = before.born_ns
    batch.age_previous = before
    batch.age_next = before.age_next if before != NULL else front_end.age_head
    if before != NULL:
        before.age_next = batch
    else:
        front_end.age_head = batch
        note_deadline(core, front_end, batch.born_ns + front_end.delivery_timeout_ns)
    if batch.age_next != NULL:
        batch.age_next.age_previous = batch
    else:
        front_end.age_tail = batch


cdef void age_unlink(FrontEnd *front_end, ClientBatch *batch) noexcept nogil:
    """Take the batch out of the front-end's list of batches whose delivery timeout runs."""
    if batch.age_previous != NULL:
        batch.age_previous.age_next = batch.age_next
    else:
        front_end.age_head = batch.age_next
    if batch.age_next != NULL:
        batch.age_next.age_previous = batch.age_previous
    else:
        front_end.age_tail = batch.age_previous
    batch.age_next = NULL
    batch.age_previous = NULL


cdef int _by_age(const void *a, const void *b) noexcept nogil:
    cdef uint64_t left = (<ClientBatch **>a)[0].born_ns, right = (<ClientBatch **>b)[0].born_ns
    return (left > right) - (left < right)


cdef object sort_by_age(Core *core, FrontEnd *front_end):
    """Sort the front-end's list by age: expire() needs the oldest first, but a takeover adds them by entry and slot.

    Raise MemoryError.
    """
    cdef ClientBatch **batches = <ClientBatch **>calloc(front_end.live + 1, sizeof(ClientBatch *))
    cdef ClientBatch *batch = front_end.age_head
    cdef uint32_t count = 0, index
    if batches == NULL:
        raise MemoryError
    while batch != NULL:
        batches[count] = batch
        count += 1
        batch = batch.age_next
    qsort(batches, count, sizeof(ClientBatch *), _by_age)
    front_end.age_head = front_end.age_tail = NULL
    for index in range(count):
        age_append(core, front_end, batches[index])
    free(batches)


cdef void report(Core *core, ClientBatch *batch, int32_t error) noexcept nogil:
    """Publish the RESULT of an assigned batch with an error. Its chunks are still in use, so RELEASE follows later."""
    age_unlink(batch.front_end, batch)
    _note_failure(core, batch, error)
    _publish_result(core, batch, error)


cdef void report_written(Core *core, WireBatch *wire) noexcept nogil:
    """Publish the RESULT of the contributors when a request with acks=0 is written: a written batch counts as sent.

    Their memory stays in use until the broker answers.
    """
    cdef uint32_t row = wire.entry.contributors
    while row != CYP_NONE:
        if core.contributor_batches[row] != NULL and not core.contributor_batches[row].reported:
            _publish_result(core, core.contributor_batches[row], 0)
        row = core.contributors[row].next


cdef void _publish_result(Core *core, ClientBatch *batch, int32_t error) noexcept nogil:
    cdef uint32_t row = batch.wire.entry.contributors
    batch.reported = True
    _push(core, batch, CYP_OUTCOME_RESULT, -1, -1, error)
    CRASHPOINT(b"expire.reported")
    while core.contributor_batches[row] != batch:
        row = core.contributors[row].next
    # after the outcome: a successor of a sender that was killed in between finds the outcome in the ring
    store_release32(&core.contributors[row].flags, CYP_CONTRIBUTOR_REPORTED)


cdef void finish(
    Core *core, ClientBatch *batch, int64_t base_offset, int64_t append_time, int32_t error
) noexcept nogil:
    """Complete the batch and release its chunks. `base_offset` is the offset of its first record, -1 if unknown."""
    cdef FrontEnd *front_end = batch.front_end
    cdef uint32_t slot = batch.slot
    touch(core, front_end, slot)
    if is_aging(batch):  # with acks=0 the front-end already has a RESULT: a later failure is only counted
        age_unlink(front_end, batch)
        if error:
            _note_failure(core, batch, error)
        else:
            core.totals.records += batch.count
            core.totals.bytes += batch.bytes
    _push(
        core,
        batch,
        CYP_OUTCOME_RELEASE if batch.reported else CYP_OUTCOME_RESULT | CYP_OUTCOME_RELEASE,
        base_offset,
        append_time,
        error,
    )
    # after the outcome: otherwise the front-end of a sender that was killed in between would get no outcome
    slot_done(&front_end.rows[slot], batch.generation)
    CRASHPOINT(b"complete.slot-done")
    while batch.chunks:
        batch.chunks -= 1
        front_end.chunk_held[slot] = 0
        slot = front_end.chunk_next[slot]
    batch.state = BATCH_NONE
    batch.wire = NULL
    front_end.live -= 1
    front_end.bytes_live -= batch.bytes
    core.live_batches -= 1
    if front_end.detached and front_end.live == 0 and not front_end.ending:
        end_front_end(core, front_end)


cdef void announce(Core *core) noexcept nogil:
    """Wake the front-ends that have outcomes of this loop iteration and whose waiters sleep: one write each."""
    cdef FrontEnd *front_end = take_to_announce(core)
    while front_end != NULL:
        if waiter_needs_wake(&front_end.header.sleeping, &front_end.wake_signalled):
            CRASHPOINT(b"complete.before-wake")
            wake_signal(front_end.wake_fd)
        front_end = take_to_announce(core)


cdef void _push(
    Core *core, ClientBatch *batch, uint32_t flags, int64_t base_offset, int64_t append_time, int32_t error
) noexcept nogil:
    cdef FrontEnd *front_end = batch.front_end
    cdef cyp_outcome outcome
    if front_end.detached:
        return
    outcome.slot = batch.slot
    outcome.generation = batch.generation
    outcome.first = 0
    outcome.count = batch.count
    outcome.base_offset = base_offset
    outcome.append_time = append_time
    outcome.error = error
    outcome.flags = flags
    outcome.cause = _cause(batch, error)
    outcome.text = 0
    if error and core.judged != NULL and batch.wire == core.judged:
        outcome.text = _put_text(core, front_end)
    outcome_put(front_end.outcome_ring, front_end.outcome_mask, front_end.outcome_tail, &outcome)
    CRASHPOINT(b"complete.outcome-filled")
    front_end.outcome_tail += 1
    outcome_publish(&front_end.outcomes_header.outcome_tail, front_end.outcome_tail)
    CRASHPOINT(b"complete.outcome-published")
    note_outcomes(core, front_end)


cdef int32_t _cause(ClientBatch *batch, int32_t error) noexcept nogil:
    """Return the last Kafka error of an attempt to send the batch; 0 if there is none or it equals `error`.

    For a batch that was never sent, return the error of the batches that its partition had to send before it.
    """
    cdef int32_t cause = 0
    cdef Lane *lane
    if error == 0:
        return 0
    if batch.wire != NULL:
        cause = batch.wire.entry.cause
    elif error == CODE_DELIVERY_TIMEOUT and batch.queue != NULL:
        lane = batch.queue.lane
        if lane.leader == NULL:
            cause = ERROR_LEADER_NOT_AVAILABLE
        else:
            cause = lane.last_error
    return cause if cause != error else 0


cdef uint32_t _put_text(Core *core, FrontEnd *front_end) noexcept nogil:
    """Copy the broker's error message to the next text place, so that an outcome can refer to it. Return the place + 1.

    Return 0 if there is no message, or if the front-end has not yet read the outcome that refers to the next place. The
    front-end itself says how far it has read. If that is wrong, only its own texts are spoiled.
    """
    cdef uint32_t place = front_end.text_place
    cdef uint32_t size = min(core.said_bytes, <uint32_t>CYP_TEXT_BYTES)
    cdef cyp_text *text = &front_end.outcomes_header.texts[place]
    # pairs with the release in OutcomeReader.drain: the front-end has read the text that is overwritten
    if size == 0 or load_acquire(&front_end.header.outcome_head) < front_end.text_until[place]:
        return 0
    text.bytes = size
    memcpy(text.text, core.said, size)
    front_end.text_until[place] = front_end.outcome_tail + 1
    front_end.text_place = (place + 1) % <uint32_t>CYP_TEXTS
    return place + 1


cdef void _note_failure(Core *core, ClientBatch *batch, int32_t error) noexcept nogil:
    cdef uint32_t topic = batch.queue.lane.topic.number if batch.queue != NULL else 0xffffffffU
    note_failure(core, batch.front_end.attach_id, topic, error, batch.count)


cdef void note_failure(Core *core, uint64_t attach_id, uint32_t topic, int32_t error, uint64_t records) noexcept nogil:
    """Add a failure to the table, which Python empties. `topic` is 2^32 - 1 if it is unknown."""
    cdef uint32_t index
    cdef Failure *failure
    core.totals.errors += records
    for index in range(core.failure_count):
        failure = &core.failures[index]
        if failure.attach_id == attach_id and failure.topic == topic and failure.error == error:
            failure.records += records
            return
    if core.failure_count == FAILURES_MAX:
        # the table is full: the total stays right, but these records are counted under the error of the last row
        core.failures[FAILURES_MAX - 1].records += records
        return
    failure = &core.failures[core.failure_count]
    failure.attach_id = attach_id
    failure.topic = topic
    failure.error = error
    failure.records = records
    core.failure_count += 1
