"""Entries: RecordBatches on the wire, their sequences, and what becomes of them.

An entry is persistent (state region): it is filled, then ASSIGNED; SENT words and UNSURE are stored before a
byte of it may reach the socket; RESOLVED carries the result before any front-end hears of it; the partition's
acked_end follows; the outcomes; and only then it is free. A successor of a killed sender finds at every point
enough to go on (adopt.pyx). `nextSequence` is not stored: it is the largest of acked_end and the ends of the
entries. That the epoch must be raised is stored before the entry that demands it may go.

Sequences are 64-bit and logical here; on the wire they wrap from 2^31 - 1 to 0, as Kafka's do.
"""

from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free

from cyproducer.record.crc32c cimport crc32c, crc32c_combine
from cyproducer.record.header cimport BATCH_HEADER_BYTES, CRC_START, put_batch_header, put_crc
from cyproducer.record.merge cimport merge_records
from cyproducer.shm.atomics cimport fence_seq_cst, store_release, store_release32
from cyproducer.shm.crash cimport CRASHPOINT
from cyproducer.shm.entry cimport entry_enter, entry_resolve, entry_sure, entry_unsure
from cyproducer.shm.layout cimport (
    CYP_BLOCK_BYTES,
    CYP_DOUBTS_MAX,
    CYP_ENTRY_ASSIGNED,
    CYP_ENTRY_FREE,
    CYP_ENTRY_ORDER_STEP,
    CYP_NONE,
    CYP_UNIT_BYTES,
    cyp_contributor,
    cyp_entry,
    cyp_identity,
)
from cyproducer.shm.slot cimport sent_mark
from cyproducer.sender.breadcrumb cimport touch
from cyproducer.sender.model cimport (
    AHEAD_NOT,
    BATCH_ASSIGNED,
    BATCH_CLOSED,
    WIRE_FREE,
    WIRE_IN_FLIGHT,
    WIRE_WAITING,
    Batch,
    Core,
    FrontEnd,
    Partition,
    Queue,
    Wire,
)
from cyproducer.sender.outcomes cimport CODE_OUTCOME_UNKNOWN, finish
from cyproducer.sender.packing cimport pack, wire_bytes
from cyproducer.sender.partitions cimport lane_producer_epoch, lane_producer_id, relist
from cyproducer.sender.wellformed cimport well_formed
from cyproducer.sender.penalty cimport serve


cdef enum:
    SEQUENCE_MASK = 0x7fffffff


cdef Wire *assign(Core *core, Partition *partition, Batch **batches, uint32_t count) noexcept nogil:
    """Makes an entry of closed batches that have left their queues; NULL if it cannot be: put them back.

    With more than one batch the records are re-encoded into a body of our own, with one run of deltas.
    """
    cdef uint8_t *body = NULL
    cdef Wire *wire
    if core.free_wire_count == 0 or core.free_contributor_count < count:
        return NULL
    if count > 1:
        if core.free_body_count == 0:
            return NULL
        body = take_body(core)
    wire = new_wire(core, partition, batches, count, body)
    CRASHPOINT(b"build.filled")
    if body == NULL:
        wire.entry.length = batches[0].bytes
    elif not _merge(core, wire):
        _unassign(core, wire)
        free_wire(core, wire)
        return NULL
    _sequence(core, wire)
    link_before(partition, wire, NULL)
    CRASHPOINT(b"build.sequenced")
    entry_enter(wire.entry, CYP_ENTRY_ASSIGNED)  # a successor sees it filled
    CRASHPOINT(b"build.assigned")
    return wire


cdef uint8_t *take_body(Core *core) noexcept nogil:
    """64 KiB of the state region; there must be one."""
    core.free_body_count -= 1
    return core.bodies + <uint64_t>core.free_bodies[core.free_body_count] * CYP_BLOCK_BYTES


