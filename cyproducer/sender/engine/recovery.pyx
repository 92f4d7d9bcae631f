"""Restores a sender's private state in a takeover, from the shared memory of its predecessor, which has ended.

The sources are the state region (entries, contributors, identities of partitions, topics), each front-end's slot table,
and its outcome ring. The order in which they are read matters:

 1. PREPARED entries, which replace another entry: they are kept if that one is SPLIT, else freed
 2. entries in order: the result of a RESOLVED one is published (unless it is in the outcome ring already), and the
    entry is freed; an ASSIGNED one waits to be sent, unsure if an attempt had begun; its batches are sealed and
    measured again
 3. parts of batches that have a result: it goes to the table of extents (parts.pyx), and the entry is freed; the last
    part completes its batch
 4. SPLIT entries: a contributor that is in none of the entries that replace it is released, or is queued again
 5. partitions: the next sequence, and whether the epoch must be raised
 6. slot tables: committed batches that belong to no entry are queued by open_seq

Every store here is one that a running sender makes too. So a successor may itself be killed at any point, and the next
one continues from there.
"""


# ------------------------------------------------------------ slot recovery
#
# Queues, in a takeover, the committed batches of a front-end that belong to no entry.
#
# restore_work() below has restored the entries and their batches before.


# An item to be handled in the order of its fields.
ctypedef struct Ranked:
    uint64_t rank
    bint stale                      # an entry whose sequence is not of the present epoch of its partition
    uint64_t sequence
    uint32_t start
    uint32_t index


cdef inline uint32_t published_flags(FrontEnd *front_end, uint32_t slot, uint32_t generation) noexcept nogil:
    """Return the flags of the published outcomes of a batch, which its front-end may have read."""
    cdef Published *published = &front_end.recovery.published[slot]
    return published.flags if published.generation == generation else 0


cdef int by_rank(const void *a, const void *b) noexcept nogil:
    cdef const Ranked *left = <const Ranked *>a
    cdef const Ranked *right = <const Ranked *>b
    if left.rank != right.rank:
        return 1 if left.rank > right.rank else -1
    if left.stale != right.stale:
        return 1 if left.stale else -1
    if left.sequence != right.sequence:
        return 1 if left.sequence > right.sequence else -1
    return (left.start > right.start) - (left.start < right.start)


cdef object restore_slots(Core *core, FrontEnd *front_end):
    """Queue committed batches that are in no entry, by open_seq. If the front-end has ended, revoke its slots.

    The front-end may go on meanwhile. If it opens two batches, one pass over the table can find the second and miss the
    first. So a first pass finds the highest open_seq. A second pass takes all batches up to that. Newer ones are
    submitted as hints, which were not read yet. Raise MemoryError.
    """
    cdef Ranked *found = <Ranked *>calloc(front_end.slot_count, sizeof(Ranked))
    cdef uint32_t slot, count = 0, at, first = 0, end = 0
    cdef uint64_t youngest = 0, steps = 0
    if found == NULL:
        raise MemoryError
    if front_end.front_ends.detached:  # the predecessor may have died before it told the front-end
        control_end(&front_end.outcomes_header.control, CYP_CONTROL_DETACHED)
    while next_used(front_end, &first, &end):
        for slot in range(first, end):
            touch(core, front_end, slot)
            if _is_unassigned(front_end, slot):
                youngest = max(youngest, front_end.rows[slot].open_seq)
        first = end
    first = 0
    while next_used(front_end, &first, &end):
        for slot in range(first, end):
            touch(core, front_end, slot)
            if _is_unassigned(front_end, slot) and front_end.rows[slot].open_seq <= youngest:
                found[count].rank = front_end.rows[slot].open_seq
                found[count].index = slot
                count += 1
        first = end
    qsort(found, count, sizeof(Ranked), by_rank)
    for at in range(count):
        if front_end.intake.violation:
            break
        _restore_slot(core, front_end, <uint32_t>found[at].index, &steps)
        CRASHPOINT(b"recover.batch-queued")
    free(found)
    if front_end.front_ends.detached and not front_end.intake.violation:
        scan(core, front_end)
    if front_end.front_ends.detached:
        keep_totals(core, front_end)
    front_end.outcomes_header.submit_head = front_end.intake.submit_head
    sort_by_age(core, front_end)


