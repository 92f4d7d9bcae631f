"""Keeps what may be in the log of a partition: producer ids, epochs, sequences, and batches whose outcome is unsure."""


# ------------------------------------------------------------ identities
#
# Stores the identity of a lane in its row: producer id and epoch, what is acknowledged, and what may be in the log.
#
# A successor of the sender finds the next sequence by it, and whether the epoch must be raised.


cdef void clear_identity(Lane *lane) noexcept nogil:
    """Note of a new lane that it has no producer id."""
    lane.idempotence.producer_id = -1
    lane.idempotence.producer_epoch = -1
    lane.idempotence.known_end_offset = -1
    lane.idempotence.lost_id = -1


cdef void restore_identity(Lane *lane) noexcept nogil:
    """Restore the producer id and the next sequence of a lane as the predecessor has stored them."""
    cdef cyp_identity *identity = &lane.row.identity[lane.row.current]
    lane.idempotence.producer_id = identity.producer_id
    lane.idempotence.producer_epoch = identity.producer_epoch
    lane.idempotence.next_sequence = identity.acked_end
    lane.idempotence.bumping = identity.bumping != 0


cdef void begin_epoch(Lane *lane, int64_t producer_id, int16_t epoch) noexcept nogil:
    """Start the lane at sequence 0 under another producer id or epoch. No batch of the old one is unsure."""
    cdef uint32_t spare = lane.row.current ^ 1
    cdef cyp_identity *identity = &lane.row.identity[spare]
    lane.idempotence.producer_id = producer_id
    lane.idempotence.producer_epoch = epoch
    lane.idempotence.next_sequence = 0
    lane.idempotence.known_end_offset = -1
    lane.idempotence.unasked_end = 0
    lane.idempotence.acknowledged = False
    lane.idempotence.bumping = False
    lane.idempotence.needs_other_id = False
    identity.producer_id = producer_id
    identity.producer_epoch = epoch
    identity.acked_end = 0
    identity.doubts = 0
    identity.bumping = 0
    CRASHPOINT(b"epoch.filled")
    store_release32(&lane.row.current, spare)  # a successor sees the old identity or the whole new one
    CRASHPOINT(b"epoch.in-force")


cdef bint _has_new_identity(Core *core, Lane *lane) noexcept nogil:
    """Return whether the lane must begin with another producer id; for that of a transaction, or with another epoch."""
    if lane.idempotence.producer_id != lane_producer_id(core, lane):
        return True
    return lane.transaction != NULL and lane.idempotence.producer_epoch != lane_producer_epoch(core, lane)


cdef bint _fences(const Lane *lane) noexcept nogil:
    """Return whether an attempt of an older epoch may come to the broker before a batch of the present one.

    Its outcome was reported as unknown. The broker refuses it as soon as it knows the epoch, so the lane keeps its
    producer id until then. After a takeover, isolation lanes have another one.
    """
    return lane.transaction == NULL and lane.idempotence.producer_epoch > 0 \
        and lane.row.identity[lane.row.current].acked_end == 0


cdef void give_sequence(Core *core, WireBatch *wire) noexcept nogil:
    """Give a new wire batch the next sequence of its lane, which may begin with another producer id."""
    cdef Lane *lane = wire.lane
    cdef cyp_entry *entry = wire.entry
    if not wire.idempotent:
        entry.producer_id = -1
        entry.producer_epoch = -1
        entry.base_sequence = 0
        return
    if _has_new_identity(core, lane) and not any_idempotent(lane) and not _fences(lane):
        begin_epoch(lane, lane_producer_id(core, lane), lane_producer_epoch(core, lane))
    entry.producer_id = lane.idempotence.producer_id
    entry.producer_epoch = lane.idempotence.producer_epoch
    entry.base_sequence = lane.idempotence.next_sequence
    lane.idempotence.next_sequence += entry.count


cdef void store_acked(Lane *lane, cyp_entry *entry) noexcept nogil:
    """Note that a broker has acknowledged the entry, and raise acked_end to its end.

    An entry with a smaller end may be acknowledged later, and does not change acked_end.
    """
    cdef cyp_identity *identity = &lane.row.identity[lane.row.current]
    cdef uint64_t end = entry.base_sequence + entry.count
    lane.idempotence.acknowledged = True
    if entry.producer_id == identity.producer_id and entry.producer_epoch == identity.producer_epoch \
            and end > identity.acked_end:
        store_release(&identity.acked_end, end)


cdef void demand_epoch(Lane *lane) noexcept nogil:
    """Stop draining the lane. Once nothing of it is in flight or unsure, it continues in a new epoch.

    The lane of a transaction gets its next epoch from the coordinator: the transaction fails.
    """
    lane.idempotence.bumping = True
    store_release32(&lane.row.identity[lane.row.current].bumping, 1)
    CRASHPOINT(b"epoch.demanded")
    if lane.transaction != NULL:
        demand_producer_epoch(lane.transaction)
        fail_transaction(
            lane.transaction, lane.wire.last_error if lane.wire.last_error else <int32_t>CODE_TRANSACTION_ABORTED
        )


cdef uint64_t _possible_end(WireBatch *wire) noexcept nogil:
    """Return the largest sequence where the batch can end in the log; for a fragment, that of the original batch."""
    cdef WireBatch *following = wire.wire.next
    if not wire.idempotence.fragment:
        return wire.entry.base_sequence + wire.entry.count
    while following != NULL and (following.idempotence.fragment or not following.idempotent):
        following = following.wire.next
    return following.entry.base_sequence if following != NULL else wire.lane.idempotence.next_sequence


