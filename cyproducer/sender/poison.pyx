"""Records that the broker refuses, and front-ends that change theirs: they cost their owner, and nobody else.

Nobody answers for a batch that he did not fill alone. Of a merged batch that is refused, those leave whose
records the broker names (record_errors, Produce v8), and the others go out again in its place; if it names none,
every contributor gets an entry of his own there. The gap that is left is closed by a new epoch; by then what
else the offenders have on the way is back in their queues, and these leave for the penalty lane.

Of an unsure batch that is refused nobody knows whether an earlier attempt was appended: content is judged before
sequences are. The smaller ones in its place find out (heirs.pyx); without sequences nothing can.

For a successor, see cyp_entry_state: the entries that take the place of one become valid with one store.
"""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport malloc
from libc.string cimport memcpy

from cyproducer.record.crc32c cimport crc32c
from cyproducer.record.merge cimport merge_records
from cyproducer.record.varint cimport get_varint
from cyproducer.shm.crash cimport CRASHPOINT
from cyproducer.shm.entry cimport entry_enter, entry_resolve, entry_sure
from cyproducer.shm.layout cimport (
    CYP_BLOCK_BYTES,
    CYP_ENTRY_ASSIGNED,
    CYP_ENTRY_HEIR,
    CYP_ENTRY_PREPARED,
    CYP_ENTRY_SPLIT,
    CYP_ENTRY_UNSURE,
    CYP_NONE,
    CYP_UNIT_BYTES,
)
from cyproducer.sender.accumulator cimport condemn, put_back
from cyproducer.sender.breadcrumb cimport touch
from cyproducer.sender.entries cimport (
    demand_epoch,
    give_up,
    leave,
    let_go,
    link_before,
    new_wire,
    take_body,
    wait,
)
from cyproducer.sender.heirs cimport end_heir
from cyproducer.sender.model cimport (
    CONDEMNED_CHAIN,
    CONDEMNED_CHANGED,
    MERGE_MAX,
    Batch,
    Core,
    FrontEnd,
    Partition,
    Wire,
)
from cyproducer.sender.outcomes cimport CODE_INVALID_BATCH, CODE_OUTCOME_UNKNOWN, is_aging
from cyproducer.sender.penalty cimport offend


cdef enum:
    ERROR_UNKNOWN_SERVER = -1
    ERROR_CORRUPT_MESSAGE = 2
    ERROR_MESSAGE_TOO_LARGE = 10
    ERROR_RECORD_LIST_TOO_LARGE = 18
    ERROR_INVALID_TIMESTAMP = 32
    ERROR_UNSUPPORTED_FOR_MESSAGE_FORMAT = 43
    ERROR_POLICY_VIOLATION = 44
    ERROR_UNSUPPORTED_COMPRESSION_TYPE = 76
    ERROR_INVALID_RECORD = 87


cdef inline bint _is_content(int32_t error) noexcept nogil:
    """Does the error come from what is in the batch?"""
    return (
        error == ERROR_INVALID_RECORD
        or error == ERROR_INVALID_TIMESTAMP
        or error == ERROR_CORRUPT_MESSAGE
        or error == ERROR_MESSAGE_TOO_LARGE
        or error == ERROR_RECORD_LIST_TOO_LARGE
        or error == ERROR_UNSUPPORTED_FOR_MESSAGE_FORMAT
        or error == ERROR_POLICY_VIOLATION
        or error == ERROR_UNSUPPORTED_COMPRESSION_TYPE
        or error == ERROR_UNKNOWN_SERVER
    )


cdef void accuse(Core *core, Wire *wire, uint32_t record) noexcept nogil:
    """The broker names a record of a merged batch that it refuses; `fail` follows."""
    cdef uint32_t row = wire.entry.contributors
    wire.spoiled = True
    while row != CYP_NONE:
        if record - core.contributors[row].first < core.contributors[row].count:
            if core.contributor_batches[row] != NULL:
                core.contributor_batches[row].accused = True
            return
        row = core.contributors[row].next