cdef Wire *new_wire(Core *core, Partition *partition, Batch **batches, uint32_t count, uint8_t *body) noexcept nogil:
    """Takes a free entry and fills in everything but its length and sequence."""
    cdef uint32_t index, row, previous_row = CYP_NONE, first = 0
    cdef cyp_contributor *contributor
    core.free_wire_count -= 1
    cdef Wire *wire = &core.wires[core.free_wires[core.free_wire_count]]
    cdef cyp_entry *entry = wire.entry
    wire.partition = partition
    wire.request = NULL
    wire.body = body
    wire.packed = NULL
    wire.codec = batches[0].front_end.codec
    wire.level = batches[0].front_end.level
    wire.copy = NULL
    wire.corrupt = 0
    wire.contributor_count = count
    wire.unreported = count
    wire.retries = batches[0].front_end.retries
    wire.acks = batches[0].front_end.acks
    wire.idempotent = batches[0].front_end.idempotent
    wire.stamped = False
    wire.sent = False
    wire.unsure = False
    wire.spoiled = False
    wire.heir = False
    wire.ahead = AHEAD_NOT
    wire.state = WIRE_WAITING
    entry.flags = 0
    entry.partition = partition.index
    entry.attempts = 0
    entry.acks = wire.acks
    entry.order = core.next_order
    entry.parent = CYP_NONE
    core.next_order += CYP_ENTRY_ORDER_STEP
    entry.attributes = 0
    entry.created_ns = core.now
    entry.base_timestamp = batches[0].base_timestamp
    entry.max_timestamp = batches[0].max_timestamp
    entry.body = CYP_NONE if body == NULL else <uint32_t>((body - core.bodies) // CYP_BLOCK_BYTES)
    entry.contributors = CYP_NONE
    for index in range(count):
        core.free_contributor_count -= 1
        row = core.free_contributors[core.free_contributor_count]
        contributor = &core.contributors[row]
        contributor.attach_id = batches[index].front_end.attach_id
        contributor.slot = batches[index].slot
        contributor.generation = batches[index].generation
        contributor.first = first
        contributor.count = batches[index].count
        contributor.flags = 0
        contributor.next = CYP_NONE
        core.contributor_batches[row] = batches[index]
        if previous_row == CYP_NONE:
            entry.contributors = row
        else:
            core.contributors[previous_row].next = row
        previous_row = row
        first += batches[index].count
        if batches[index].front_end.retries < wire.retries:
            wire.retries = batches[index].front_end.retries
        batches[index].state = BATCH_ASSIGNED
        batches[index].wire = wire
    entry.count = first
    return wire


cdef bint _merge(Core *core, Wire *wire) noexcept nogil:
    """Re-encodes the contributors' records into the body; False if they do not fit or somebody's are malformed."""
    cdef uint32_t row = wire.entry.contributors, slot, first = 0
    cdef uint64_t at = 0
    cdef int64_t written, base = wire.entry.base_timestamp, delta = 0
    cdef Batch *batch
    cdef FrontEnd *front_end
    while row != CYP_NONE:
        batch = core.contributor_batches[row]
        front_end = batch.front_end
        slot = batch.slot
        touch(core, front_end, slot)
        while slot != CYP_NONE:
            if front_end.chunk_count[slot] == 0:  # sealed just after its owner had rolled to it
                slot = front_end.chunk_next[slot]
                continue
            written = merge_records(
                front_end.chunks + <uint64_t>slot * CYP_UNIT_BYTES,
                front_end.chunk_bytes[slot],
                front_end.chunk_count[slot],
                batch.base_timestamp - base,
                first,
                wire.body + at,
                CYP_BLOCK_BYTES - at,
                &delta,
            )
            if written < 0:
                batch.solo = True  # alone, the broker judges it
                return False
            at += written
            first += front_end.chunk_count[slot]
            slot = front_end.chunk_next[slot]
        if batch.max_timestamp > wire.entry.max_timestamp:
            wire.entry.max_timestamp = batch.max_timestamp
        row = core.contributors[row].next
    wire.entry.length = <uint32_t>at
    CRASHPOINT(b"build.merged")
    core.totals.merged += wire.contributor_count
    return True


cdef void _unassign(Core *core, Wire *wire) noexcept nogil:
    cdef uint32_t row = wire.entry.contributors
    while row != CYP_NONE:
        core.contributor_batches[row].state = BATCH_CLOSED
        core.contributor_batches[row].wire = NULL
        row = core.contributors[row].next


cdef bint any_idempotent(Partition *partition) noexcept nogil:
    """Has the partition an unresolved entry with a sequence?"""
    cdef Wire *wire = partition.wire_head
    while wire != NULL:
        if wire.idempotent:
            return True
        wire = wire.next
    return False


cdef void _sequence(Core *core, Wire *wire) noexcept nogil:
    cdef Partition *partition = wire.partition
    cdef cyp_entry *entry = wire.entry
    if not wire.idempotent:
        entry.producer_id = -1
        entry.producer_epoch = -1
        entry.base_sequence = 0
        return
    if partition.producer_id != lane_producer_id(core, partition) and not any_idempotent(partition):
        begin_epoch(partition, lane_producer_id(core, partition), lane_producer_epoch(core, partition))
    entry.producer_id = partition.producer_id
    entry.producer_epoch = partition.producer_epoch
    entry.base_sequence = partition.next_sequence
    partition.next_sequence += entry.count


cdef void begin_epoch(Partition *partition, int64_t producer_id, int16_t epoch) noexcept nogil:
    """The partition starts at sequence 0 under another identity; nothing of the old one is unsure."""
    cdef uint32_t spare = partition.row.current ^ 1
    cdef cyp_identity *identity = &partition.row.identity[spare]
    partition.producer_id = producer_id
    partition.producer_epoch = epoch
    partition.next_sequence = 0
    partition.acknowledged = False
    partition.bumping = False
    identity.producer_id = producer_id
    identity.producer_epoch = epoch
    identity.acked_end = 0
    identity.doubts = 0
    identity.bumping = 0
    CRASHPOINT(b"epoch.filled")
    store_release32(&partition.row.current, spare)  # a successor sees the old identity or the whole new one
    CRASHPOINT(b"epoch.in-force")


cdef void link_before(Partition *partition, Wire *wire, Wire *following) noexcept nogil:
    """Into the partition's list of unresolved entries; `following` NULL: as the last."""
    cdef Wire *before = partition.wire_tail if following == NULL else following.previous
    wire.next = following
    wire.previous = before
    if before != NULL:
        before.next = wire
    else:
        partition.wire_head = wire
    if following != NULL:
        following.previous = wire
    else:
        partition.wire_tail = wire
    partition.unresolved += 1
    partition.waiting += 1


cdef void leave(Core *core, Wire *wire) noexcept nogil:
    """Out of the partition's list; the entry is free."""
    cdef Partition *partition = wire.partition
    if wire.state == WIRE_IN_FLIGHT:
        partition.in_flight -= 1
    else:
        partition.waiting -= 1
    if wire.previous != NULL:
        wire.previous.next = wire.next
    else:
        partition.wire_head = wire.next
    if wire.next != NULL:
        wire.next.previous = wire.previous
    else:
        partition.wire_tail = wire.previous
    partition.unresolved -= 1
    free_wire(core, wire)
    relist(partition)


cdef void free_wire(Core *core, Wire *wire) noexcept nogil:
    cdef cyp_entry *entry = wire.entry
    cdef uint32_t row = entry.contributors, following
    while row != CYP_NONE:
        following = core.contributors[row].next
        core.contributor_batches[row] = NULL
        core.free_contributors[core.free_contributor_count] = row
        core.free_contributor_count += 1
        row = following
    if wire.body != NULL:
        core.free_bodies[core.free_body_count] = entry.body
        core.free_body_count += 1
    CRASHPOINT(b"complete.unlisted")
    free(wire.copy)
    free(wire.packed)
    wire.state = WIRE_FREE
    wire.body = NULL
    wire.packed = NULL
    wire.copy = NULL
    wire.request = NULL
    wire.partition = NULL
    entry_enter(entry, CYP_ENTRY_FREE)
    CRASHPOINT(b"complete.freed")
    core.free_wires[core.free_wire_count] = wire.index
    core.free_wire_count += 1


cdef uint32_t records_crc(Core *core, Wire *wire) noexcept nogil:
    """CRC-32C of the wire's records as they lie in memory now."""
    cdef uint32_t crc = 0, slot
    cdef Batch *batch
    cdef FrontEnd *front_end
    if wire.body != NULL:
        return crc32c(0, wire.body, wire.entry.length)
    if wire.copy != NULL:
        return crc32c(0, wire.copy, wire.entry.length)
    batch = core.contributor_batches[wire.entry.contributors]
    front_end = batch.front_end
    slot = batch.slot
    touch(core, front_end, slot)
    while slot != CYP_NONE:
        crc = crc32c(crc, front_end.chunks + <uint64_t>slot * CYP_UNIT_BYTES, front_end.chunk_bytes[slot])
        slot = front_end.chunk_next[slot]
    return crc


cdef bint stamp(Core *core, Wire *wire) noexcept nogil:
    """Writes the batch header with its CRC for the next attempt.

    False if the records are not those of the attempt before: the front-end changed what it had committed. That
    is found in a new epoch too, since what is kept and compared is the CRC of the records without the header.
    False too if they are none. They are looked at after the CRC: whoever changes them later is found by the broker.
    """
    cdef cyp_entry *entry = wire.entry
    cdef uint32_t crc = records_crc(core, wire)
    if wire.stamped:
        if entry.crc != crc:
            return False
    elif wire.body == NULL and wire.copy == NULL and not well_formed(core.contributor_batches[entry.contributors]):
        return False
    entry.crc = crc
    CRASHPOINT(b"build.stamped")
    wire.stamped = True
    pack(core, wire)
    if wire.packed != NULL:
        CRASHPOINT(b"build.packed")
        crc = crc32c(0, wire.packed, wire.packed_bytes)
    put_batch_header(
        wire.header,
        wire_bytes(wire),
        entry.attributes | (wire.codec if wire.packed != NULL else 0),
        entry.count,
        entry.base_timestamp,
        entry.max_timestamp,
        entry.producer_id,
        entry.producer_epoch,
        <int32_t>(entry.base_sequence & SEQUENCE_MASK) if entry.producer_id >= 0 else -1,
    )
    crc = crc32c_combine(crc32c(0, wire.header + CRC_START, BATCH_HEADER_BYTES - CRC_START), crc, wire_bytes(wire))
    put_crc(wire.header, crc)
    return True


cdef void mark_sent(Core *core, Wire *wire) noexcept nogil:
    """Before the first byte may leave: from here on the records may be in the log, whatever happens to us."""
    cdef uint32_t row = wire.entry.contributors
    cdef Batch *batch
    while row != CYP_NONE:
        batch = core.contributor_batches[row]
        if batch != NULL:
            sent_mark(&batch.front_end.sent[batch.slot], batch.generation)
        row = core.contributors[row].next
    CRASHPOINT(b"write.sent-said")
    wire.sent = True
    entry_unsure(wire.entry)
    CRASHPOINT(b"write.unsure")


cdef void let_go(Core *core, uint32_t row, int64_t base_offset, int64_t append_time, int32_t error) noexcept nogil:
    """Finishes the batch of a contributor, which is of no entry any more."""
    cdef Batch *batch = core.contributor_batches[row]
    if batch != NULL:
        core.contributor_batches[row] = NULL
        finish(core, batch, base_offset, append_time, error)


cdef void complete(Core *core, Wire *wire, int64_t base_offset, int64_t append_time) noexcept nogil:
    """The broker has the records; `base_offset` -1: it does not say where."""
    entry_resolve(wire.entry, 0, base_offset, append_time)
    CRASHPOINT(b"complete.resolved")
    publish_resolved(core, wire)


cdef void publish_resolved(Core *core, Wire *wire) noexcept nogil:
    """The result of a RESOLVED entry goes to its contributors, and the entry is free."""
    cdef Partition *partition = wire.partition
    cdef cyp_entry *entry = wire.entry
    cdef uint32_t row = entry.contributors
    cdef int64_t offset = -1, append_time = -1
    cdef Queue *queue = NULL
    if entry.error == 0:
        append_time = entry.append_time
        core.totals.batches += 1
        if entry.producer_id >= 0:
            partition.acknowledged = True
            partition.acknowledged_ns = core.now
            _note_acked(partition, entry)
            CRASHPOINT(b"complete.acked")
        if partition.penalty and row != CYP_NONE and core.contributor_batches[row] != NULL:
            queue = core.contributor_batches[row].queue
    while row != CYP_NONE:
        if entry.error == 0 and entry.base_offset >= 0:
            offset = entry.base_offset + core.contributors[row].first
        let_go(core, row, offset, append_time, entry.error)
        CRASHPOINT(b"complete.one-finished")
        row = core.contributors[row].next
    leave(core, wire)
    if queue != NULL:
        serve(queue)


cdef void _note_acked(Partition *partition, cyp_entry *entry) noexcept nogil:
    """The broker has the sequences up to the entry's end; an entry that comes again later ends before that."""
    cdef cyp_identity *identity = &partition.row.identity[partition.row.current]
    cdef uint64_t end = entry.base_sequence + entry.count
    if entry.producer_id == identity.producer_id and entry.producer_epoch == identity.producer_epoch \
            and end > identity.acked_end:
        store_release(&identity.acked_end, end)


cdef void give_up(Core *core, Wire *wire, int32_t error) noexcept nogil:
    """The entry ends, for all of its contributors: with `error`, or as unknown if an attempt was unsure."""
    if wire.idempotent and wire.unsure:
        _doubt(wire)
    conclude(core, wire, error)


cdef void conclude(Core *core, Wire *wire, int32_t error) noexcept nogil:
    """As give_up, of what is known not to be there, but for a larger one of which it is a part."""
    if wire.idempotent:
        demand_epoch(wire.partition)
    entry_resolve(wire.entry, CODE_OUTCOME_UNKNOWN if wire.unsure else error, -1, -1)
    CRASHPOINT(b"complete.given-up")
    publish_resolved(core, wire)


cdef void wait(Wire *wire) noexcept nogil:
    """An entry that was in flight is to be sent again."""
    if wire.state == WIRE_IN_FLIGHT:
        wire.partition.in_flight -= 1
        wire.partition.waiting += 1
        wire.state = WIRE_WAITING
    wire.request = NULL
    relist(wire.partition)


cdef void retry(Core *core, Wire *wire, int32_t error, bint unsure) noexcept nogil:
    """To be sent again, in order; fails with `error` if its retries are used up.

    `unsure`: nobody knows whether the attempt was appended. What was said to be sent, acks=0, is not sent again.
    """
    cdef Partition *partition = wire.partition
    if unsure:
        wire.unsure = True
    elif not wire.unsure:
        entry_sure(wire.entry)
    if wire.entry.attempts > wire.retries or (wire.unreported == 0 and not wire.idempotent) \
            or (wire.acks == 0 and wire.request.finished):
        give_up(core, wire, error)
        return
    wait(wire)
    core.totals.retries += 1
    drop_hopeless(core, partition)


cdef void demand_epoch(Partition *partition) noexcept nogil:
    """Stop draining the partition; once nothing of it is in flight or unsure, it goes on in a new epoch."""
    partition.bumping = True
    store_release32(&partition.row.identity[partition.row.current].bumping, 1)
    CRASHPOINT(b"epoch.demanded")


cdef void _doubt(Wire *wire) noexcept nogil:
    """An entry with a sequence is given up, and the broker may have it: its end may be what it expects next.

    Of an heir: the larger one, whose end is not known, or a part of it.
    """
    cdef cyp_identity *identity = &wire.partition.row.identity[wire.partition.row.current]
    cdef uint64_t end = wire.entry.base_sequence + wire.entry.count
    cdef uint64_t last = identity.doubtful_ends[identity.doubts - 1] if 0 < identity.doubts <= CYP_DOUBTS_MAX else 0
    if wire.heir or last > end or identity.doubts > CYP_DOUBTS_MAX:
        identity.doubts = CYP_DOUBTS_MAX + 1
    elif last < end and identity.doubts == CYP_DOUBTS_MAX:
        identity.doubts = CYP_DOUBTS_MAX + 1
    elif last < end:  # else a sender that was killed here has noted it
        identity.doubtful_ends[identity.doubts] = end
        fence_seq_cst()  # a successor that sees the number sees the end
        identity.doubts += 1


cdef void drop_hopeless(Core *core, Partition *partition) noexcept nogil:
    """Entries that all of their owners have given up go, if they leave no gap behind.

    Without idempotence at once. Others stay until the broker has answered, but when all of the partition are
    such they go too: the next one starts a new epoch, which needs no gap closed.
    """
    cdef Wire *wire = partition.wire_head
    cdef Wire *following
    cdef bint hopeless = partition.in_flight == 0
    while wire != NULL:
        following = wire.next
        if wire.unreported:
            hopeless = False
        elif not wire.idempotent and wire.state == WIRE_WAITING:
            give_up(core, wire, CODE_OUTCOME_UNKNOWN)
        wire = following
    while hopeless and partition.wire_head != NULL:
        give_up(core, partition.wire_head, CODE_OUTCOME_UNKNOWN)