cdef bint _is_unassigned(FrontEnd *front_end, uint32_t slot) noexcept nogil:
    """Return whether a batch starts here that holds records, is not released, and was not found in an entry."""
    cdef uint64_t word = slot_peek(&front_end.rows[slot])
    cdef uint32_t generation = word_generation(word)
    if front_end.batches[slot].intake.state != BATCH_NONE:
        return False
    if not word_is_live(word, generation) and not word_is_taken(word, generation):
        return False
    if published_flags(front_end, slot, word_generation(word)) & CYP_OUTCOME_RELEASE:
        slot_done(&front_end.rows[slot], word_generation(word))
        return False
    return word_state(word) != CYP_OPEN or word_count(word) > 0 or word_continues(word)


cdef void _restore_slot(Core *core, FrontEnd *front_end, uint32_t slot, uint64_t *steps) noexcept nogil:
    """Queue one committed batch, and seal it if its front-end has closed it."""
    cdef uint64_t word = slot_peek(&front_end.rows[slot])
    cdef ClientBatch *batch
    touch(core, front_end, slot)
    batch = admit(core, front_end, slot, word_generation(word), True)
    # an open batch goes on lingering; a closed one is sealed here: the predecessor may have read its FULL hint
    if batch != NULL and (batch.intake.state == BATCH_LINGERING or batch.intake.state == BATCH_DUE) \
            and not _is_open_slot(front_end, slot, steps):
        seal(core, batch)
    if steps[0] > 2 * <uint64_t>front_end.slot_count:
        flag_violation(core, front_end, VIOLATION_CHAIN)


cdef bint _is_open_slot(FrontEnd *front_end, uint32_t slot, uint64_t *steps) noexcept nogil:
    """Return whether the front-end may still add to the chain that starts here.

    `steps` counts the chunks of all chains. A chunk is in one chain, or in two if it was used again meanwhile. If there
    are more steps than that, chains lead into each other.
    """
    cdef uint64_t word
    while steps[0] <= 2 * <uint64_t>front_end.slot_count:
        steps[0] += 1
        word = slot_peek(&front_end.rows[slot])
        if word_state(word) == CYP_OPEN:
            return True
        if not word_continues(word):
            return False
        slot = slot_next(&front_end.rows[slot])
        if slot >= front_end.slot_count or not row_is_written(front_end, slot):
            return False
    return False


# ------------------------------------------------------------ recovery


ctypedef struct Owners:
    # the front-ends by attach id, ascending
    FrontEnd **front_ends
    uint32_t count


cdef int _by_attach_id(const void *a, const void *b) noexcept nogil:
    cdef uint64_t left = (<FrontEnd **>a)[0].attach_id, right = (<FrontEnd **>b)[0].attach_id
    return (left > right) - (left < right)


# ---------------------------------------------------------------- tables


cdef object restore_tables(Core *core):
    """Restore topics, partitions and the producer id. Raise ValueError if the region is invalid, MemoryError."""
    cdef cyp_state_header *header = core.state_header
    cdef uint32_t index
    if header.magic != CYP_STATE_MAGIC or header.layout_version != CYP_LAYOUT_VERSION:
        raise ValueError(f"the predecessor's state region is invalid or has another layout than {CYP_LAYOUT_VERSION}")
    if header.topic_count > CYP_TOPICS_MAX or header.partition_count > CYP_PARTITIONS_MAX:
        raise ValueError(f"invalid predecessor state: {header.topic_count} topics, {header.partition_count} partitions")
    for index in range(header.topic_count):
        restore_topic(core, index)
    restore_transactions(core)
    restore_partitions(core, header.partition_count)
    for index in range(core.topics.count):
        if 0 <= core.sticky[index] < core.topics.table[index].topics.partition_count:
            core.topics.table[index].partitioner.sticky = core.sticky[index]
    core.idempotence.producer_id = header.producer_id
    core.idempotence.producer_epoch = header.producer_epoch


