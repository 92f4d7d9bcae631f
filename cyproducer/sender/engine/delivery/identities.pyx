"""Stores the identity of a lane in its row: producer id and epoch, what is acknowledged, and what may be in the log.

A successor of the sender finds the next sequence by it, and whether the epoch must be raised (sequences.pyx).
"""

from libc.stdint cimport int16_t, int32_t, int64_t, uint32_t, uint64_t

from cyproducer.sender.engine.state.client_codes cimport CODE_TRANSACTION_ABORTED
from cyproducer.sender.engine.state.model cimport Lane, WireBatch
from cyproducer.sender.engine.state.transactions cimport demand_producer_epoch, fail_transaction
from cyproducer.shm.atomics cimport fence_seq_cst, store_release, store_release32
from cyproducer.shm.crash cimport CRASHPOINT
from cyproducer.shm.layout cimport CYP_DOUBTS_MAX, cyp_entry, cyp_identity


cdef void begin_epoch(Lane *lane, int64_t producer_id, int16_t epoch) noexcept nogil:
    """Start the lane at sequence 0 under another producer id or epoch. No batch of the old one is unsure."""
    cdef uint32_t spare = lane.row.current ^ 1
    cdef cyp_identity *identity = &lane.row.identity[spare]
    lane.producer_id = producer_id
    lane.producer_epoch = epoch
    lane.next_sequence = 0
    lane.known_end_offset = -1
    lane.unasked_end = 0
    lane.acknowledged = False
    lane.bumping = False
    lane.needs_other_id = False
    identity.producer_id = producer_id
    identity.producer_epoch = epoch
    identity.acked_end = 0
    identity.doubts = 0
    identity.bumping = 0
    CRASHPOINT(b"epoch.filled")
    store_release32(&lane.row.current, spare)  # a successor sees the old identity or the whole new one
    CRASHPOINT(b"epoch.in-force")


cdef void note_acked(Lane *lane, cyp_entry *entry) noexcept nogil:
    """Raise acked_end to the entry's end. An entry with a smaller end may be acknowledged later and changes nothing."""
    cdef cyp_identity *identity = &lane.row.identity[lane.row.current]
    cdef uint64_t end = entry.base_sequence + entry.count
    if entry.producer_id == identity.producer_id and entry.producer_epoch == identity.producer_epoch \
            and end > identity.acked_end:
        store_release(&identity.acked_end, end)


cdef void demand_epoch(Lane *lane) noexcept nogil:
    """Stop draining the lane. Once nothing of it is in flight or unsure, it continues in a new epoch.

    The lane of a transaction gets its next epoch from the coordinator: the transaction fails.
    """
    lane.bumping = True
    store_release32(&lane.row.identity[lane.row.current].bumping, 1)
    CRASHPOINT(b"epoch.demanded")
    if lane.transaction != NULL:
        demand_producer_epoch(lane.transaction)
        fail_transaction(lane.transaction, lane.last_error if lane.last_error else <int32_t>CODE_TRANSACTION_ABORTED)


cdef uint64_t _possible_end(WireBatch *wire) noexcept nogil:
    """Return the largest sequence where the batch can end in the log; for a fragment, that of the original batch."""
    cdef WireBatch *following = wire.next
    if not wire.fragment:
        return wire.entry.base_sequence + wire.entry.count
    while following != NULL and (following.fragment or not following.idempotent):
        following = following.next
    return following.entry.base_sequence if following != NULL else wire.lane.next_sequence


cdef void note_doubtful_end(WireBatch *wire) noexcept nogil:
    """Note that an entry which is given up may be in the log: the broker may then expect the sequence after it next.

    For a fragment no end can be noted: the broker may have the original batch, whose end is not known, or a part of it.
    """
    cdef cyp_identity *identity = &wire.lane.row.identity[wire.lane.row.current]
    cdef uint64_t end = wire.entry.base_sequence + wire.entry.count
    wire.lane.unasked_end = max(wire.lane.unasked_end, _possible_end(wire))
    cdef uint64_t last = identity.doubtful_ends[identity.doubts - 1] if 0 < identity.doubts <= CYP_DOUBTS_MAX else 0
    if wire.fragment or last > end or identity.doubts > CYP_DOUBTS_MAX:
        identity.doubts = CYP_DOUBTS_MAX + 1
    elif last < end and identity.doubts == CYP_DOUBTS_MAX:
        identity.doubts = CYP_DOUBTS_MAX + 1
    elif last < end:  # otherwise a sender that was killed below has noted it already
        identity.doubtful_ends[identity.doubts] = end
        fence_seq_cst()  # a successor that sees the new count sees the end
        identity.doubts += 1