cdef void store_doubtful_end(WireBatch *wire) noexcept nogil:
    """Note that an entry which is given up may be in the log: the broker may then expect the sequence after it next.

    For a fragment no end can be noted: the broker may have the original batch, whose end is not known, or a part of it.
    """
    cdef cyp_identity *identity = &wire.lane.row.identity[wire.lane.row.current]
    cdef uint64_t end = wire.entry.base_sequence + wire.entry.count
    wire.lane.idempotence.unasked_end = max(wire.lane.idempotence.unasked_end, _possible_end(wire))
    cdef uint64_t last = identity.doubtful_ends[identity.doubts - 1] if 0 < identity.doubts <= CYP_DOUBTS_MAX else 0
    if wire.idempotence.fragment or last > end or identity.doubts > CYP_DOUBTS_MAX:
        identity.doubts = CYP_DOUBTS_MAX + 1
    elif last < end and identity.doubts == CYP_DOUBTS_MAX:
        identity.doubts = CYP_DOUBTS_MAX + 1
    elif last < end:  # otherwise a sender that was killed below has noted it already
        identity.doubtful_ends[identity.doubts] = end
        fence_seq_cst()  # a successor that sees the new count sees the end
        identity.doubts += 1


# ------------------------------------------------------------ sequences
#
# Decides what a broker's answer proves about batches whose earlier attempts may be in the log.
#
# A leader keeps, for each producer id and partition, the epoch and the last sequence, and the range and offset of up to
# five batches (ProducerStateEntry in Kafka). After a restart it has one of the five: its snapshot holds the last batch.
# It appends a batch if it continues the last sequence; it answers with the old offset if the batch is one of those that
# it remembers; otherwise it answers OUT_OF_ORDER_SEQUENCE_NUMBER. So it gives the same answer for a batch that is in
# the log, but that it no longer remembers, and for one that never arrived. These facts distinguish the two cases:
#
#  - Sequences in the log have no gap. If a batch is in the log, the one directly before it is too. If a batch is
#    appended under a sequence, nothing after that sequence was in the log. Only the log of a topic that was created
#    again may begin with any sequence: then the offset is smaller than the sequence, and nothing is known of earlier
#    batches.
#  - The broker always remembers the last batch. So a batch that it refuses is not the last one in the log. If nothing
#    later can be in the log, the refused batch is not in the log at all. The batch directly before it is not in the log
#    either: otherwise the broker would have appended the refused batch after it.
#
# What is known of the earlier attempts     The answer             What is done
# -------------------------------------     ------                 ------------
# anything                                  success, or DUPLICATE  acknowledged; unsure batches directly before: proven
# all were refused                          a sequence error       not in the log: sent again in a new epoch
# unsure, proven to be in the log           an error               acknowledged, with its offset if that is known
# unsure, later unsure batches              OUT_OF_ORDER           the newest of them is asked about first
# unsure, nothing later can be in the log   OUT_OF_ORDER           not in the log: sent again in a new epoch
# unsure, a later one cannot be asked about OUT_OF_ORDER           sent like a fragment; if refused: unknown
# unsure                                    UNKNOWN_PRODUCER_ID    unknown, and so are all unsure ones: no state is left
# unsure                                    an error of the id     the same
# unsure                                    INVALID_PRODUCER_EPOCH unknown: the broker checks only the epoch
#
# "To ask about a batch" means to send it once more under the sequence that it had. A batch is unsure if the result of
# an attempt is not known. A later batch cannot be asked about if it was given up (unasked_end), or if it is a fragment,
# since the broker does not know the original batch by the fragment's sequence.
#
# An error of the id says that no batch with this producer id is appended any more, in no epoch. So the lane continues
# with another producer id, which a broker gives (InitProducerId):
#
# INVALID_PRODUCER_ID_MAPPING  The broker does not know the id. Kafka's brokers answer this to requests about
#                              transactions only, but Azure Event Hubs forgets an id after some time and then answers
#                              it to Produce.
# INVALID_TXN_STATE            The id is in a transaction of somebody else (ProducerAppendInfo.appendDataBatch). A
#                              higher epoch does not end that transaction.
# PRODUCER_FENCED              There is a newer epoch of the id, and outside of transactions only this sender raises it.
#                              Kafka's brokers answer INVALID_PRODUCER_EPOCH instead since 2.7.
#
# Kafka's producer fails these batches, and is unusable after INVALID_PRODUCER_ID_MAPPING and PRODUCER_FENCED. It
# belongs to one application, which makes another one. A sender belongs to all processes of the host.
#
# For comparison: if a batch is out of order and has the sequence that is to be acknowledged next, the Java producer
# sends it again in a new epoch, even if an earlier attempt was unsure (TransactionManager.canRetry). librdkafka raises
# a fatal error in that case (rd_kafka_handle_idempotent_Produce_error), which ends the producer.


cdef inline bint is_id_error(int16_t error) noexcept nogil:
    """Return whether the broker refuses the producer id itself. The next batch needs another one."""
    return (
        error == ERROR_INVALID_PRODUCER_ID_MAPPING
        or error == ERROR_INVALID_TXN_STATE
        or error == ERROR_PRODUCER_FENCED
    )


cdef inline bint is_sequence_error(const WireBatch *wire, int16_t error) noexcept nogil:
    """Return whether the broker refused the batch for its producer id, epoch or sequence, and not for its records.

    A transaction has its producer id from the coordinator, so there an error of the id ends the batch.
    """
    return wire.idempotent and (
        error == ERROR_OUT_OF_ORDER_SEQUENCE_NUMBER
        or error == ERROR_UNKNOWN_PRODUCER_ID
        or error == ERROR_INVALID_PRODUCER_EPOCH
        or (wire.lane.transaction == NULL and is_id_error(error))
    )