cdef object restore_front_end(Core *core, FrontEnd *front_end, bint ended):
    """Restore a front-end's ring positions and published outcomes. Raise ValueError if they are not its own."""
    cdef cyp_outcomes_header *header = front_end.outcomes_header
    cdef uint64_t entries = front_end.outcome_mask + 1, position
    cdef int place
    cdef cyp_outcome outcome
    cdef Published *published
    if header.magic != CYP_OUTCOMES_MAGIC or header.layout_version != CYP_LAYOUT_VERSION \
            or header.slot_count != front_end.slot_count or header.attach_id != front_end.attach_id:
        raise ValueError(f"the outcomes region is not that of front-end {front_end.attach_id} in this layout")
    front_end.recovery.published = <Published *>calloc(front_end.slot_count, sizeof(Published))
    if front_end.recovery.published == NULL:
        raise MemoryError
    front_end.front_ends.detached = ended or header.control == CYP_CONTROL_DETACHED
    # before the slot table is read: later submissions are read from the ring as hints
    front_end.intake.submit_head = submit_tail(&front_end.header.submit_tail)
    front_end.outcome.outcome_tail = header.outcome_tail
    for place in range(CYP_TEXTS):
        # it is not known which outcome refers to it
        front_end.outcome.text_until[place] = front_end.outcome.outcome_tail
    # The oldest place is skipped: the next outcome may be half written there. If the ring was full, the batch of the
    # outcome that the place held has a newer outcome.
    position = front_end.outcome.outcome_tail - entries + 1 if front_end.outcome.outcome_tail >= entries else 0
    while position != front_end.outcome.outcome_tail:
        outcome_read(front_end.outcome_ring, front_end.outcome_mask, position, &outcome)
        position += 1
        if outcome.slot < front_end.slot_count:
            published = &front_end.recovery.published[outcome.slot]
            if published.generation != outcome.generation:
                published.generation = outcome.generation
                published.flags = 0
            published.flags |= outcome.flags
    restore_extents(front_end)


# ---------------------------------------------------------------- work


cdef object restore_work(Core *core):
    """Restore all batches in progress, after all front-ends were restored. Raise MemoryError."""
    cdef Owners owners
    cdef Ranked *ranked = <Ranked *>calloc(CYP_ENTRIES_MAX, sizeof(Ranked))
    cdef uint32_t count
    owners.front_ends = <FrontEnd **>calloc(core.front_end.count + 1, sizeof(FrontEnd *))
    if ranked == NULL or owners.front_ends == NULL:
        free(ranked)
        free(owners.front_ends)
        raise MemoryError
    update_clock(core)
    try:
        _list_owners(core, &owners)
        _resolve_prepared(core)
        count = _rank_entries(core, ranked)
        _reserve_rows(core)
        _restore_entries(core, &owners, ranked, count)
        for index in range(core.topics.lane_count):
            if core.topics.lanes[index] != NULL:
                restore_sequences(core.topics.lanes[index])
        for index in range(owners.count):
            restore_slots(core, owners.front_ends[index])
        for index in range(core.topics.lane_count):
            if core.topics.lanes[index] != NULL:
                fail_reported(core, core.topics.lanes[index], NULL)
        for index in range(owners.count):
            _release_guard(core, owners.front_ends[index])
    finally:
        untouch(core)
        free(ranked)
        free(owners.front_ends)


