"""Decides what a broker's answer proves about batches whose earlier attempts may be in the log.

A leader keeps, for each producer id and partition, the epoch and the last sequence, and the range and offset of up to
five batches (ProducerStateEntry in Kafka). After a restart it has one of the five: its snapshot holds the last batch.
It appends a batch if it continues the last sequence; it answers with the old offset if the batch is one of those that
it remembers; otherwise it answers OUT_OF_ORDER_SEQUENCE_NUMBER. So it gives the same answer for a batch that is in the
log, but that it no longer remembers, and for one that never arrived. These facts distinguish the two cases:

 - Sequences in the log have no gap. If a batch is in the log, the one directly before it is too. If a batch is
   appended under a sequence, nothing after that sequence was in the log. Only the log of a topic that was created again
   may begin with any sequence: then the offset is smaller than the sequence, and nothing is known of earlier batches.
 - The broker always remembers the last batch. So a batch that it refuses is not the last one in the log. If nothing
   later can be in the log, the refused batch is not in the log at all. The batch directly before it is not in the log
   either: otherwise the broker would have appended the refused batch after it.

What is known of the earlier attempts      The answer             What is done
-------------------------------------      ------                 ------------
anything                                   success, or DUPLICATE  acknowledged; unsure batches directly before: proven
all were refused                           a sequence error       not in the log: sent again in a new epoch
unsure, proven to be in the log            an error               acknowledged, with its offset if that is known
unsure, later unsure batches               OUT_OF_ORDER           the newest of them is asked about first
unsure, nothing later can be in the log    OUT_OF_ORDER           not in the log: sent again in a new epoch
unsure, a later one cannot be asked about  OUT_OF_ORDER           sent like a fragment; if refused: unknown
unsure                                     UNKNOWN_PRODUCER_ID    unknown, and so are all unsure ones: no state is left
unsure                                     an error of the id     the same
unsure                                     INVALID_PRODUCER_EPOCH unknown: the broker checks only the epoch

"To ask about a batch" means to send it once more under the sequence that it had. A batch is unsure if the result of an
attempt is not known. A later batch cannot be asked about if it was given up (unasked_end), or if it is a fragment
(fragments.pyx), since the broker does not know the original batch by the fragment's sequence.

An error of the id says that no batch with this producer id is appended any more, in no epoch. So the lane continues
with another producer id, which a broker gives (InitProducerId):

INVALID_PRODUCER_ID_MAPPING  The broker does not know the id. Kafka's brokers answer this to requests about transactions
                             only, but Azure Event Hubs forgets an id after some time and then answers it to Produce.
INVALID_TXN_STATE            The id is in a transaction of somebody else (ProducerAppendInfo.appendDataBatch). A higher
                             epoch does not end that transaction.
PRODUCER_FENCED              There is a newer epoch of the id, and outside of transactions only this sender raises it.
                             Kafka's brokers answer INVALID_PRODUCER_EPOCH instead since 2.7.

Kafka's producer fails these batches, and is unusable after INVALID_PRODUCER_ID_MAPPING and PRODUCER_FENCED. It belongs
to one application, which makes another one. A sender belongs to all processes of the host.

For comparison: if a batch is out of order and has the sequence that is to be acknowledged next, the Java producer sends
it again in a new epoch, even if an earlier attempt was unsure (TransactionManager.canRetry). librdkafka raises a fatal
error in that case (rd_kafka_handle_idempotent_Produce_error), which ends the producer.
"""

from libc.stdint cimport UINT64_MAX, int16_t, int64_t, uint64_t

from cyproducer.protocol.error_codes cimport (
    ERROR_INVALID_PRODUCER_EPOCH,
    ERROR_OUT_OF_ORDER_SEQUENCE_NUMBER,
    ERROR_UNKNOWN_PRODUCER_ID,
)
from cyproducer.sender.engine.delivery.fragments cimport end_fragment, has_place_before, step_back
from cyproducer.sender.engine.delivery.identities cimport demand_epoch
from cyproducer.sender.engine.delivery.wire_batches cimport complete, give_up, newest_unsure, retry
from cyproducer.sender.engine.state.client_codes cimport CODE_OUTCOME_UNKNOWN
from cyproducer.sender.engine.state.model cimport AHEAD_REFUSED, AHEAD_SENT, WIRE_WAITING, Core, Lane, WireBatch
from cyproducer.sender.engine.state.transactions cimport place_of
from cyproducer.shm.crash cimport CRASHPOINT
from cyproducer.shm.entry cimport entry_fragment, entry_prove, entry_sure
from cyproducer.shm.layout cimport CYP_DOUBTS_MAX, cyp_identity, cyp_transaction_place