cdef inline uint64_t _end(WireBatch *wire) noexcept nogil:
    return wire.entry.base_sequence + wire.entry.count


cdef inline bint _is_current(Lane *lane, WireBatch *wire) noexcept nogil:
    """Return whether the batch has its sequence from the lane's present producer id and epoch."""
    return wire.idempotent and wire.entry.producer_id == lane.idempotence.producer_id \
        and wire.entry.producer_epoch == lane.idempotence.producer_epoch


cdef WireBatch *_unsure_before(Lane *lane, WireBatch *wire) noexcept nogil:
    """Return the unsure batch whose sequences end where those of `wire` begin; NULL if there is none."""
    cdef WireBatch *before = wire.wire.previous
    while before != NULL and not before.idempotent:
        before = before.wire.previous
    if before != NULL and before.idempotence.unsure and not before.idempotence.fragment and _is_current(lane, before) \
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
    if not wire.idempotence.fragment and not wire.idempotence.resent_ahead and _is_current(lane, wire) \
            and not _is_in_new_log(wire, base_offset):
        before = _unsure_before(lane, wire)
    while before != NULL:
        first = before
        before.idempotence.proven = True
        entry_prove(before.entry)
        CRASHPOINT(b"complete.predecessor-proven")
        offset -= before.entry.count
        before = _unsure_before(lane, before)
    if first != NULL and base_offset >= 0 and lane.idempotence.known_end_offset == offset \
            and lane.idempotence.known_end_sequence == first.entry.base_sequence:
        while first != wire:
            if first.idempotent:
                first.idempotence.proven_offset = offset
                offset += first.entry.count
            first = first.wire.next
    if _is_current(lane, wire):
        lane.idempotence.known_end_sequence = _end(wire)
        lane.idempotence.known_end_offset = base_offset + wire.entry.count if base_offset >= 0 else -1


cdef void acknowledge_proven(Core *core, Lane *lane) noexcept nogil:
    """Acknowledge the proven batches that need no further attempt: the offset is known, or the broker refused them."""
    cdef WireBatch *wire = lane.wire.head
    cdef WireBatch *following
    while wire != NULL:
        following = wire.wire.next
        if wire.idempotence.proven and wire.wire.state == WIRE_WAITING \
                and (wire.idempotence.refused or wire.idempotence.proven_offset >= 0):
            acknowledge(core, wire, wire.idempotence.proven_offset, -1)
        wire = following


cdef bint _is_last(Lane *lane, WireBatch *wire) noexcept nogil:
    """Return whether it is certain that nothing after `wire`, the newest unsure batch, is in the log."""
    cdef cyp_identity *identity = &lane.row.identity[lane.row.current]
    return (
        _is_current(lane, wire)
        and identity.acked_end <= wire.entry.base_sequence
        and lane.idempotence.unasked_end <= wire.entry.base_sequence
    )


cdef inline void restore_knowledge(WireBatch *wire) noexcept nogil:
    """Set what is known of the earlier attempts, as the flags of the entry say. No offset is known."""
    wire.idempotence.fragment = (wire.entry.flags & CYP_ENTRY_FRAGMENT) != 0
    wire.idempotence.unsure = (wire.entry.flags & CYP_ENTRY_UNSURE) != 0
    wire.idempotence.proven = wire.idempotence.unsure and (wire.entry.flags & CYP_ENTRY_PROVEN) != 0
    wire.idempotence.proven_offset = -1


cdef inline void set_unsure(WireBatch *wire) noexcept nogil:
    """Note that the attempt which has ended may be in the log."""
    wire.idempotence.unsure = True


cdef inline void set_fragment(WireBatch *part, const WireBatch *wire) noexcept nogil:
    """Note that `part` has records of `wire`, which it replaces: if that is unsure, so is the part."""
    part.idempotence.unsure = wire.idempotence.unsure
    part.idempotence.fragment = wire.idempotence.unsure


cdef inline void _exclude(WireBatch *wire) noexcept nogil:
    """Mark the batch as not in the log. For a fragment, this is also true of the original batch."""
    wire.idempotence.unsure = False
    wire.idempotence.refused = False
    wire.idempotence.fragment = False
    entry_sure(wire.entry)


cdef void exclude_followers(Lane *lane, WireBatch *wire) noexcept nogil:
    """Mark the unsure batches after `wire` as not in the log.

    The broker has appended `wire` under a candidate sequence. So nothing after that
    sequence was in the log.
    """
    cdef WireBatch *following = wire.wire.next
    while following != NULL:
        if following.idempotence.unsure and not following.idempotence.proven and _is_current(lane, following):
            _exclude(following)
            CRASHPOINT(b"epoch.follower-excluded")
        following = following.wire.next


cdef void seek_sequence(WireBatch *wire) noexcept nogil:
    """Let an unsure batch be sent like a fragment: under sequences that the broker may expect next.

    If the broker appends it, neither this batch nor a later one was in the log before. Otherwise its outcome stays
    unknown.
    """
    wire.idempotence.fragment = True
    entry_fragment(wire.entry)
    CRASHPOINT(b"epoch.place-sought")