cdef void _list_owners(Core *core, Owners *owners) noexcept nogil:
    """List the front-ends by attach id. Add one to `live` of each, so that none ends before _release_guard."""
    cdef FrontEnd *front_end = core.front_end.first
    owners.count = 0
    while front_end != NULL:
        front_end.intake.live += 1
        owners.front_ends[owners.count] = front_end
        owners.count += 1
        front_end = front_end.front_end.next
    qsort(owners.front_ends, owners.count, sizeof(FrontEnd *), _by_attach_id)


cdef FrontEnd *_owner(Owners *owners, uint64_t attach_id) noexcept nogil:
    """Return the front-end with this attach id; NULL if there is none."""
    cdef uint32_t low = 0, high = owners.count, middle
    while low < high:
        middle = (low + high) // 2
        if owners.front_ends[middle].attach_id < attach_id:
            low = middle + 1
        else:
            high = middle
    if low < owners.count and owners.front_ends[low].attach_id == attach_id:
        return owners.front_ends[low]
    return NULL


cdef void _release_guard(Core *core, FrontEnd *front_end) noexcept nogil:
    """Undo what _list_owners added to `live`. End the front-end if it has nothing left."""
    reclaim_extents(front_end)
    free(front_end.recovery.published)
    front_end.recovery.published = NULL
    front_end.intake.live -= 1
    schedule_outcomes(core, front_end)  # some outcomes may have been published and not announced
    if front_end.front_ends.detached and front_end.intake.live == 0:
        end_front_end(core, front_end)


cdef void _resolve_prepared(Core *core) noexcept nogil:
    """Keep or free PREPARED entries, which replace a larger entry once its state is SPLIT."""
    cdef uint32_t index
    cdef cyp_entry *entry
    for index in range(CYP_ENTRIES_MAX):
        entry = &core.entries[index]
        if entry.state != CYP_ENTRY_PREPARED:
            continue
        if entry.parent < CYP_ENTRIES_MAX and core.entries[entry.parent].state == CYP_ENTRY_SPLIT:
            if entry.flags & CYP_ENTRY_REFUSED:
                entry_resolve(entry, entry.error, -1, -1)
            else:
                entry_enter(entry, CYP_ENTRY_ASSIGNED)
            CRASHPOINT(b"recover.part-kept")
        else:
            entry_enter(entry, CYP_ENTRY_FREE)


