"""Drain-then-bump: a partition goes on in a higher epoch once nothing of it is in flight or unsure.

A gap in the sequences (a batch that was refused, or is missing at the broker) is closed by an epoch that starts
at 0. The producer raises it by itself, as Kafka's idempotent producer does (KIP-360): the broker takes any
higher epoch. Whatever is unsure has to be settled under its old sequence before, or it could be appended twice.

The order of the batches holds meanwhile. A batch that was refused for its sequence, ahead of an unsure one,
goes out once more before that one is asked about: a broker that has lost its state of the producer takes any
first sequence, and would take the later batch first. It goes in the place where the broker expects the next
batch, which leaves a gap before the unsure one: that can only be a duplicate then, or out of order.

That place is behind what was acknowledged, or behind an entry that was given up while it was unsure
(doubtful_ends): the last such end is tried first. If it is refused the broker does not have that entry, and only
then a batch may go in its place, or the broker could take it for that one. If all are refused, its state is not
what we know, and what is unsure ends as unknown.
"""

from libc.stdint cimport uint64_t

from cyproducer.shm.atomics cimport store_release
from cyproducer.shm.crash cimport CRASHPOINT
from cyproducer.shm.layout cimport CYP_DOUBTS_MAX, cyp_identity
from cyproducer.sender.entries cimport begin_epoch, give_up
from cyproducer.sender.heirs cimport place_heir
from cyproducer.sender.model cimport (
    AHEAD_NOT,
    AHEAD_REFUSED,
    AHEAD_SENT,
    EVENT_PRODUCER_ID,
    Core,
    Partition,
    Wire,
)
from cyproducer.sender.outcomes cimport CODE_OUTCOME_UNKNOWN, push_event
from cyproducer.sender.partitions cimport lane_producer_epoch, lane_producer_id
from cyproducer.sender.poison cimport withdraw_offenders


cdef enum:
    EPOCH_MAX = 32767


cdef void want_producer_id(Core *core, Partition *partition) noexcept nogil:
    """Asks for a fresh producer id of the partition's lane, unless that was done."""
    if partition.penalty:
        if core.wants_penalty_id:
            return
        core.penalty_producer_id = -1
        core.wants_penalty_id = True
    else:
        if core.wants_producer_id:
            return
        core.producer_id = -1
        core.wants_producer_id = True
    push_event(core, EVENT_PRODUCER_ID, 0, 0, 0)


cdef Wire *_first_idempotent(Partition *partition) noexcept nogil:
    cdef Wire *wire = partition.wire_head
    while wire != NULL and not wire.idempotent:
        wire = wire.next
    return wire


cdef bint _any_unsure(Partition *partition) noexcept nogil:
    """Without a sequence nothing depends on what became of an attempt."""
    cdef Wire *wire = partition.wire_head
    while wire != NULL:
        if wire.unsure and wire.idempotent:
            return True
        wire = wire.next
    return False


cdef bint settle_epoch(Core *core, Partition *partition) noexcept nogil:
    """True once the partition may be drained again, in its new epoch; else next_to_settle says what to send."""
    cdef Wire *wire
    cdef uint64_t sequence = 0
    if partition.in_flight:
        return False
    if _any_unsure(partition):
        if _first_idempotent(partition).ahead != AHEAD_REFUSED:
            return False
        _give_up_unsure(core, partition)
    withdraw_offenders(core, partition)
    if not _raise_epoch(core, partition):
        return False
    # a successor that finds only some of them renumbered raises the epoch once more
    wire = partition.wire_head
    while wire != NULL:
        if wire.idempotent:
            store_release(&wire.entry.base_sequence, sequence)
            wire.entry.producer_epoch = partition.producer_epoch
            store_release(<uint64_t *>&wire.entry.producer_id, <uint64_t>partition.producer_id)
            CRASHPOINT(b"epoch.one-renumbered")
            wire.sent = False
            wire.ahead = AHEAD_NOT
            sequence += wire.entry.count
        wire = wire.next
    partition.next_sequence = sequence
    return True


cdef bint _raise_epoch(Core *core, Partition *partition) noexcept nogil:
    """False if a fresh producer id has to come first, since the last epoch is used up."""
    if partition.producer_epoch < EPOCH_MAX:
        begin_epoch(partition, partition.producer_id, partition.producer_epoch + 1)
    elif lane_producer_id(core, partition) != partition.producer_id and lane_producer_id(core, partition) >= 0:
        begin_epoch(partition, lane_producer_id(core, partition), lane_producer_epoch(core, partition))
    else:
        want_producer_id(core, partition)
        return False
    return True


cdef void _give_up_unsure(Core *core, Partition *partition) noexcept nogil:
    cdef Wire *wire = partition.wire_head
    cdef Wire *following
    while wire != NULL:
        following = wire.next
        if wire.unsure and wire.idempotent:
            give_up(core, wire, CODE_OUTCOME_UNKNOWN)
        wire = following


cdef Wire *next_to_settle(Partition *partition) noexcept nogil:
    """The only wire that may go out while the epoch waits for certainty; NULL: none. Nothing is in flight."""
    cdef cyp_identity *identity = &partition.row.identity[partition.row.current]
    cdef Wire *wire = _first_idempotent(partition)
    if not _any_unsure(partition):
        return NULL
    if wire.heir:
        place_heir(partition, wire)
    elif not wire.unsure:
        wire.ahead = AHEAD_SENT
        # where nobody knows what the broker expects, its own sequence is as good as any
        if _is_doubted(identity) and identity.doubts <= CYP_DOUBTS_MAX:
            store_release(&wire.entry.base_sequence, identity.doubtful_ends[identity.doubts - 1])
        elif not _is_doubted(identity):
            store_release(&wire.entry.base_sequence, identity.acked_end)
    return wire


cdef inline bint _is_doubted(cyp_identity *identity) noexcept nogil:
    """May the broker have more than acked_end says? What was acknowledged since is beyond the doubts before."""
    return identity.doubts > CYP_DOUBTS_MAX or (
        identity.doubts > 0 and identity.doubtful_ends[identity.doubts - 1] > identity.acked_end
    )


cdef bint dispel_doubt(Partition *partition) noexcept nogil:
    """A batch was refused where next_to_settle had put it: the broker does not have the last doubtful entry.

    False if there is no doubt left: nobody knows what the broker expects.
    """
    cdef cyp_identity *identity = &partition.row.identity[partition.row.current]
    if identity.doubts > CYP_DOUBTS_MAX or not _is_doubted(identity):
        return False
    identity.doubts -= 1
    return True