cdef void on_state_lost(Core *core, Lane *lane, const Verdict *verdict) noexcept nogil:
    """End the waiting unsure batches as unknown, because the broker has lost the state of the producer."""
    cdef WireBatch *wire = lane.wire.head
    cdef WireBatch *following
    while wire != NULL:
        following = wire.wire.next
        if wire.idempotent and wire.idempotence.unsure and wire.wire.state == WIRE_WAITING:
            fail_batch(core, wire, CODE_OUTCOME_UNKNOWN, verdict)
        wire = following


cdef void handle_sequence_error(Core *core, WireBatch *wire, int16_t error, const Verdict *verdict) noexcept nogil:
    """Act by the table above after the broker refused the producer id, epoch or sequence of the present attempt."""
    cdef Lane *lane = wire.lane
    cdef WireBatch *newest
    cdef WireBatch *before
    if lane.transaction != NULL:
        if wire != lane.wire.head and not wire.idempotence.unsure:
            retry(core, wire, error, False, verdict)  # an earlier batch must be sent again first
        else:
            # The transaction is aborted, so nothing must be found out about the log.
            fail_batch(core, wire, error, verdict)
        return
    if error == ERROR_UNKNOWN_PRODUCER_ID or is_id_error(error):
        lane.idempotence.needs_other_id = (
            lane.idempotence.needs_other_id or (is_id_error(error) and _is_current(lane, wire))
        )
        if wire.idempotence.unsure:
            fail_batch(core, wire, error, verdict)
        else:
            demand_epoch(lane)
            retry(core, wire, error, False, verdict)
        on_state_lost(core, lane, verdict)
        return
    if wire.idempotence.fragment:
        if error != ERROR_INVALID_PRODUCER_EPOCH and step_back(lane, wire):
            retry(core, wire, error, False, verdict)
        else:
            end_fragment(core, wire, error, 0, verdict)
        return
    if wire.idempotence.resent_ahead == AHEAD_SENT:
        if error == ERROR_OUT_OF_ORDER_SEQUENCE_NUMBER:
            # nothing was sent after it: if it were in the log here, the broker would remember it as the last batch
            _exclude(wire)
            if step_back(lane, wire):
                retry(core, wire, error, False, verdict)
                return
        wire.idempotence.resent_ahead = AHEAD_REFUSED
    if wire.idempotence.unsure:
        newest = newest_unsure(lane)
        if wire.idempotence.proven or error != ERROR_OUT_OF_ORDER_SEQUENCE_NUMBER:
            fail_batch(core, wire, error, verdict)
            return
        if newest != wire and not newest.idempotence.fragment:
            wire.idempotence.refused = True
            demand_epoch(lane)
            retry(core, wire, error, False, verdict)
            return
        if newest != wire or not _is_last(lane, wire):
            if not has_candidate_before(lane, wire):
                fail_batch(core, wire, error, verdict)
                return
            demand_epoch(lane)
            seek_sequence(wire)
            step_back(lane, wire)
            retry(core, wire, error, False, verdict)
            return
        before = _unsure_before(lane, wire)
        if before != NULL:
            _exclude(before)
            CRASHPOINT(b"epoch.predecessor-excluded")
        _exclude(wire)
    if wire == lane.wire.head or lane.idempotence.bumping:
        demand_epoch(lane)
    retry(core, wire, error, False, verdict)  # otherwise no new epoch yet: an earlier batch must be sent again first


cdef inline bint _is_of_epoch(const Lane *lane, const cyp_transaction_place *place) noexcept nogil:
    return lane.idempotence.producer_id == place.producer_id and lane.idempotence.producer_epoch == place.producer_epoch


cdef void restore_sequences(Lane *lane) noexcept nogil:
    """Restore the sequences of a lane in a takeover, from its identity and its entries.

    If the predecessor was about to begin an epoch, or if the sequences have a gap, the epoch is raised once more.
    """
    cdef cyp_identity *identity = &lane.row.identity[lane.row.current]
    cdef uint64_t end = 0
    cdef bint bump = identity.bumping != 0
    cdef WireBatch *wire = lane.wire.head
    # only one batch in flight until the broker has acknowledged it: the time since the last batch is not known
    lane.idempotence.acknowledged = False
    lane.idempotence.known_end_offset = -1
    lane.idempotence.unasked_end = 0
    if identity.doubts > CYP_DOUBTS_MAX:
        lane.idempotence.unasked_end = UINT64_MAX
    elif identity.doubts:
        lane.idempotence.unasked_end = identity.doubtful_ends[identity.doubts - 1]
    lane.idempotence.next_sequence = identity.acked_end
    while wire != NULL:
        if wire.idempotent:
            if not _is_current(lane, wire) \
                    or wire.entry.base_sequence < end or wire.entry.base_sequence > lane.idempotence.next_sequence:
                bump = True
            end = _end(wire)
            lane.idempotence.next_sequence = max(lane.idempotence.next_sequence, end)
        wire = wire.wire.next
    if lane.transaction != NULL and not _is_of_epoch(lane, current_copy(lane.transaction)):
        lane.idempotence.bumping = False  # it was about a former transaction
        return
    if bump:
        demand_epoch(lane)


# ------------------------------------------------------------ epoch
#
# Raises the producer epoch of a lane once none of its batches is in flight or unsure (drain-then-bump).
#
# A gap in the sequences (a batch was refused, or is missing at the broker) is closed by a new epoch that starts at
# sequence 0. The producer raises the epoch by itself, as Kafka's idempotent producer does (KIP-360): the broker accepts
# any higher epoch. Every unsure batch must be resolved under its old sequence first. Otherwise it could be appended
# twice.
#
# The batches keep their order meanwhile. If a batch was refused for its sequence and a later batch is unsure, the
# refused batch is sent once more before the unsure one. Otherwise a broker that has lost its state of the producer, and
# so accepts any first sequence, would append the later batch first. The earlier batch is sent under the sequence that
# the broker expects next. This leaves a gap before the unsure batch. So the broker can only answer that the unsure
# batch is a duplicate or out of order.
#
# The broker may expect the sequence after the last acknowledged record, or the one after an entry that was given up
# while it was unsure. If the broker refuses the batch under each of them, its state differs from what
# this sender knows, and all unsure batches end with an unknown outcome. If the first batch itself is unsure and is
# refused, the newest unsure batch is sent next, which shows what is in the log.


