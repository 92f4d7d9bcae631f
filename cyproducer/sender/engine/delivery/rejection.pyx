"""Handles batches that the broker refuses, and front-ends that change committed records.

A front-end never gets an error that another front-end's records caused in a merged batch. If the broker refuses a
merged batch and names records (record_errors, Produce v8), the contributors of these records leave, and a smaller batch
of the others is sent in its place. If the broker names no record, every contributor gets an entry of its own in its
place. A new epoch closes the gap that is left. Before that, all other unresolved batches of the isolated front-ends
return to their queues, and these queues move to the isolation lane.

If an unsure batch is refused, an earlier attempt may still be in the log: brokers check the content before the
sequence. The fragments in its place find that out (fragments.pyx). Without sequences it stays unknown.

For a takeover see cyp_entry_state: the entries that replace another entry become valid with one store.
"""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport malloc
from libc.string cimport memcpy

from cyproducer.protocol.error_codes cimport ERROR_MESSAGE_TOO_LARGE, ERROR_RECORD_LIST_TOO_LARGE
from cyproducer.record.crc32c cimport crc32c
from cyproducer.record.merge cimport merge_records
from cyproducer.record.varint cimport get_varint
from cyproducer.sender.engine.delivery.backoff cimport back_off
from cyproducer.sender.engine.delivery.error_flags cimport is_content
from cyproducer.sender.engine.delivery.fragments cimport end_fragment
from cyproducer.sender.engine.delivery.identities cimport demand_epoch
from cyproducer.sender.engine.delivery.isolation cimport isolate_queue
from cyproducer.sender.engine.delivery.parts cimport (
    PART_DONE,
    PART_MALFORMED,
    PART_NO_ROOM,
    PART_REFUSED,
    PartCode,
    begin_parts,
    divide_by_size,
    divide_named,
    may_divide,
    note_too_large,
    prepare_named,
)
from cyproducer.sender.engine.delivery.wire_batches cimport (
    give_up,
    leave,
    let_go,
    link_before,
    new_wire,
    note_cause,
    take_body,
    wait,
)
from cyproducer.sender.engine.intake.accumulator cimport report_violation, put_back
from cyproducer.sender.engine.state.breadcrumb cimport touch
from cyproducer.sender.engine.state.client_codes cimport CODE_INVALID_BATCH, CODE_OUTCOME_UNKNOWN
from cyproducer.sender.engine.state.metrics cimport count_retry, count_split
from cyproducer.sender.engine.state.events cimport VIOLATION_CHAIN, VIOLATION_CHANGED
from cyproducer.sender.engine.state.model cimport (
    MERGE_MAX,
    NAMED_MAX,
    WIRE_IN_FLIGHT,
    ClientBatch,
    Core,
    FrontEnd,
    Lane,
    Named,
    Queue,
    WireBatch,
)
from cyproducer.sender.engine.state.outcomes cimport is_aging
from cyproducer.sender.engine.state.transactions cimport place_of
from cyproducer.shm.crash cimport CRASHPOINT
from cyproducer.shm.entry cimport entry_enter, entry_resolve, entry_sure
from cyproducer.shm.layout cimport (
    CYP_BLOCK_BYTES,
    CYP_ENTRY_ASSIGNED,
    CYP_ENTRY_FRAGMENT,
    CYP_ENTRY_PREPARED,
    CYP_ENTRY_SPLIT,
    CYP_ENTRY_UNSURE,
    CYP_NONE,
    CYP_UNIT_BYTES,
)


cdef void note_named(
    Core *core, WireBatch *wire, uint32_t record, const uint8_t *text, uint32_t text_bytes
) noexcept nogil:
    """Note a record that the broker names in a refused batch, and mark its contributor if the batch is merged.

    The caller calls fail() next.
    """
    cdef uint32_t row = wire.entry.contributors, at = core.named_count, index
    while 0 < at <= NAMED_MAX and core.named[at - 1].record > record:  # brokers name them in order
        at -= 1
    if at and at <= NAMED_MAX and core.named[at - 1].record == record:
        return  # it is named twice
    if record < wire.entry.count and core.named_count < NAMED_MAX:
        for index in range(core.named_count, at, -1):
            core.named[index] = core.named[index - 1]
        core.named[at] = Named(record, text_bytes, text, NULL, 0)
        core.named_count += 1
    elif record < wire.entry.count:
        core.named_count = NAMED_MAX + 1  # too many: it is not known which
    if wire.body == NULL:
        return
    wire.record_named = True
    while row != CYP_NONE:
        if record - core.contributors[row].first < core.contributors[row].count:
            if core.contributor_batches[row] != NULL:
                core.contributor_batches[row].to_withdraw = True
            return
        row = core.contributors[row].next