cdef uint32_t _rank_entries(Core *core, Ranked *ranked) noexcept nogil:
    """List the entries in use in order; SPLIT ones come after all others. Return how many."""
    cdef uint32_t index, count = 0
    cdef uint64_t last = 0
    cdef cyp_entry *entry
    cdef Lane *lane
    for index in range(CYP_ENTRIES_MAX):
        entry = &core.entries[index]
        if entry.state == CYP_ENTRY_FREE:
            continue
        if entry.partition >= core.topics.lane_count or core.topics.lanes[entry.partition] == NULL \
                or entry.state > CYP_ENTRY_SPLIT or (entry.body != CYP_NONE and entry.body >= CYP_BODIES_MAX):
            entry_enter(entry, CYP_ENTRY_FREE)  # no sender writes such an entry
            continue
        ranked[count].rank = entry.order | <uint64_t>(entry.state == CYP_ENTRY_SPLIT) << 63
        # Parts have the order of the batch that they replace. A new epoch is given to them one after the other.
        lane = core.topics.lanes[entry.partition]
        ranked[count].stale = (
            entry.producer_id != lane.idempotence.producer_id or entry.producer_epoch != lane.idempotence.producer_epoch
        )
        ranked[count].sequence = entry.base_sequence
        ranked[count].start = 0
        if entry.flags & CYP_ENTRY_PARTIAL and entry.contributors < CYP_CONTRIBUTORS_MAX:
            ranked[count].start = core.contributors[entry.contributors].start
        ranked[count].index = index
        last = max(last, entry.order)
        count += 1
    core.wire.next_order = (last // CYP_ENTRY_ORDER_STEP + 1) * CYP_ENTRY_ORDER_STEP
    qsort(ranked, count, sizeof(Ranked), by_rank)
    return count


cdef object _reserve_rows(Core *core):
    """Build the free lists of entries, contributors and bodies: the rows that no entry in use refers to.

    Raise MemoryError.
    """
    cdef uint8_t *used = <uint8_t *>calloc(CYP_CONTRIBUTORS_MAX, 1)
    cdef uint8_t *bodies = <uint8_t *>calloc(CYP_BODIES_MAX, 1)
    cdef uint32_t index
    cdef uint32_t *link
    cdef cyp_entry *entry
    if used == NULL or bodies == NULL:
        free(used)
        free(bodies)
        raise MemoryError
    core.wire.free_wire_count = core.wire.free_contributor_count = core.wire.free_body_count = 0
    for index in range(CYP_ENTRIES_MAX - 1, -1, -1):
        entry = &core.entries[index]
        if entry.state == CYP_ENTRY_FREE:
            core.wire.free_wires[core.wire.free_wire_count] = index
            core.wire.free_wire_count += 1
            continue
        if entry.body != CYP_NONE:
            bodies[entry.body] = 1
        link = &entry.contributors
        while link[0] != CYP_NONE:
            if link[0] >= CYP_CONTRIBUTORS_MAX or used[link[0]]:
                link[0] = CYP_NONE  # no sender writes such a list
                break
            used[link[0]] = 1
            link = &core.contributors[link[0]].next
    for index in range(CYP_CONTRIBUTORS_MAX - 1, -1, -1):
        if not used[index]:
            core.wire.free_contributors[core.wire.free_contributor_count] = index
            core.wire.free_contributor_count += 1
    for index in range(CYP_BODIES_MAX - 1, -1, -1):
        if not bodies[index]:
            core.wire.free_bodies[core.wire.free_body_count] = index
            core.wire.free_body_count += 1
    free(used)
    free(bodies)


cdef void _restore_entries(Core *core, Owners *owners, Ranked *ranked, uint32_t count) noexcept nogil:
    """Restore the entries in order, then end those that have a result or cannot go on.

    No part of a batch ends before all of its parts are restored. So the batch gets its outcome with its last part, as
    in a running sender: before the entry of that part is free. Otherwise a successor of this sender would find neither
    an entry nor an outcome, and would send the batch again.
    """
    cdef uint32_t at
    cdef WireBatch *wire
    for at in range(count):
        wire = _restore_wire(core, ranked[at].index)
        if wire.entry.state == CYP_ENTRY_SPLIT:
            continue
        _restore_contributors(core, owners, wire)
        link_before(wire.lane, wire, NULL)
        if not wire.partial:
            _end_restored(core, wire)
        CRASHPOINT(b"recover.entry-taken")
    for at in range(count):
        wire = &core.wires[ranked[at].index]
        if wire.lane == NULL:
            continue  # it has ended, and its entry is free
        if wire.entry.state == CYP_ENTRY_SPLIT:
            _complete_split(core, owners, wire)
            free_wire(core, wire)
        elif wire.partial:
            _end_restored(core, wire)
        CRASHPOINT(b"recover.entry-ended")


cdef void _end_restored(Core *core, WireBatch *wire) noexcept nogil:
    """Publish the result of a RESOLVED entry. Give up one that cannot be sent again."""
    if wire.entry.state == CYP_ENTRY_RESOLVED:
        publish_resolved(core, wire, NULL)
    elif not _can_go_on(core, wire):
        fail_batch(core, wire, CODE_OUTCOME_UNKNOWN, NULL)


cdef bint _can_go_on(Core *core, WireBatch *wire) noexcept nogil:
    """Return whether the entry may be sent.

    An unsure one is not sent again with acks=0; without idempotence `retries` limits its attempts.
    """
    if wire.wire.body == NULL \
            and (wire.wire.contributor_count == 0 or core.contributor_batches[wire.entry.contributors] == NULL):
        return False  # its chunks belong to a front-end that could not be taken over
    if not wire.idempotence.unsure:
        return True
    return wire.acks != 0 and (wire.idempotent or wire.entry.attempts <= wire.wire.retries)


cdef WireBatch *_restore_wire(Core *core, uint32_t index) noexcept nogil:
    """Return the wire batch of an entry in use, without its contributors."""
    cdef cyp_entry *entry = &core.entries[index]
    cdef WireBatch *wire = init_wire(core, index, core.topics.lanes[entry.partition])
    wire.idempotent = entry.producer_id >= 0
    wire.wire.retried = True
    core.front_end.acks_seen |= <uint8_t>(1 << (entry.acks + 1))
    if wire.lane.topic.loop.not_refreshed:
        flag_use(core, wire.lane.topic)
        want_refresh(core)
    return wire


cdef void _restore_contributors(Core *core, Owners *owners, WireBatch *wire) noexcept nogil:
    """Find the batches of an entry. Keep the row of one that is gone: its records are still part of the entry."""
    cdef cyp_contributor *contributor
    cdef uint32_t row = wire.entry.contributors
    cdef FrontEnd *front_end
    cdef ClientBatch *batch
    while row != CYP_NONE:
        contributor = &core.contributors[row]
        front_end = _owner(owners, contributor.attach_id)
        batch = NULL if front_end == NULL else _restore_batch(core, front_end, wire, contributor)
        core.contributor_batches[row] = batch
        if batch != NULL and wire.partial:
            _enter_part(wire, contributor, batch)
        if batch != NULL and batch.outcome.reported:
            contributor.flags |= CYP_CONTRIBUTOR_REPORTED
        wire.wire.contributor_count += 1
        if batch != NULL:
            wire.refusal.unreported += not batch.outcome.reported and not (wire.partial and wire.refusal.unreported)
            wire.wire.retries = min(wire.wire.retries, front_end.settings.retries)
            # the batch may only be small enough for the broker if it is compressed again
            wire.compression.codec = front_end.codec
            wire.level = front_end.level
        elif front_end == NULL and wire.entry.state == CYP_ENTRY_ASSIGNED:
            add_failure(
                core, contributor.attach_id, wire.lane.topic.number, CODE_OUTCOME_UNKNOWN, contributor.count
            )
            count_errors(core, NULL, wire.lane.topic, contributor.count)
        row = contributor.next


cdef void _enter_part(WireBatch *wire, cyp_contributor *contributor, ClientBatch *batch) noexcept nogil:
    """Note that the batch has one more range of records in a part."""
    if not batch.parts.split:
        batch.parts.split = True
        batch.wire.batch = NULL
        if not batch.outcome.reported:
            find_extents(batch)
            if batch.front_end.front_ends.detached:
                # what is in no part has its result, perhaps in no row: it has no reader
                batch.parts.resolved_count = batch.intake.count
    batch.parts.pending += wire.wire.contributor_count == 0
    if not is_covered(batch, contributor.start, contributor.count):
        reserve_extents(batch, 1)
        if batch.front_end.front_ends.detached:
            batch.parts.resolved_count -= contributor.count


cdef void _complete_split(Core *core, Owners *owners, WireBatch *wire) noexcept nogil:
    """Complete the contributors of a SPLIT entry that are in no fragment; those in a fragment were restored with it.

    If a contributor has had its result, its chunks are released. Any other contributor was refused and has no result
    yet. If an attempt is unsure, its result is unknown. Else it gets the error of the entry. If that is 0, it stays in
    the slot table, and restore_slots queues it like a batch that was never sent.
    """
    cdef cyp_contributor *contributor
    cdef uint32_t row = wire.entry.contributors
    cdef int32_t error
    cdef FrontEnd *front_end
    while row != CYP_NONE:
        contributor = &core.contributors[row]
        front_end = _owner(owners, contributor.attach_id)
        if front_end != NULL and (wire.idempotence.unsure or wire.entry.error or _is_reported(front_end, contributor)):
            core.contributor_batches[row] = _restore_batch(core, front_end, wire, contributor)
            error = CODE_OUTCOME_UNKNOWN if wire.idempotence.unsure or wire.entry.error == 0 else wire.entry.error
            release_contributor(core, row, -1, -1, error, NULL)
        row = contributor.next


cdef inline bint _is_reported(FrontEnd *front_end, cyp_contributor *contributor) noexcept nogil:
    """Return whether the contributor's RESULT was published."""
    if contributor.flags & CYP_CONTRIBUTOR_REPORTED:
        return True
    return contributor.slot < front_end.slot_count \
        and published_flags(front_end, contributor.slot, contributor.generation) & CYP_OUTCOME_RESULT


cdef ClientBatch *_restore_batch(
    Core *core, FrontEnd *front_end, WireBatch *wire, cyp_contributor *contributor
) noexcept nogil:
    """Return the batch of an entry, sealed and measured again; NULL if it is released or has changed.

    A batch can be in several PARTIAL entries.
    """
    cdef cyp_slot_row *row
    cdef uint64_t word
    cdef ClientBatch *batch
    if contributor.slot >= front_end.slot_count or not row_is_written(front_end, contributor.slot):
        return NULL
    touch(core, front_end, contributor.slot)
    row = &front_end.rows[contributor.slot]
    word = slot_peek(row)
    if not word_is_live(word, contributor.generation) and not word_is_taken(word, contributor.generation):
        return NULL  # its front-end has freed it
    if published_flags(front_end, contributor.slot, contributor.generation) & CYP_OUTCOME_RELEASE:
        slot_done(row, contributor.generation)
        return NULL
    batch = &front_end.batches[contributor.slot]
    if batch.intake.state != BATCH_NONE:
        if batch.parts.split and wire.partial and wire.entry.state != CYP_ENTRY_SPLIT \
                and <uint64_t>contributor.start + contributor.count <= batch.intake.count:
            return batch
        return NULL  # it is in another entry
    batch = init_batch(core, front_end, contributor.slot, contributor.generation)
    batch.intake.state = BATCH_DUE
    if not seal(core, batch):
        return NULL
    batch.queue = _queue_in(front_end, wire.lane)
    if batch.queue == NULL or not _is_as_assigned(wire, contributor, batch):
        flag_violation(core, front_end, VIOLATION_CHANGED)
        release_batch(core, batch, -1, -1, CODE_INVALID_BATCH, NULL)
        return NULL
    batch.intake.state = BATCH_ASSIGNED
    batch.wire.batch = wire
    if _is_reported(front_end, contributor):
        batch.outcome.reported = True
        age_unlink(front_end, batch)
        contributor.flags |= CYP_CONTRIBUTOR_REPORTED
    return batch


cdef bint _is_as_assigned(WireBatch *wire, cyp_contributor *contributor, ClientBatch *batch) noexcept nogil:
    """Return whether the batch has as many records and bytes as when it was assigned to the entry."""
    if wire.partial:
        return <uint64_t>contributor.start + contributor.count <= batch.intake.count
    if wire.wire.body == NULL and wire.entry.state == CYP_ENTRY_ASSIGNED and batch.intake.bytes != wire.entry.length:
        return False
    return batch.intake.count == contributor.count


cdef Queue *_queue_in(FrontEnd *front_end, Lane *lane) noexcept nogil:
    """Return the front-end's queue for the partition, in the lane where an entry was found; NULL without memory."""
    cdef Lane *ordinary = lane
    cdef Queue *queue
    if lane.isolation:
        ordinary = lane.topics.other_lane
    elif lane.transaction != NULL:
        ordinary = lane.ordinary
    queue = queue_for(front_end, ordinary)
    if queue != NULL and lane.isolation and queue.intake.lane != lane:
        flag_for_isolation(queue)
        move_queue(queue, lane)
    if queue != NULL and lane.transaction != NULL and queue.intake.lane != lane:
        return NULL  # the entry is in the transaction of another producer
    return queue