cdef enum:
    EPOCH_MAX = 32767


cdef WireBatch *_first_idempotent(Lane *lane) noexcept nogil:
    cdef WireBatch *wire = lane.wire.head
    while wire != NULL and not wire.idempotent:
        wire = wire.wire.next
    return wire


cdef bint try_bump_epoch(Core *core, Lane *lane) noexcept nogil:
    """Begin the new epoch if nothing of the lane is in flight or unsure, and renumber its batches.

    Return True once the lane may be drained again, in its new epoch. Until then next_unsure_to_resend() says what to
    send.
    """
    cdef WireBatch *wire
    cdef uint64_t sequence = 0
    if lane.wire.in_flight:
        return False
    if newest_unsure(lane) != NULL:
        if _first_idempotent(lane).idempotence.resent_ahead != AHEAD_REFUSED:
            return False
        _fail_unsure(core, lane)
    withdraw_flagged(core, lane)
    if not _raise_epoch(core, lane):
        return False
    # if this sender dies before all are renumbered, its successor raises the epoch once more
    wire = lane.wire.head
    while wire != NULL:
        if wire.idempotent:
            store_release(&wire.entry.base_sequence, sequence)
            wire.entry.producer_epoch = lane.idempotence.producer_epoch
            store_release(<uint64_t *>&wire.entry.producer_id, <uint64_t>lane.idempotence.producer_id)
            CRASHPOINT(b"epoch.one-renumbered")
            wire.idempotence.refused = False
            wire.idempotence.resent_ahead = AHEAD_NOT
            sequence += wire.entry.count
        wire = wire.wire.next
    lane.idempotence.next_sequence = sequence
    return True


cdef bint _raise_epoch(Core *core, Lane *lane) noexcept nogil:
    """Begin the next epoch. Return False if another producer id must be fetched first.

    That is so if the last epoch is used up, or if a broker has refused the producer id.
    """
    if lane.idempotence.producer_epoch < EPOCH_MAX and not lane.idempotence.needs_other_id:
        begin_epoch(lane, lane.idempotence.producer_id, lane.idempotence.producer_epoch + 1)
    elif lane_producer_id(core, lane) != lane.idempotence.producer_id and lane_producer_id(core, lane) >= 0:
        begin_epoch(lane, lane_producer_id(core, lane), lane_producer_epoch(core, lane))
    else:
        want_producer_id(core, lane)
        return False
    return True


cdef void _fail_unsure(Core *core, Lane *lane) noexcept nogil:
    cdef WireBatch *wire = lane.wire.head
    cdef WireBatch *following
    while wire != NULL:
        following = wire.wire.next
        if wire.idempotence.unsure and wire.idempotent:
            fail_batch(core, wire, CODE_OUTCOME_UNKNOWN, NULL)
        wire = following


cdef WireBatch *next_unsure_to_resend(Lane *lane) noexcept nogil:
    """Return the only wire batch that may be sent while unsure batches delay the new epoch; NULL if there is none.

    Nothing of the lane is in flight.
    """
    cdef WireBatch *wire = _first_idempotent(lane)
    cdef WireBatch *newest = newest_unsure(lane)
    if newest == NULL:
        return NULL
    if wire.idempotence.refused and not newest.idempotence.fragment:
        return newest
    if wire.idempotence.refused:
        wire.idempotence.refused = False
        seek_sequence(wire)  # the newest one is a fragment: it cannot be sent first or asked about
    if wire.idempotence.fragment:
        set_candidate_sequence(lane, wire)
    elif not wire.idempotence.unsure and wire.idempotence.resent_ahead == AHEAD_NOT:
        wire.idempotence.resent_ahead = AHEAD_SENT
        set_candidate_sequence(lane, wire)
    return wire


# ------------------------------------------------------------ fragments
#
# Chooses the sequences of fragments: the parts that replace a refused batch that may be in the log.
#
# An earlier attempt of the original batch had an unknown result. Its fragments show whether it is in the log. They are
# sent one at a time, before all other batches of the lane. Each is sent under a candidate: a sequence that the broker
# may expect next. Names in the code call it a place. If the original batch is in the log, the broker refuses the
# fragments: they are not duplicates of it, since they have fewer records, and they are not in order.
#
# A candidate is the end of the acknowledged sequences, or the end of an entry that was given up while it was unsure
# (doubtful_ends). A candidate is never above the fragment's own sequence, because batches after the original one prove
# nothing about it. If the broker refuses the fragment at the end of a given-up entry, that proves nothing about this
# entry either, because the original batch may be in the log after it. So the fragment is sent again under the next
# lower candidate. This is not done if the broker could take the fragment for a duplicate of a given-up entry that began
# at that candidate. After a fragment was given up, it is not known which sequence the broker expects.