cdef void fail(Core *core, WireBatch *wire, int32_t error) noexcept nogil:
    """Handle a definite error of the present attempt: the broker refuses the records."""
    cdef Lane *lane = wire.lane
    cdef bint done
    note_cause(wire, error)
    if wire.unsure and wire.proven:
        unmark_all(core, wire)
        give_up(core, wire, error)  # it is in the log: the broker checks records before it checks sequences
        return
    if not wire.unsure:
        entry_sure(wire.entry)  # for a successor, in case this sender dies during the steps below
    if _is_too_large(error):
        note_too_large(core, wire)
    if lane.transaction != NULL and (not _is_too_large(error) or place_of(lane.transaction).failed):
        give_up(core, wire, error)  # as in Kafka, a record that is refused fails the transaction
        return
    if may_divide(core, wire) and _divide(core, wire, error):
        return
    if wire.body == NULL or wire.unreported == 0:
        if wire.body == NULL and is_content(error):
            isolate_queue(core, core.contributor_batches[wire.entry.contributors].queue)
        end_fragment(core, wire, error, 1)
        return
    if _is_too_large(error):
        lane.merge_max = wire.entry.length // 2
    _mark_isolated(core, wire)
    if wire.unsure and not wire.record_named and not wire.idempotent:
        give_up(core, wire, error)
        return
    if wire.idempotent:
        demand_epoch(lane)
    done = _remove_marked(core, wire, error) if wire.record_named else _split(core, wire)
    if not done:  # no free entries to replace it: it is sent again later and refused once more
        unmark_all(core, wire)
        back_off(core, wire)
        wait(core, wire)


cdef bint _divide(Core *core, WireBatch *wire, int32_t error) noexcept nogil:
    """Split a refused batch of one front-end if it is too large, or if the broker names records. Return whether it is.

    Without entries or memory for the parts it is sent again later and refused once more.
    """
    cdef PartCode code
    if _is_too_large(error):
        wire.retried = True
        code = divide_by_size(core, wire)
        if code == PART_NO_ROOM:
            back_off(core, wire)
            wait(core, wire)
        elif code == PART_MALFORMED:
            reject_changed(core, wire)
        return code != PART_REFUSED
    if core.named_count == 0 or not _may_send_rest(wire):
        return False
    isolate_queue(core, core.contributor_batches[wire.entry.contributors].queue)
    if wire.idempotent:
        demand_epoch(wire.lane)
    return divide_named(core, wire, error) == PART_DONE


cdef inline bint _is_too_large(int32_t error) noexcept nogil:
    """Return whether the broker refuses the size of a batch."""
    return error == ERROR_MESSAGE_TOO_LARGE or error == ERROR_RECORD_LIST_TOO_LARGE


cdef inline bint _may_send_rest(const WireBatch *wire) noexcept nogil:
    """Return whether the records that the broker has not named may be sent again."""
    return not wire.unsure and wire.acks != 0 and wire.retries > 0


cdef bint withdraw(Core *core, ClientBatch *batch, int32_t error) noexcept nogil:
    """Take a batch out of a merged batch that is in no log and waits to be sent.

    The batch ends with `error`. The others stay in the same place, and a new epoch closes the gap. Return False if
    there are no free entries to do that; the batch then stays.
    """
    cdef WireBatch *wire = batch.wire
    unmark_all(core, wire)
    batch.to_withdraw = True
    if wire.idempotent:
        demand_epoch(wire.lane)
    if _remove_marked(core, wire, error):
        return True
    batch.to_withdraw = False
    return False


cdef void _mark_isolated(Core *core, WireBatch *wire) noexcept nogil:
    cdef uint32_t row = wire.entry.contributors
    while row != CYP_NONE:
        if core.contributor_batches[row] != NULL and core.contributor_batches[row].to_withdraw:
            isolate_queue(core, core.contributor_batches[row].queue)
        row = core.contributors[row].next