cdef inline uint64_t _end(WireBatch *wire) noexcept nogil:
    return wire.entry.base_sequence + wire.entry.count


cdef inline bint _is_current(Lane *lane, WireBatch *wire) noexcept nogil:
    """Return whether the batch has its sequence from the lane's present producer id and epoch."""
    return wire.idempotent and wire.entry.producer_id == lane.producer_id \
        and wire.entry.producer_epoch == lane.producer_epoch


cdef WireBatch *_unsure_before(Lane *lane, WireBatch *wire) noexcept nogil:
    """Return the unsure batch whose sequences end where those of `wire` begin; NULL if there is none."""
    cdef WireBatch *before = wire.previous
    while before != NULL and not before.idempotent:
        before = before.previous
    if before != NULL and before.unsure and not before.fragment and _is_current(lane, before) \
            and _end(before) == wire.entry.base_sequence:
        return before
    return NULL


cdef inline bint _is_in_new_log(const WireBatch *wire, int64_t base_offset) noexcept nogil:
    """Return whether the log has too few records before `wire` for all those with lower sequences of its epoch.

    Then the topic was created again. A log without a state of the producer begins with any sequence.
    """
    return base_offset >= 0 and <uint64_t>base_offset < wire.entry.base_sequence


cdef void prove_predecessors(Lane *lane, WireBatch *wire, int64_t base_offset) noexcept nogil:
    """Mark the unsure batches directly before `wire` as proven, since the broker has `wire` at `base_offset`.

    `base_offset` is -1 if the broker does not give it. The offsets of the proven batches are known if their records
    exactly fill the range between the last known offset before them and `base_offset`. This must be called before
    the acknowledgement is stored.
    """
    cdef WireBatch *before = NULL
    cdef WireBatch *first = NULL
    cdef int64_t offset = base_offset
    # a fragment, or a batch that was sent ahead, does not have the sequence of its position in the lane
    if not wire.fragment and not wire.ahead and _is_current(lane, wire) and not _is_in_new_log(wire, base_offset):
        before = _unsure_before(lane, wire)
    while before != NULL:
        first = before
        before.proven = True
        entry_prove(before.entry)
        CRASHPOINT(b"complete.predecessor-proven")
        offset -= before.entry.count
        before = _unsure_before(lane, before)
    if first != NULL and base_offset >= 0 and lane.known_end_offset == offset \
            and lane.known_end_sequence == first.entry.base_sequence:
        while first != wire:
            if first.idempotent:
                first.proven_offset = offset
                offset += first.entry.count
            first = first.next
    if _is_current(lane, wire):
        lane.known_end_sequence = _end(wire)
        lane.known_end_offset = base_offset + wire.entry.count if base_offset >= 0 else -1


cdef void complete_proven(Core *core, Lane *lane) noexcept nogil:
    """Acknowledge the proven batches that need no further attempt: the offset is known, or the broker refused them."""
    cdef WireBatch *wire = lane.wire_head
    cdef WireBatch *following
    while wire != NULL:
        following = wire.next
        if wire.proven and wire.state == WIRE_WAITING and (wire.refused or wire.proven_offset >= 0):
            complete(core, wire, wire.proven_offset, -1)
        wire = following


cdef bint _is_last(Lane *lane, WireBatch *wire) noexcept nogil:
    """Return whether it is certain that nothing after `wire`, the newest unsure batch, is in the log."""
    cdef cyp_identity *identity = &lane.row.identity[lane.row.current]
    return (
        _is_current(lane, wire)
        and identity.acked_end <= wire.entry.base_sequence
        and lane.unasked_end <= wire.entry.base_sequence
    )


cdef inline void _exclude(WireBatch *wire) noexcept nogil:
    """Mark the batch as not in the log. For a fragment, this is also true of the original batch."""
    wire.unsure = False
    wire.refused = False
    wire.fragment = False
    entry_sure(wire.entry)


cdef void exclude_followers(Lane *lane, WireBatch *wire) noexcept nogil:
    """Mark the unsure batches after `wire` as not in the log.

    The broker has appended `wire` under a candidate sequence (fragments.pyx). So nothing after that
    sequence was in the log.
    """
    cdef WireBatch *following = wire.next
    while following != NULL:
        if following.unsure and not following.proven and _is_current(lane, following):
            _exclude(following)
            CRASHPOINT(b"epoch.follower-excluded")
        following = following.next


cdef void seek_place(WireBatch *wire) noexcept nogil:
    """Let an unsure batch be sent like a fragment: under sequences that the broker may expect next (fragments.pyx).

    If the broker appends it, neither this batch nor a later one was in the log before. Otherwise its outcome stays
    unknown.
    """
    wire.fragment = True
    entry_fragment(wire.entry)
    CRASHPOINT(b"epoch.place-sought")