cdef void set_candidate_sequence(Lane *lane, WireBatch *wire) noexcept nogil:
    """Set the sequence of `wire` to the highest candidate that is not above it.

    Keep it if there is none, or if the broker could take the batch for a duplicate there.
    """
    cdef cyp_identity *identity = &lane.row.identity[lane.row.current]
    cdef uint64_t place = _candidate_before(identity, wire.entry.base_sequence + 1)
    if place < wire.entry.base_sequence and not _may_pass_as_duplicate(identity, place, wire.entry.count):
        store_release(&wire.entry.base_sequence, place)


cdef bint has_candidate_before(Lane *lane, WireBatch *wire) noexcept nogil:
    """Return whether `wire` may be sent under a candidate below its present sequence."""
    cdef cyp_identity *identity = &lane.row.identity[lane.row.current]
    cdef uint64_t place = _candidate_before(identity, wire.entry.base_sequence)
    return place < wire.entry.base_sequence and not _may_pass_as_duplicate(identity, place, wire.entry.count)


cdef bint step_back(Lane *lane, WireBatch *wire) noexcept nogil:
    """Set the sequence of `wire`, which was out of order, to the next lower candidate. Return False without one."""
    cdef cyp_identity *identity = &lane.row.identity[lane.row.current]
    if not has_candidate_before(lane, wire):
        return False
    store_release(&wire.entry.base_sequence, _candidate_before(identity, wire.entry.base_sequence))
    return True


cdef uint64_t _candidate_before(cyp_identity *identity, uint64_t limit) noexcept nogil:
    """Return the highest sequence below `limit` that the broker may expect next; `limit` if none is known."""
    cdef uint32_t index = identity.doubts
    if identity.doubts > CYP_DOUBTS_MAX:
        return limit
    while index:
        index -= 1
        if identity.acked_end < identity.doubtful_ends[index] < limit:
            return identity.doubtful_ends[index]
    return min(identity.acked_end, limit)


cdef bint _may_pass_as_duplicate(cyp_identity *identity, uint64_t place, uint32_t count) noexcept nogil:
    """Return whether the broker could take `count` records from `place` on for a duplicate of a given-up entry."""
    cdef uint32_t index
    for index in range(identity.doubts):
        if identity.doubtful_ends[index] == place + count:
            return True
    return False


cdef void end_fragment(
    Core *core, WireBatch *wire, int32_t error, uint32_t refused, const Verdict *verdict
) noexcept nogil:
    """Give up an entry. If it is a fragment, also give up the later fragments of its batch, unless they may succeed.

    `refused` is the number of its attempts that are known to be refused. If these are all of its attempts, the entry is
    not in the log and the later fragments are still sent. Otherwise the broker would only refuse them as out of order.
    """
    cdef WireBatch *following = _next_fragment(wire)
    if following != NULL and wire.entry.attempts <= refused:
        fail_unappended(core, wire, error, verdict)
        return
    fail_batch(core, wire, error, verdict)
    while following != NULL:
        wire = following
        following = _next_fragment(wire)
        fail_batch(core, wire, error, verdict)


cdef WireBatch *_next_fragment(WireBatch *wire) noexcept nogil:
    """Return the next fragment of the same batch; NULL if there is none."""
    if wire.idempotence.fragment and wire.wire.next != NULL and wire.wire.next.idempotence.fragment \
            and wire.wire.next.entry.order // CYP_ENTRY_ORDER_STEP == wire.entry.order // CYP_ENTRY_ORDER_STEP:
        return wire.wire.next
    return NULL


# ------------------------------------------------------------ producer ids
#
# Requests producer ids for the two kinds of lanes, and fails batches if the brokers refuse one.
#
# An error of InitProducerId that is not retriable fails the batches that wait for the producer id, as
# Sender.maybeAbortBatches does in Kafka. Batches that have a sequence are not affected: they keep their former producer
# id. The next batch of the lane requests a producer id again, so a permission that is granted later takes effect
# without a restart of the sender.


cdef const char *NOT_SENT = b"the brokers gave no producer id, so the record was not sent"


cdef void want_producer_id(Core *core, Lane *lane) noexcept nogil:
    """Request a fresh producer id for all lanes of this kind, unless a request is pending."""
    if lane.isolation:
        if core.idempotence.wants_isolation_id:
            return
        core.idempotence.isolation_producer_id = -1
        core.idempotence.wants_isolation_id = True
    else:
        if core.idempotence.wants_producer_id:
            return
        core.idempotence.producer_id = -1
        core.idempotence.wants_producer_id = True
    push_event(core, EVENT_PRODUCER_ID, 0, 0, 0)


cdef void set_producer_id(Core *core, int64_t producer_id, int16_t epoch) noexcept nogil:
    """Set the producer id that was requested: that of the ordinary lanes, or else of the isolation lanes."""
    if core.idempotence.wants_isolation_id and not core.idempotence.wants_producer_id:
        core.idempotence.isolation_producer_id = producer_id
        core.idempotence.isolation_producer_epoch = epoch
        core.idempotence.wants_isolation_id = False
        return
    core.idempotence.producer_id = producer_id
    core.idempotence.producer_epoch = epoch
    core.idempotence.wants_producer_id = False
    CRASHPOINT(b"attach.identity-came")
    # -1 in between: a successor never sees the epoch of one producer id with another producer id
    store_release(<uint64_t *>&core.state_header.producer_id, <uint64_t>-1)
    core.state_header.producer_epoch = epoch
    store_release(<uint64_t *>&core.state_header.producer_id, <uint64_t>producer_id)
    if core.idempotence.wants_isolation_id:
        push_event(core, EVENT_PRODUCER_ID, 0, 0, 0)  # one answer is for one kind of lane