cdef bint _remove_marked(Core *core, WireBatch *wire, int32_t error) noexcept nogil:
    """Replace a wire batch by a smaller one without the marked batches. Return False without a free entry for it.

    A marked batch ends with `error`, or as unknown if an attempt was unsure. If `error` is 0, a marked batch without
    an outcome returns to its queue.
    """
    cdef ClientBatch *staying[MERGE_MAX]
    cdef ClientBatch *batch
    cdef uint32_t row = wire.entry.contributors, count = 0, records = 0
    while row != CYP_NONE:
        batch = core.contributor_batches[row]
        if batch != NULL and not batch.to_withdraw and is_aging(batch):
            staying[count] = batch
            count += 1
            records += batch.count
        row = core.contributors[row].next
    if count:
        if core.free_wire_count == 0 or core.free_contributor_count < count or \
                (count > 1 and core.free_body_count == 0):
            return False
        _prepare_wire(core, wire, staying, count, 0)
    if _prepare_marked(core, wire, records, error) or count:
        wire.entry.error = error  # a successor ends the batches that are in no part with it; 0: it queues them
        entry_enter(wire.entry, CYP_ENTRY_SPLIT)  # from here on a successor continues with the smaller batches
        CRASHPOINT(b"split.shed")
        begin_parts(core, wire)
    elif error:
        # a successor reports the same outcome
        entry_resolve(wire.entry, CODE_OUTCOME_UNKNOWN if wire.unsure else error, -1, -1)
        CRASHPOINT(b"split.all-shed")
    row = wire.entry.contributors
    while row != CYP_NONE:
        batch = core.contributor_batches[row]
        if batch != NULL and batch.wire == wire:
            batch.to_withdraw = False
            if error == 0 and not batch.reported:
                core.contributor_batches[row] = NULL
                put_back(batch)
            else:
                let_go(core, row, -1, -1, CODE_OUTCOME_UNKNOWN if wire.unsure or error == 0 else error)
        row = core.contributors[row].next
    leave(core, wire)
    return True


cdef bint _prepare_marked(Core *core, WireBatch *wire, uint32_t begin, int32_t error) noexcept nogil:
    """Prepare parts for the marked batches with records that the broker has named. Return whether there are any.

    Their sequences begin `begin` after that of `wire`.
    """
    cdef uint32_t row = wire.entry.contributors, following
    cdef ClientBatch *batch
    cdef bint some = False
    if error == 0 or core.judged != wire or not _may_send_rest(wire):
        return False
    while row != CYP_NONE:
        batch = core.contributor_batches[row]
        following = core.contributors[row].next
        if batch != NULL and batch.to_withdraw and not batch.reported \
                and prepare_named(core, wire, row, begin, error):
            some = True
            begin += core.contributors[row].count
        row = following
    return some


cdef WireBatch *_prepare_wire(
    Core *core, WireBatch *wire, ClientBatch **staying, uint32_t count, uint32_t number
) noexcept nogil:
    """Create part `number` of the replacement of `wire`: an entry for some of its contributors, linked before it."""
    cdef WireBatch *part = new_wire(core, wire.lane, staying, count, take_body(core) if count > 1 else NULL)
    if count > 1:
        _copy_staying(core, wire, part)
    else:
        part.entry.length = staying[0].bytes
    part.entry.producer_id = wire.entry.producer_id
    part.entry.producer_epoch = wire.entry.producer_epoch
    part.entry.base_sequence = wire.entry.base_sequence
    part.entry.cause = wire.entry.cause
    part.unsure = wire.unsure
    part.fragment = wire.unsure
    part.retried = True
    if wire.unsure:
        part.entry.flags = CYP_ENTRY_UNSURE | CYP_ENTRY_FRAGMENT
    part.entry.order = wire.entry.order + number
    part.entry.parent = wire.index
    link_before(wire.lane, part, wire)
    entry_enter(part.entry, CYP_ENTRY_PREPARED)
    CRASHPOINT(b"split.part-prepared")
    if wire.state == WIRE_IN_FLIGHT and not _is_too_large(wire.entry.cause):
        count_retry(core, part)
    return part


