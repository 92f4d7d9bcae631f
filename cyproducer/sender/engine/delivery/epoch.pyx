"""Raises the producer epoch of a lane once none of its batches is in flight or unsure (drain-then-bump).

A gap in the sequences (a batch was refused, or is missing at the broker) is closed by a new epoch that starts at
sequence 0. The producer raises the epoch by itself, as Kafka's idempotent producer does (KIP-360): the broker accepts
any higher epoch. Every unsure batch must be settled under its old sequence first. Otherwise it could be appended twice.

The batches keep their order meanwhile. If a batch was refused for its sequence and a later batch is unsure, the refused
batch is sent once more before the unsure one. Otherwise a broker that has lost its state of the producer, and so
accepts any first sequence, would append the later batch first. The earlier batch is sent under the sequence that the
broker expects next. This leaves a gap before the unsure batch. So the broker can only answer that the unsure batch is a
duplicate or out of order.

The broker may expect the sequence after the last acknowledged record, or the one after an entry that was given up while
it was unsure (fragments.pyx). If the broker refuses the batch under each of them, its state differs from what this
sender knows, and all unsure batches end with an unknown outcome. If the first batch itself is unsure and is refused,
the newest unsure batch is sent next, which shows what is in the log (sequences.pyx).
"""

from libc.stdint cimport uint64_t

from cyproducer.sender.engine.delivery.fragments cimport place_fragment
from cyproducer.sender.engine.delivery.identities cimport begin_epoch
from cyproducer.sender.engine.delivery.producer_ids cimport want_producer_id
from cyproducer.sender.engine.delivery.rejection cimport withdraw_marked
from cyproducer.sender.engine.delivery.sequences cimport seek_place
from cyproducer.sender.engine.delivery.wire_batches cimport give_up, newest_unsure
from cyproducer.sender.engine.state.client_codes cimport CODE_OUTCOME_UNKNOWN
from cyproducer.sender.engine.state.model cimport (
    AHEAD_NOT,
    AHEAD_REFUSED,
    AHEAD_SENT,
    Core,
    Lane,
    WireBatch,
)
from cyproducer.sender.engine.state.ready cimport lane_producer_epoch, lane_producer_id
from cyproducer.shm.atomics cimport store_release
from cyproducer.shm.crash cimport CRASHPOINT


cdef enum:
    EPOCH_MAX = 32767


cdef WireBatch *_first_idempotent(Lane *lane) noexcept nogil:
    cdef WireBatch *wire = lane.wire_head
    while wire != NULL and not wire.idempotent:
        wire = wire.next
    return wire


cdef bint settle_epoch(Core *core, Lane *lane) noexcept nogil:
    """Begin the new epoch if nothing of the lane is in flight or unsure, and renumber its batches.

    Return True once the lane may be drained again, in its new epoch. Until then next_to_settle() says what to send.
    """
    cdef WireBatch *wire
    cdef uint64_t sequence = 0
    if lane.in_flight:
        return False
    if newest_unsure(lane) != NULL:
        if _first_idempotent(lane).ahead != AHEAD_REFUSED:
            return False
        _give_up_unsure(core, lane)
    withdraw_marked(core, lane)
    if not _raise_epoch(core, lane):
        return False
    # if this sender dies before all are renumbered, its successor raises the epoch once more
    wire = lane.wire_head
    while wire != NULL:
        if wire.idempotent:
            store_release(&wire.entry.base_sequence, sequence)
            wire.entry.producer_epoch = lane.producer_epoch
            store_release(<uint64_t *>&wire.entry.producer_id, <uint64_t>lane.producer_id)
            CRASHPOINT(b"epoch.one-renumbered")
            wire.refused = False
            wire.ahead = AHEAD_NOT
            sequence += wire.entry.count
        wire = wire.next
    lane.next_sequence = sequence
    return True


cdef bint _raise_epoch(Core *core, Lane *lane) noexcept nogil:
    """Begin the next epoch. Return False if another producer id must be fetched first.

    That is so if the last epoch is used up, or if a broker has refused the producer id.
    """
    if lane.producer_epoch < EPOCH_MAX and not lane.needs_other_id:
        begin_epoch(lane, lane.producer_id, lane.producer_epoch + 1)
    elif lane_producer_id(core, lane) != lane.producer_id and lane_producer_id(core, lane) >= 0:
        begin_epoch(lane, lane_producer_id(core, lane), lane_producer_epoch(core, lane))
    else:
        want_producer_id(core, lane)
        return False
    return True


cdef void _give_up_unsure(Core *core, Lane *lane) noexcept nogil:
    cdef WireBatch *wire = lane.wire_head
    cdef WireBatch *following
    while wire != NULL:
        following = wire.next
        if wire.unsure and wire.idempotent:
            give_up(core, wire, CODE_OUTCOME_UNKNOWN)
        wire = following


cdef WireBatch *next_to_settle(Lane *lane) noexcept nogil:
    """Return the only wire batch that may be sent while unsure batches delay the new epoch; NULL if there is none.

    Nothing of the lane is in flight.
    """
    cdef WireBatch *wire = _first_idempotent(lane)
    cdef WireBatch *newest = newest_unsure(lane)
    if newest == NULL:
        return NULL
    if wire.refused and not newest.fragment:
        return newest
    if wire.refused:
        wire.refused = False
        seek_place(wire)  # the newest one is a fragment: it cannot be sent first or asked about
    if wire.fragment:
        place_fragment(lane, wire)
    elif not wire.unsure and wire.ahead == AHEAD_NOT:
        wire.ahead = AHEAD_SENT
        place_fragment(lane, wire)
    return wire