cdef void fail(Core *core, Wire *wire, int32_t error) noexcept nogil:
    """The broker refuses the records: a definite error of the present attempt."""
    cdef Partition *partition = wire.partition
    cdef bint done
    if not wire.unsure:
        entry_sure(wire.entry)  # for a successor, if this sender does not come to the end of what follows
    if wire.body == NULL or wire.unreported == 0:
        if wire.body == NULL and _is_content(error):
            offend(core, core.contributor_batches[wire.entry.contributors].queue)
        end_heir(core, wire, error, 1)
        return
    if error == ERROR_MESSAGE_TOO_LARGE:
        partition.merge_max = wire.entry.length // 2
    _mark_offenders(core, wire)
    if wire.unsure and not wire.spoiled and not wire.idempotent:
        give_up(core, wire, error)
        return
    if wire.idempotent:
        demand_epoch(partition)
    done = _shed(core, wire, error) if wire.spoiled else _take_apart(core, wire)
    if not done:  # no room for what takes its place: it is refused once more, later
        acquit(core, wire)
        partition.retry_at_ns = core.now + core.retry_backoff_ns
        wait(wire)


cdef void _mark_offenders(Core *core, Wire *wire) noexcept nogil:
    cdef uint32_t row = wire.entry.contributors
    while row != CYP_NONE:
        if core.contributor_batches[row] != NULL and core.contributor_batches[row].accused:
            offend(core, core.contributor_batches[row].queue)
        row = core.contributors[row].next


cdef bint _shed(Core *core, Wire *wire, int32_t error) noexcept nogil:
    """A smaller batch without the accused in the place of this one; False without room for it.

    The accused get `error`, or as unknown if an attempt was unsure; 0: they go back to their queues.
    """
    cdef Batch *staying[MERGE_MAX]
    cdef Batch *batch
    cdef Wire *part = NULL
    cdef uint32_t row = wire.entry.contributors, count = 0
    while row != CYP_NONE:
        batch = core.contributor_batches[row]
        if batch != NULL and not batch.accused and is_aging(batch):
            staying[count] = batch
            count += 1
        row = core.contributors[row].next
    if count:
        if core.free_wire_count == 0 or core.free_contributor_count < count or \
                (count > 1 and core.free_body_count == 0):
            return False
        part = _prepare(core, wire, staying, count, 0)
        entry_enter(wire.entry, CYP_ENTRY_SPLIT)  # from here on a successor goes on with the smaller one
        CRASHPOINT(b"split.shed")
        entry_enter(part.entry, CYP_ENTRY_ASSIGNED)
    elif error:
        # a successor tells them the same
        entry_resolve(wire.entry, CODE_OUTCOME_UNKNOWN if wire.unsure else error, -1, -1)
        CRASHPOINT(b"split.all-shed")
    # killed from here on, the accused are in no entry: a successor finds them in the slot table, as not yet sent
    row = wire.entry.contributors
    while row != CYP_NONE:
        batch = core.contributor_batches[row]
        if batch != NULL and batch.wire == wire:
            batch.accused = False
            if error == 0 and not batch.reported:
                core.contributor_batches[row] = NULL
                put_back(batch)
            else:
                let_go(core, row, -1, -1, CODE_OUTCOME_UNKNOWN if wire.unsure or error == 0 else error)
        row = core.contributors[row].next
    leave(core, wire)
    return True


cdef Wire *_prepare(Core *core, Wire *wire, Batch **staying, uint32_t count, uint32_t number) noexcept nogil:
    """Part `number` of what takes the place of `wire`: an entry for some of its contributors, linked before it."""
    cdef Wire *part = new_wire(core, wire.partition, staying, count, take_body(core) if count > 1 else NULL)
    if count > 1:
        _carry_over(core, wire, part)
    else:
        part.entry.length = staying[0].bytes
    part.entry.producer_id = wire.entry.producer_id
    part.entry.producer_epoch = wire.entry.producer_epoch
    part.entry.base_sequence = wire.entry.base_sequence
    part.unsure = wire.unsure
    part.heir = wire.unsure
    if wire.unsure:
        part.entry.flags = CYP_ENTRY_UNSURE | CYP_ENTRY_HEIR
    part.entry.order = wire.entry.order + number
    part.entry.parent = wire.index
    link_before(wire.partition, part, wire)
    entry_enter(part.entry, CYP_ENTRY_PREPARED)
    CRASHPOINT(b"split.part-prepared")
    return part