cdef void clear_producer_ids(Core *core) noexcept nogil:
    """Note that there is no producer id yet."""
    core.idempotence.producer_id = -1
    core.idempotence.producer_epoch = -1
    core.idempotence.isolation_producer_id = -1
    core.idempotence.isolation_producer_epoch = -1


cdef void raise_epochs(Core *core, int32_t ordinary, int32_t isolation) noexcept nogil:
    """Make the next epochs of the producer ids higher than these, for the ordinary and for the isolation lanes."""
    if isolation >= core.idempotence.isolation_producer_epoch:
        core.idempotence.isolation_producer_epoch = <int16_t>(isolation + 1)  # a successor gets another producer id
    if ordinary >= core.state_header.producer_epoch:
        # A release follows before a row is free.
        core.state_header.producer_epoch = <int16_t>(ordinary + 1)
        CRASHPOINT(b"topics.epoch-raised")
        if core.idempotence.producer_id == core.state_header.producer_id:
            core.idempotence.producer_epoch = core.state_header.producer_epoch


cdef void refuse_producer_id(Core *core, int32_t error) noexcept nogil:
    """Fail the batches without a sequence in the lanes that requested a producer id, with `error` of the broker.

    They were never sent, and the outcome says so.
    """
    cdef bint isolation = core.idempotence.wants_isolation_id and not core.idempotence.wants_producer_id
    cdef FrontEnd *front_end = core.front_end.first
    cdef FrontEnd *following
    cdef uint32_t index
    cdef Verdict verdict = Verdict(NULL, <const uint8_t *>NOT_SENT, <uint32_t>strlen(NOT_SENT), False, 0, NULL)
    while front_end != NULL:
        # the front-end leaves the list if it has ended and this was its last batch
        following = front_end.front_end.next
        index = 0
        while front_end.idempotent and index < front_end.intake.queue_capacity:
            if front_end.intake.queues[index] != NULL \
                    and front_end.intake.queues[index].intake.lane.isolation == isolation \
                    and front_end.transaction == NULL:
                _fail_queue(core, front_end.intake.queues[index], error, &verdict)
            index += 1
        front_end = following
    untouch(core)
    if isolation:
        core.idempotence.wants_isolation_id = False
    else:
        core.idempotence.wants_producer_id = False
        if core.idempotence.wants_isolation_id:
            push_event(core, EVENT_PRODUCER_ID, 0, 0, 0)  # each response is for one kind of lane


cdef void _fail_queue(Core *core, Queue *queue, int32_t error, const Verdict *verdict) noexcept nogil:
    cdef ClientBatch *batch = queue.intake.head
    while batch != NULL:
        if batch.intake.state == BATCH_CLOSED or seal(core, batch):  # otherwise it was malformed and has left the queue
            remove(queue, batch)
            release_batch(core, batch, -1, -1, error, verdict)
        batch = queue.intake.head


# ------------------------------------------------------------ producer states
#
# Asks a broker whether it still has the state of a producer, before an unsure batch is sent again.
#
# A broker without state of a producer appends any sequence (ProducerAppendInfo.checkSequence): it cannot distinguish a
# batch that is in its log from a new one. State is lost when it expires (producer.id.expiration.ms after the timestamp
# of the last record, so at once for records with old timestamps), and when the records are deleted and the broker
# restarts. So the leader is asked first (DescribeProducers, KIP-664, Kafka 2.8). If records of this producer were
# acknowledged and the leader has no state of it, the unsure batches end with an unknown outcome, and the next ones get
# a new epoch.
#
# An older broker does not know this request, and a broker may deny it (it requires READ on the topic). Then a batch can
# be appended twice if the state was lost between two attempts, as with Kafka's own producer.


cdef enum:
    # frame 4, request header 8 + client id 2 + tags 1, topic count 5, tags 1
    STATE_REQUEST_FIXED = 21
    # topic name length 3, partition count 1, partition 4, tags 1
    PARTITION_FIXED = 9


cdef bint may_send_again(Lane *lane) noexcept nogil:
    """Return False until the leader has answered whether it has the state of the producer. Nothing is in flight."""
    cdef Node *leader = lane.drain.leader
    if not leader.connections.describes_producers or newest_unsure(lane) == NULL:
        return True
    if lane.idempotence.state_of != leader:
        lane.idempotence.state = STATE_NOT_ASKED
    if lane.idempotence.state == STATE_KNOWN:
        return True
    if lane.idempotence.state == STATE_NOT_ASKED and not leader.idempotence.states_asked:
        _ask_for(leader, lane)
    return False


cdef inline void forget_state(Lane *lane) noexcept nogil:
    """Let the leader be asked again before an unsure batch is sent."""
    lane.idempotence.state = STATE_NOT_ASKED


cdef void _ask_for(Node *leader, Lane *lane) noexcept nogil:
    """Add the lane to the leader's next DescribeProducers request. If that has no space, a later call tries again."""
    if leader.idempotence.asked == NULL:
        leader.idempotence.asked = <Lane **>malloc(STATES_PER_REQUEST_MAX * sizeof(Lane *))
    if leader.idempotence.asked != NULL and leader.idempotence.asked_count < STATES_PER_REQUEST_MAX:
        leader.idempotence.asked[leader.idempotence.asked_count] = lane
        leader.idempotence.asked_count += 1
        lane.idempotence.state = STATE_ASKED
        lane.idempotence.state_of = leader


