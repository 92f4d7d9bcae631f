"""Outcomes: what a front-end learns of its batches.

A batch gets exactly one RESULT and one RELEASE, in most cases in one entry of the front-end's ring. The ring
holds two entries per chunk, so that it cannot be full and the sender never waits for a front-end. The ring is
also what a successor of a killed sender knows of the results that were published: the slot word becomes DONE
after them.
"""

from libc.stdint cimport int32_t, int64_t, uint32_t, uint64_t
from libc.stdlib cimport realloc

from cyproducer.shm.atomics cimport store_release32
from cyproducer.shm.clock cimport wake_signal
from cyproducer.shm.crash cimport CRASHPOINT
from cyproducer.shm.layout cimport (
    CYP_CONTRIBUTOR_REPORTED,
    CYP_NONE,
    CYP_OUTCOME_RELEASE,
    CYP_OUTCOME_RESULT,
    cyp_outcome,
)
from cyproducer.shm.ring cimport outcome_publish, outcome_put
from cyproducer.shm.slot cimport slot_done
from cyproducer.shm.wake cimport waiter_needs_wake
from cyproducer.sender.attaching cimport end_front_end
from cyproducer.sender.breadcrumb cimport touch
from cyproducer.sender.model cimport (
    BATCH_NONE,
    FAILURES_MAX,
    Batch,
    Core,
    Event,
    Failure,
    FrontEnd,
    Wire,
)

cdef enum:
    AGE_STEPS_MAX = 256


cdef void push_event(Core *core, int kind, uint32_t node, int32_t error, uint64_t attach_id) noexcept nogil:
    """Hands something to Python, which takes the events after this turn."""
    cdef Event *grown
    if core.event_count == core.event_capacity:
        grown = <Event *>realloc(core.events, 2 * (core.event_capacity + 32) * sizeof(Event))
        if grown == NULL:
            return  # out of memory: the deadlines of what the event was about still hold
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


cdef void age_append(FrontEnd *front_end, Batch *batch) noexcept nogil:
    """Into the front-end's list of those whose delivery timeout runs, the oldest first: nearly always at the end.

    An age that would lead far into the list is made smaller: it comes from what the front-end says, and of a liar's
    a list of a million batches would be walked for each.
    """
    cdef Batch *before = front_end.age_tail
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
    if batch.age_next != NULL:
        batch.age_next.age_previous = batch
    else:
        front_end.age_tail = batch


cdef void age_unlink(FrontEnd *front_end, Batch *batch) noexcept nogil:
    """Takes the batch out of the front-end's list of those whose delivery timeout runs."""
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


cdef void report(Core *core, Batch *batch, int32_t error) noexcept nogil:
    """RESULT alone: an error for an assigned batch, whose chunks are still referred to."""
    age_unlink(batch.front_end, batch)
    _note_failure(core, batch, error)
    _tell(core, batch, error)


cdef void say_sent(Core *core, Wire *wire) noexcept nogil:
    """acks=0: what is written is sent, as its owners hear now. Their memory is in use until the broker answers."""
    cdef uint32_t row = wire.entry.contributors
    while row != CYP_NONE:
        if core.contributor_batches[row] != NULL and not core.contributor_batches[row].reported:
            _tell(core, core.contributor_batches[row], 0)
        row = core.contributors[row].next


cdef void _tell(Core *core, Batch *batch, int32_t error) noexcept nogil:
    cdef uint32_t row = batch.wire.entry.contributors
    batch.reported = True
    _push(batch, CYP_OUTCOME_RESULT, -1, -1, error)
    CRASHPOINT(b"expire.reported")
    while core.contributor_batches[row] != batch:
        row = core.contributors[row].next
    # after the outcome: killed in between, a successor finds that in the ring, later this
    store_release32(&core.contributors[row].flags, CYP_CONTRIBUTOR_REPORTED)


cdef void finish(Core *core, Batch *batch, int64_t base_offset, int64_t append_time, int32_t error) noexcept nogil:
    """The sender is done with the batch; `base_offset` is that of its first record, -1 if unknown."""
    cdef FrontEnd *front_end = batch.front_end
    cdef uint32_t slot = batch.slot
    touch(core, front_end, slot)
    if is_aging(batch):  # a failure of what was said to be sent, acks=0, is known to the ledger alone
        age_unlink(front_end, batch)
        if error:
            _note_failure(core, batch, error)
        else:
            core.totals.records += batch.count
            core.totals.bytes += batch.bytes
    _push(
        batch,
        CYP_OUTCOME_RELEASE if batch.reported else CYP_OUTCOME_RESULT | CYP_OUTCOME_RELEASE,
        base_offset,
        append_time,
        error,
    )
    # after the outcome, or a sender killed in between would leave its front-end without one
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
    if front_end.detached and front_end.live == 0:
        end_front_end(core, front_end)


cdef void announce(Core *core) noexcept nogil:
    """Wakes the front-ends whose waiters sleep and that have outcomes of this turn: one write each."""
    cdef FrontEnd *front_end = core.front_ends
    while front_end != NULL:
        if front_end.has_outcomes:
            front_end.has_outcomes = False
            if waiter_needs_wake(&front_end.header.sleeping, &front_end.wake_signalled):
                CRASHPOINT(b"complete.before-wake")
                wake_signal(front_end.wake_fd)
        front_end = front_end.next


cdef void _push(Batch *batch, uint32_t flags, int64_t base_offset, int64_t append_time, int32_t error) noexcept nogil:
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
    outcome_put(front_end.outcome_ring, front_end.outcome_mask, front_end.outcome_tail, &outcome)
    CRASHPOINT(b"complete.outcome-filled")
    front_end.outcome_tail += 1
    outcome_publish(&front_end.outcomes_header.outcome_tail, front_end.outcome_tail)
    CRASHPOINT(b"complete.outcome-published")
    front_end.has_outcomes = True


cdef void _note_failure(Core *core, Batch *batch, int32_t error) noexcept nogil:
    cdef uint32_t topic = batch.queue.partition.topic.number if batch.queue != NULL else 0xffffffffU
    note_failure(core, batch.front_end.attach_id, topic, error, batch.count)


cdef void note_failure(Core *core, uint64_t attach_id, uint32_t topic, int32_t error, uint64_t records) noexcept nogil:
    """Adds to the table that Python empties into the ledger; `topic` is 2^32 - 1 if it is not known."""
    cdef uint32_t index
    cdef Failure *failure
    core.totals.errors += records
    for index in range(core.failure_count):
        failure = &core.failures[index]
        if failure.attach_id == attach_id and failure.topic == topic and failure.error == error:
            failure.records += records
            return
    if core.failure_count == FAILURES_MAX:
        core.failures[FAILURES_MAX - 1].records += records  # the count stays right, the cause is the last row's
        return
    failure = &core.failures[core.failure_count]
    failure.attach_id = attach_id
    failure.topic = topic
    failure.error = error
    failure.records = records
    core.failure_count += 1