cdef void _carry_over(Core *core, Wire *wire, Wire *part) noexcept nogil:
    """Copies the records of those who stay from body to body: the chunks may have been changed since the merge.

    A contributor that a successor did not find again has left its records behind, and they go.
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
                part.body + at, CYP_BLOCK_BYTES - at, &delta,
            )
            if written > 0:  # deltas only become smaller: it fits
                at += written
            first += core.contributors[row].count
            if part.entry.base_timestamp + delta > part.entry.max_timestamp:
                part.entry.max_timestamp = part.entry.base_timestamp + delta
        source = following
        row = core.contributors[row].next
    part.entry.length = <uint32_t>at


cdef const uint8_t *_after_records(const uint8_t *at, const uint8_t *end, uint32_t count) noexcept nogil:
    """Steps over `count` records of a body, which is our own."""
    cdef int32_t length = 0
    cdef const uint8_t *after
    while count and at < end:
        after = get_varint(at, end, &length)
        if after == NULL or length > end - after:
            return end
        at = after + length
        count -= 1
    return at


cdef bint _take_apart(Core *core, Wire *wire) noexcept nogil:
    """An entry for each contributor, in the place of the merged one; False without room for them.

    The sequences of the parts come with the new epoch; if nobody knows whether all of them have been appended, the
    parts go under those of the old one before.
    """
    cdef uint32_t row = wire.entry.contributors, number = 0
    cdef Batch *batch
    cdef Wire *part = wire
    if core.free_wire_count < wire.contributor_count or core.free_contributor_count < wire.contributor_count:
        return False
    while row != CYP_NONE:
        batch = core.contributor_batches[row]
        if batch != NULL and is_aging(batch):
            batch.solo = True
            _prepare(core, wire, &batch, 1, number).entry.base_sequence += core.contributors[row].first
            number += 1
        row = core.contributors[row].next
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


cdef void release_reported(Core *core, Wire *wire) noexcept nogil:
    """Of a merged entry that is SPLIT: who has had his result gets his chunks back."""
    cdef uint32_t row = wire.entry.contributors
    while row != CYP_NONE:
        if core.contributor_batches[row] != NULL and not is_aging(core.contributor_batches[row]):
            let_go(core, row, -1, -1, CODE_OUTCOME_UNKNOWN)
        row = core.contributors[row].next


cdef void withdraw_offenders(Core *core, Partition *partition) noexcept nogil:
    """Before a new epoch: what offenders still have on the way goes back to their queues. All of it is certain."""
    cdef Wire *wire = partition.wire_tail  # from the last: each is put back before the one that follows it
    cdef Wire *before
    cdef uint32_t row
    cdef bint some
    while wire != NULL and not partition.penalty:
        before = wire.previous
        row = wire.entry.contributors
        some = False
        while row != CYP_NONE and wire.idempotent:
            if core.contributor_batches[row] != NULL and core.contributor_batches[row].queue.offender:
                core.contributor_batches[row].accused = True
                some = True
            row = core.contributors[row].next
        if some and not _shed(core, wire, 0):
            acquit(core, wire)
        wire = before


cdef void acquit(Core *core, Wire *wire) noexcept nogil:
    """Takes back what `accuse` said."""
    cdef uint32_t row = wire.entry.contributors
    wire.spoiled = False
    while row != CYP_NONE:
        if core.contributor_batches[row] != NULL:
            core.contributor_batches[row].accused = False
        row = core.contributors[row].next


cdef bint verify(Core *core, Wire *wire) noexcept nogil:
    """The broker says CORRUPT_MESSAGE: False if the front-end has changed the records since they were stamped.

    They are copied first and judged in the copy, which every further attempt sends. Without memory for it the
    next attempt is from the chunks again.
    """
    cdef Batch *batch
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


cdef void reject_changed(Core *core, Wire *wire) noexcept nogil:
    """The only contributor committed no records, or changed them: the batch ends, the front-end is given up."""
    cdef Batch *batch = core.contributor_batches[wire.entry.contributors]
    if not batch.front_end.detached:
        condemn(core, batch.front_end, CONDEMNED_CHANGED if wire.stamped else CONDEMNED_CHAIN)
    offend(core, batch.queue)
    end_heir(core, wire, CODE_INVALID_BATCH, 0)