cdef Request *states_request(Core *core, Node *node) noexcept nogil:
    """Return a request for the lanes that may_send_again() has noted; NULL if there is none to send.

    At most one such request per broker is in flight.
    """
    cdef Lane *lane
    cdef Request *request
    cdef uint32_t capacity = STATE_REQUEST_FIXED + core.client_id_bytes, index, name_bytes
    cdef uint8_t *at
    if node.idempotence.asked_count == 0 or node.idempotence.states_asked or node.connection.out_head != NULL:
        return NULL
    for index in range(node.idempotence.asked_count):
        capacity += PARTITION_FIXED + node.idempotence.asked[index].topic.name_bytes
    request = new_request(core, capacity, 1, 0)
    if request == NULL:
        return NULL
    node.idempotence.states_asked = True
    request.kind = REQUEST_STATES
    request.version = DESCRIBE_PRODUCERS_VERSION
    request.acks = 1
    request.correlation_id = next_correlation_id(node)
    at = put_request_header(core, request, DESCRIBE_PRODUCERS_KEY, True)
    at = put_uvarint(at, node.idempotence.asked_count + 1)
    for index in range(node.idempotence.asked_count):
        lane = node.idempotence.asked[index]
        name_bytes = lane.topic.name_bytes
        at = put_uvarint(at, name_bytes + 1)
        memcpy(at, lane.topic.name, name_bytes)
        at = put_uvarint(at + name_bytes, 2)
        at = put32(at, <uint32_t>lane.number)
        at = put_uvarint(at, 0)
    at = put_uvarint(at, 0)
    set_length(request, <uint32_t>(at - request.produce.bytes))
    put32(request.produce.bytes, request.produce.bytes_length - 4)
    return request


cdef void forget_asked(Node *node) noexcept nogil:
    """Drop the request, because its connection was closed without a response: the states must be asked for again."""
    cdef uint32_t index
    for index in range(node.idempotence.asked_count):
        if node.idempotence.asked[index].idempotence.state_of == node:
            node.idempotence.asked[index].idempotence.state = STATE_NOT_ASKED
    node.idempotence.asked_count = 0
    node.idempotence.states_asked = False


cdef bint on_states_response(Core *core, Node *node, const uint8_t *body, uint32_t size) noexcept nogil:
    """Handle the response, whose topics are in the order of the request. Return False if it is malformed."""
    cdef Cursor cursor
    cdef uint32_t index, count, name_bytes
    cdef const uint8_t *name
    cdef Lane *lane
    cursor.at = body
    cursor.end = body + size
    cursor.bad = False
    skip_tags(&cursor)              # of the response header
    throttle(node, core.loop.now, <int32_t>get_int(&cursor, 4))
    if get_count(&cursor, True) != node.idempotence.asked_count:
        return False
    for index in range(node.idempotence.asked_count):
        lane = node.idempotence.asked[index]
        name = get_text(&cursor, True, &name_bytes)
        count = get_count(&cursor, True)
        if cursor.bad or count != 1 or name_bytes != lane.topic.name_bytes \
                or memcmp(name, lane.topic.name, name_bytes) != 0 \
                or <int32_t>get_int(&cursor, 4) != lane.number \
                or not _parse_state(core, node, lane, &cursor):
            return False
        skip_tags(&cursor)          # of the partition
        skip_tags(&cursor)          # of the topic
    node.idempotence.asked_count = 0
    node.idempotence.states_asked = False
    return not cursor.bad


cdef bint _parse_state(Core *core, Node *node, Lane *lane, Cursor *cursor) noexcept nogil:
    """Handle the error and the active producers of one partition. Return False if they are malformed."""
    cdef int16_t error = <int16_t>get_int(cursor, 2)
    cdef uint32_t length, producers, _index
    cdef bint found = False
    get_text(cursor, True, &length)
    producers = get_count(cursor, True)
    for _index in range(producers):
        if <int64_t>get_int(cursor, 8) == lane.idempotence.producer_id:
            found = True
        get_int(cursor, 4)          # epoch
        get_int(cursor, 4)          # last sequence
        get_int(cursor, 8)          # last timestamp
        get_int(cursor, 4)          # coordinator epoch
        get_int(cursor, 8)          # start of the current transaction
        skip_tags(cursor)
        if cursor.bad:
            return False
    if cursor.bad:
        return False
    if lane.idempotence.state != STATE_ASKED or lane.idempotence.state_of != node:
        return True  # the leader has changed since the request
    lane.idempotence.state = STATE_KNOWN
    if is_retriable(error):
        if is_stale_metadata(error):
            want_refresh(core)
        lane.idempotence.state = STATE_NOT_ASKED
        lane.idempotence.states_refused += 1
        postpone_lane(core, lane, lane.idempotence.states_refused)
        relist(lane)
        return True
    lane.idempotence.states_refused = 0
    if error:
        push_event(core, EVENT_STATE_DENIED, node.index, error, lane.index)
    elif not found and _was_acknowledged(lane):
        push_event(core, EVENT_STATE_LOST, node.index, 0, lane.index)
        lane.idempotence.lost_id = lane.idempotence.producer_id
        lane.idempotence.lost_epoch = lane.idempotence.producer_epoch
        on_state_lost(core, lane, NULL)
    relist(lane)
    return True


cdef bint _was_acknowledged(Lane *lane) noexcept nogil:
    """Return whether records of the producer id were acknowledged since the last loss of its state.

    Consider the present epoch and the one before.
    """
    cdef cyp_identity *identity
    cdef int place
    for place in range(2):
        identity = &lane.row.identity[place]
        if (
            identity.producer_id == lane.idempotence.producer_id and identity.acked_end > 0
            and not (
                lane.idempotence.lost_id == identity.producer_id
                and identity.producer_epoch <= lane.idempotence.lost_epoch
            )
        ):
            return True
    return False