cdef void on_state_lost(Core *core, Lane *lane) noexcept nogil:
    """End the waiting unsure batches as unknown, because the broker has lost the state of the producer."""
    cdef WireBatch *wire = lane.wire_head
    cdef WireBatch *following
    while wire != NULL:
        following = wire.next
        if wire.idempotent and wire.unsure and wire.state == WIRE_WAITING:
            give_up(core, wire, CODE_OUTCOME_UNKNOWN)
        wire = following


cdef void handle_sequence_error(Core *core, WireBatch *wire, int16_t error) noexcept nogil:
    """Act by the table above after the broker refused the producer id, epoch or sequence of the present attempt."""
    cdef Lane *lane = wire.lane
    cdef WireBatch *newest
    cdef WireBatch *before
    if lane.transaction != NULL:
        if wire != lane.wire_head and not wire.unsure:
            retry(core, wire, error, False)  # an earlier batch must be sent again first
        else:
            give_up(core, wire, error)  # the transaction is aborted, so nothing must be found out about the log
        return
    if error == ERROR_UNKNOWN_PRODUCER_ID or is_id_error(error):
        lane.needs_other_id = lane.needs_other_id or (is_id_error(error) and _is_current(lane, wire))
        if wire.unsure:
            give_up(core, wire, error)
        else:
            demand_epoch(lane)
            retry(core, wire, error, False)
        on_state_lost(core, lane)
        return
    if wire.fragment:
        if error != ERROR_INVALID_PRODUCER_EPOCH and step_back(lane, wire):
            retry(core, wire, error, False)
        else:
            end_fragment(core, wire, error, 0)
        return
    if wire.ahead == AHEAD_SENT:
        if error == ERROR_OUT_OF_ORDER_SEQUENCE_NUMBER:
            # nothing was sent after it: if it were in the log here, the broker would remember it as the last batch
            _exclude(wire)
            if step_back(lane, wire):
                retry(core, wire, error, False)
                return
        wire.ahead = AHEAD_REFUSED
    if wire.unsure:
        newest = newest_unsure(lane)
        if wire.proven or error != ERROR_OUT_OF_ORDER_SEQUENCE_NUMBER:
            give_up(core, wire, error)
            return
        if newest != wire and not newest.fragment:
            wire.refused = True
            demand_epoch(lane)
            retry(core, wire, error, False)
            return
        if newest != wire or not _is_last(lane, wire):
            if not has_place_before(lane, wire):
                give_up(core, wire, error)
                return
            demand_epoch(lane)
            seek_place(wire)
            step_back(lane, wire)
            retry(core, wire, error, False)
            return
        before = _unsure_before(lane, wire)
        if before != NULL:
            _exclude(before)
            CRASHPOINT(b"epoch.predecessor-excluded")
        _exclude(wire)
    if wire == lane.wire_head or lane.bumping:
        demand_epoch(lane)
    retry(core, wire, error, False)  # otherwise no new epoch yet: an earlier batch must be sent again first


cdef inline bint _is_of_epoch(const Lane *lane, const cyp_transaction_place *place) noexcept nogil:
    return lane.producer_id == place.producer_id and lane.producer_epoch == place.producer_epoch


cdef void restore_sequences(Lane *lane) noexcept nogil:
    """Restore the sequences of a lane in a takeover, from its identity and its entries.

    If the predecessor was about to begin an epoch, or if the sequences have a gap, the epoch is raised once more.
    """
    cdef cyp_identity *identity = &lane.row.identity[lane.row.current]
    cdef uint64_t end = 0
    cdef bint bump = identity.bumping != 0
    cdef WireBatch *wire = lane.wire_head
    # only one batch in flight until the broker has acknowledged it: the time since the last batch is not known
    lane.acknowledged = False
    lane.known_end_offset = -1
    lane.unasked_end = 0
    if identity.doubts > CYP_DOUBTS_MAX:
        lane.unasked_end = UINT64_MAX
    elif identity.doubts:
        lane.unasked_end = identity.doubtful_ends[identity.doubts - 1]
    lane.next_sequence = identity.acked_end
    while wire != NULL:
        if wire.idempotent:
            if not _is_current(lane, wire) \
                    or wire.entry.base_sequence < end or wire.entry.base_sequence > lane.next_sequence:
                bump = True
            end = _end(wire)
            lane.next_sequence = max(lane.next_sequence, end)
        wire = wire.next
    if lane.transaction != NULL and not _is_of_epoch(lane, place_of(lane.transaction)):
        lane.bumping = False  # it was about a former transaction
        return
    if bump:
        demand_epoch(lane)