cdef void _copy_staying(Core *core, WireBatch *wire, WireBatch *part) noexcept nogil:
    """Copy the records of the staying contributors from body to body: the chunks may have changed since the merge.

    The records of a contributor that was not found in a takeover are dropped.
    """
    cdef uint32_t row = wire.entry.contributors, first = 0, passed = 0
    cdef const uint8_t *source = wire.body
    cdef const uint8_t *end = wire.body + wire.entry.length
    cdef const uint8_t *following
    cdef int64_t delta = 0, written
    cdef uint64_t at = 0
    part.entry.base_timestamp = wire.entry.base_timestamp
    part.entry.max_timestamp = wire.entry.base_timestamp
    while row != CYP_NONE:
        source = _after_records(source, end, core.contributors[row].first - passed)
        following = _after_records(source, end, core.contributors[row].count)
        passed = core.contributors[row].first + core.contributors[row].count
        if core.contributor_batches[row] != NULL and core.contributor_batches[row].wire == part:
            written = merge_records(
                source, following - source, <int32_t>core.contributors[row].count, 0, <int32_t>first,
                part.body + at, CYP_BLOCK_BYTES - at, &delta, &core.contributor_batches[row].largest,
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


cdef bint _split(Core *core, WireBatch *wire) noexcept nogil:
    """Replace the merged batch by one entry for each contributor. Return False without free entries for them.

    The parts get their sequences in the new epoch. If an earlier attempt of the merged batch may be in the log, they
    are sent under sequences of the old epoch first.
    """
    cdef uint32_t row = wire.entry.contributors, number = 0
    cdef ClientBatch *batch
    cdef WireBatch *part = wire
    if core.free_wire_count < wire.contributor_count or core.free_contributor_count < wire.contributor_count:
        return False
    if _is_too_large(wire.entry.cause):
        count_split(core, wire)
    while row != CYP_NONE:
        batch = core.contributor_batches[row]
        if batch != NULL and is_aging(batch):
            batch.solo = True
            _prepare_wire(core, wire, &batch, 1, number).entry.base_sequence += core.contributors[row].first
            number += 1
        row = core.contributors[row].next
    wire.entry.error = 0
    entry_enter(wire.entry, CYP_ENTRY_SPLIT)  # from here on a successor sees the parts instead
    CRASHPOINT(b"split.committed")
    while number:
        number -= 1
        part = part.previous
        entry_enter(part.entry, CYP_ENTRY_ASSIGNED)
        CRASHPOINT(b"split.part-assigned")
    release_reported(core, wire)
    leave(core, wire)
    return True


cdef void release_reported(Core *core, WireBatch *wire) noexcept nogil:
    """Release the chunks of the contributors of a SPLIT entry that have their result already."""
    cdef uint32_t row = wire.entry.contributors
    while row != CYP_NONE:
        if core.contributor_batches[row] != NULL and not is_aging(core.contributor_batches[row]):
            let_go(core, row, -1, -1, CODE_OUTCOME_UNKNOWN)
        row = core.contributors[row].next


cdef bint _has_part_after(Core *core, WireBatch *wire, Queue *queue) noexcept nogil:
    """Return whether a later batch of the queue was split: its parts stay, so what comes before them stays too."""
    cdef ClientBatch *batch
    while wire.next != NULL:
        wire = wire.next
        batch = core.contributor_batches[wire.entry.contributors]
        if wire.partial and batch != NULL and batch.queue == queue:
            return True
    return False


cdef void withdraw_marked(Core *core, Lane *lane) noexcept nogil:
    """Return the unresolved batches of isolated front-ends to their queues before a new epoch. None is unsure."""
    cdef WireBatch *wire = lane.wire_tail  # from the last: each is put back before the one that follows it
    cdef WireBatch *before
    cdef uint32_t row
    cdef bint some
    while wire != NULL and not lane.isolation:
        before = wire.previous
        row = wire.entry.contributors
        some = False
        while row != CYP_NONE and wire.idempotent and not wire.partial:
            if core.contributor_batches[row] != NULL and core.contributor_batches[row].queue.isolated \
                    and not _has_part_after(core, wire, core.contributor_batches[row].queue):
                core.contributor_batches[row].to_withdraw = True
                some = True
            row = core.contributors[row].next
        if some and not _remove_marked(core, wire, 0):
            unmark_all(core, wire)
        wire = before


cdef void unmark_all(Core *core, WireBatch *wire) noexcept nogil:
    """Clear all marks of a wire batch: `record_named`, and `to_withdraw` of its contributors."""
    cdef uint32_t row = wire.entry.contributors
    wire.record_named = False
    while row != CYP_NONE:
        if core.contributor_batches[row] != NULL:
            core.contributor_batches[row].to_withdraw = False
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
    wire.corrupt += 1
    if wire.body != NULL or wire.copy != NULL or wire.packed != NULL:
        return True
    wire.copy = <uint8_t *>malloc(wire.entry.length)
    if wire.copy == NULL:
        return True
    batch = core.contributor_batches[wire.entry.contributors]
    front_end = batch.front_end
    slot = batch.slot
    touch(core, front_end, slot)
    while slot != CYP_NONE:
        memcpy(
            wire.copy + at, front_end.chunks + <uint64_t>slot * CYP_UNIT_BYTES, front_end.chunk_bytes[slot]
        )
        at += front_end.chunk_bytes[slot]
        slot = front_end.chunk_next[slot]
    return crc32c(0, wire.copy, wire.entry.length) == wire.entry.crc


cdef void reject_changed(Core *core, WireBatch *wire) noexcept nogil:
    """End a batch whose only contributor committed malformed records or changed them, and report its violation."""
    cdef ClientBatch *batch = core.contributor_batches[wire.entry.contributors]
    if not batch.front_end.detached:
        report_violation(core, batch.front_end, VIOLATION_CHANGED if wire.stamped else VIOLATION_CHAIN)
    isolate_queue(core, batch.queue)
    end_fragment(core, wire, CODE_INVALID_BATCH, 0)
