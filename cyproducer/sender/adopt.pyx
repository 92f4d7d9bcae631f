"""Takeover: the private picture of a sender, made again from what one that was killed has left.

What is known of it: the state region (entries, contributors, identities of partitions, topics), each front-end's
slot table and its outcome ring. The order in which they are read matters:

 1. parts of an entry in whose place they were put: kept if it is SPLIT, else they never were
 2. entries in order: RESOLVED ones are published (what its owner has heard already is in the ring) and freed,
    ASSIGNED ones wait to be sent, as unsure as they were; their batches are sealed and measured again
 3. SPLIT entries: who is in none of the parts gets his chunks back, or is queued again
 4. partitions: the next sequence, and whether the epoch must be raised
 5. slot tables: what was committed and belongs to no entry is queued by open_seq

Everything stored here is a store that a living sender makes too, so that a successor may be killed at any of
them and the next one starts from there.
"""

from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, qsort

from cyproducer.sender.accumulator cimport admit, condemn, enter, move_queue, queue_for, scan, seal
from cyproducer.sender.attaching cimport end_front_end
from cyproducer.sender.breadcrumb cimport touch, untouch
from cyproducer.sender.entries cimport (
    demand_epoch,
    drop_hopeless,
    free_wire,
    give_up,
    let_go,
    link_before,
    publish_resolved,
)
from cyproducer.sender.model cimport (
    AHEAD_NOT,
    BATCH_ASSIGNED,
    BATCH_DUE,
    BATCH_LINGERING,
    BATCH_NONE,
    CONDEMNED_CHAIN,
    CONDEMNED_CHANGED,
    WIRE_WAITING,
    Batch,
    Core,
    FrontEnd,
    Partition,
    Published,
    Queue,
    Wire,
)
from cyproducer.sender.outcomes cimport (
    CODE_INVALID_BATCH,
    CODE_OUTCOME_UNKNOWN,
    age_append,
    age_unlink,
    finish,
    note_failure,
)
from cyproducer.sender.penalty cimport convict
from cyproducer.sender.topics cimport restore_partition, restore_topic
from cyproducer.shm.clock cimport monotonic_ns
from cyproducer.shm.crash cimport CRASHPOINT
from cyproducer.shm.entry cimport entry_enter
from cyproducer.shm.layout cimport (
    CYP_BLOCK_BYTES,
    CYP_BODIES_MAX,
    CYP_CONTRIBUTOR_REPORTED,
    CYP_CONTRIBUTORS_MAX,
    CYP_CONTROL_DETACHED,
    CYP_ENTRIES_MAX,
    CYP_ENTRY_ASSIGNED,
    CYP_ENTRY_FREE,
    CYP_ENTRY_HEIR,
    CYP_ENTRY_ORDER_STEP,
    CYP_ENTRY_PREPARED,
    CYP_ENTRY_RESOLVED,
    CYP_ENTRY_SPLIT,
    CYP_ENTRY_UNSURE,
    CYP_LAYOUT_VERSION,
    CYP_NONE,
    CYP_OPEN,
    CYP_OUTCOME_RELEASE,
    CYP_OUTCOME_RESULT,
    CYP_OUTCOMES_MAGIC,
    CYP_PARTITIONS_MAX,
    CYP_STATE_MAGIC,
    CYP_TOPICS_MAX,
    cyp_contributor,
    cyp_entry,
    cyp_identity,
    cyp_outcome,
    cyp_outcomes_header,
    cyp_slot_row,
    cyp_state_header,
)
from cyproducer.shm.ring cimport outcome_take, submit_tail
from cyproducer.shm.slot cimport slot_done, slot_next, slot_peek, word_is_live, word_is_taken
from cyproducer.shm.word cimport word_continues, word_count, word_generation, word_state


ctypedef struct Ranked:
    # something to be taken in the order of `rank`
    uint64_t rank
    uint64_t index


ctypedef struct Owners:
    # the front-ends by attach id, ascending
    FrontEnd **front_ends
    uint32_t count


cdef int _by_rank(const void *a, const void *b) noexcept nogil:
    cdef uint64_t left = (<const Ranked *>a).rank, right = (<const Ranked *>b).rank
    return (left > right) - (left < right)


cdef int _by_attach_id(const void *a, const void *b) noexcept nogil:
    cdef uint64_t left = (<FrontEnd **>a)[0].attach_id, right = (<FrontEnd **>b)[0].attach_id
    return (left > right) - (left < right)


cdef int _by_age(const void *a, const void *b) noexcept nogil:
    cdef uint64_t left = (<Batch **>a)[0].born_ns, right = (<Batch **>b)[0].born_ns
    return (left > right) - (left < right)


# ---------------------------------------------------------------- tables


cdef object adopt_tables(Core *core):
    """Topics, partitions and the producer id. Raises ValueError for what is no state of this layout."""
    cdef cyp_state_header *header = core.state_header
    cdef uint32_t index
    if header.magic != CYP_STATE_MAGIC or header.layout_version != CYP_LAYOUT_VERSION:
        raise ValueError("the descriptor holds no sender's state of this layout")
    if header.topic_count > CYP_TOPICS_MAX or header.partition_count > CYP_PARTITIONS_MAX:
        raise ValueError(f"{header.topic_count} topics and {header.partition_count} partitions in a sender's state")
    for index in range(header.topic_count):
        restore_topic(core, index)
    for index in range(header.partition_count):
        restore_partition(core, index)
    for index in range(core.topic_count):
        if 0 <= core.sticky[index] < core.topics[index].partition_count:
            core.topics[index].sticky = core.sticky[index]
    core.producer_id = header.producer_id
    core.producer_epoch = header.producer_epoch


cdef object adopt_front_end(Core *core, FrontEnd *front_end, bint ended):
    """Reads how far a front-end's rings were. Raises ValueError for outcomes that are not this front-end's."""
    cdef cyp_outcomes_header *header = front_end.outcomes_header
    cdef uint64_t entries = front_end.outcome_mask + 1, position
    cdef cyp_outcome outcome
    cdef Published *published
    if header.magic != CYP_OUTCOMES_MAGIC or header.layout_version != CYP_LAYOUT_VERSION \
            or header.slot_count != front_end.slot_count or header.attach_id != front_end.attach_id:
        raise ValueError(f"the outcomes are not those of front-end {front_end.attach_id}")
    front_end.published = <Published *>calloc(front_end.slot_count, sizeof(Published))
    if front_end.published == NULL:
        raise MemoryError
    front_end.detached = ended or header.control == CYP_CONTROL_DETACHED
    # before the slot table is read: what is announced from now on is taken as a hint
    front_end.submit_head = submit_tail(&front_end.header.submit_tail)
    front_end.outcome_tail = header.outcome_tail
    # The oldest place is left out: the next outcome may be half written there. If the ring was full, the batch of
    # the outcome that it held has a younger one.
    position = front_end.outcome_tail - entries + 1 if front_end.outcome_tail >= entries else 0
    while position != front_end.outcome_tail:
        outcome_take(front_end.outcome_ring, front_end.outcome_mask, position, &outcome)
        position += 1
        if outcome.slot < front_end.slot_count:
            published = &front_end.published[outcome.slot]
            if published.generation != outcome.generation:
                published.generation = outcome.generation
                published.flags = 0
            published.flags |= outcome.flags


cdef inline uint32_t _published(FrontEnd *front_end, uint32_t slot, uint32_t generation) noexcept nogil:
    """Which outcomes of a batch its owner can have seen."""
    cdef Published *published = &front_end.published[slot]
    return published.flags if published.generation == generation else 0


# ---------------------------------------------------------------- work


cdef object adopt_work(Core *core):
    """Everything that was on its way; after all front-ends were adopted."""
    cdef Owners owners
    cdef Ranked *ranked = <Ranked *>calloc(CYP_ENTRIES_MAX, sizeof(Ranked))
    cdef uint32_t count
    owners.front_ends = <FrontEnd **>calloc(core.front_end_count + 1, sizeof(FrontEnd *))
    if ranked == NULL or owners.front_ends == NULL:
        free(ranked)
        free(owners.front_ends)
        raise MemoryError
    core.now = monotonic_ns()
    try:
        _list_owners(core, &owners)
        _settle_parts(core)
        count = _rank_entries(core, ranked)
        _reserve_rows(core)
        _adopt_entries(core, &owners, ranked, count)
        for index in range(core.partition_count):
            _settle_partition(core, core.partitions[index])
        for index in range(owners.count):
            _adopt_slots(core, owners.front_ends[index])
        for index in range(core.partition_count):
            drop_hopeless(core, core.partitions[index])
        for index in range(owners.count):
            _release_guard(core, owners.front_ends[index])
    finally:
        untouch(core)
        free(ranked)
        free(owners.front_ends)


cdef void _list_owners(Core *core, Owners *owners) noexcept nogil:
    """By attach id; each with one live batch that is none, so that it does not end in the middle of it all."""
    cdef FrontEnd *front_end = core.front_ends
    owners.count = 0
    while front_end != NULL:
        front_end.live += 1
        owners.front_ends[owners.count] = front_end
        owners.count += 1
        front_end = front_end.next
    qsort(owners.front_ends, owners.count, sizeof(FrontEnd *), _by_attach_id)


cdef FrontEnd *_owner(Owners *owners, uint64_t attach_id) noexcept nogil:
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
    free(front_end.published)
    front_end.published = NULL
    front_end.live -= 1
    front_end.has_outcomes = not front_end.detached  # some may have been published and not announced
    if front_end.detached and front_end.live == 0:
        end_front_end(core, front_end)


cdef void _settle_parts(Core *core) noexcept nogil:
    """One word of the parent decides whether its parts are there."""
    cdef uint32_t index
    cdef cyp_entry *entry
    for index in range(CYP_ENTRIES_MAX):
        entry = &core.entries[index]
        if entry.state != CYP_ENTRY_PREPARED:
            continue
        if entry.parent < CYP_ENTRIES_MAX and core.entries[entry.parent].state == CYP_ENTRY_SPLIT:
            entry_enter(entry, CYP_ENTRY_ASSIGNED)
            CRASHPOINT(b"adopt.part-kept")
        else:
            entry_enter(entry, CYP_ENTRY_FREE)


cdef uint32_t _rank_entries(Core *core, Ranked *ranked) noexcept nogil:
    """The entries in use, in order; those that were SPLIT come after all others. Returns how many."""
    cdef uint32_t index, count = 0
    cdef uint64_t last = 0
    cdef cyp_entry *entry
    for index in range(CYP_ENTRIES_MAX):
        entry = &core.entries[index]
        if entry.state == CYP_ENTRY_FREE:
            continue
        if entry.partition >= core.partition_count or entry.state > CYP_ENTRY_SPLIT \
                or (entry.body != CYP_NONE and entry.body >= CYP_BODIES_MAX):
            entry_enter(entry, CYP_ENTRY_FREE)  # no sender writes such a one
            continue
        ranked[count].rank = entry.order | <uint64_t>(entry.state == CYP_ENTRY_SPLIT) << 63
        ranked[count].index = index
        last = max(last, entry.order)
        count += 1
    core.next_order = (last // CYP_ENTRY_ORDER_STEP + 1) * CYP_ENTRY_ORDER_STEP
    qsort(ranked, count, sizeof(Ranked), _by_rank)
    return count


cdef object _reserve_rows(Core *core):
    """The free lists of entries, contributors and bodies: all that no entry in use refers to."""
    cdef uint8_t *used = <uint8_t *>calloc(CYP_CONTRIBUTORS_MAX, 1)
    cdef uint8_t *bodies = <uint8_t *>calloc(CYP_BODIES_MAX, 1)
    cdef uint32_t index
    cdef uint32_t *link
    cdef cyp_entry *entry
    if used == NULL or bodies == NULL:
        free(used)
        free(bodies)
        raise MemoryError
    core.free_wire_count = core.free_contributor_count = core.free_body_count = 0
    for index in range(CYP_ENTRIES_MAX - 1, -1, -1):
        entry = &core.entries[index]
        if entry.state == CYP_ENTRY_FREE:
            core.free_wires[core.free_wire_count] = index
            core.free_wire_count += 1
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
            core.free_contributors[core.free_contributor_count] = index
            core.free_contributor_count += 1
    for index in range(CYP_BODIES_MAX - 1, -1, -1):
        if not bodies[index]:
            core.free_bodies[core.free_body_count] = index
            core.free_body_count += 1
    free(used)
    free(bodies)


cdef void _adopt_entries(Core *core, Owners *owners, Ranked *ranked, uint32_t count) noexcept nogil:
    cdef uint32_t at, state
    cdef Wire *wire
    for at in range(count):
        wire = &core.wires[ranked[at].index]
        state = wire.entry.state
        _restore_wire(core, wire)
        if state == CYP_ENTRY_SPLIT:
            _settle_split(core, owners, wire)
            free_wire(core, wire)
        else:
            _restore_contributors(core, owners, wire)
            link_before(wire.partition, wire, NULL)
            if state == CYP_ENTRY_RESOLVED:
                publish_resolved(core, wire)
            elif not _can_go_on(core, wire):
                give_up(core, wire, CODE_OUTCOME_UNKNOWN)
        CRASHPOINT(b"adopt.entry-taken")


cdef bint _can_go_on(Core *core, Wire *wire) noexcept nogil:
    """May the entry be sent? acks=0 is at most once; retries count for those whom a duplicate would hurt."""
    if wire.body == NULL and (wire.contributor_count == 0 or core.contributor_batches[wire.entry.contributors] == NULL):
        return False  # its chunks went with a front-end that cannot be adopted
    if not wire.unsure:
        return True
    return wire.acks != 0 and (wire.idempotent or wire.entry.attempts <= wire.retries)


cdef void _restore_wire(Core *core, Wire *wire) noexcept nogil:
    cdef cyp_entry *entry = wire.entry
    wire.partition = core.partitions[entry.partition]
    wire.request = NULL
    wire.state = WIRE_WAITING
    wire.body = NULL if entry.body == CYP_NONE else core.bodies + <uint64_t>entry.body * CYP_BLOCK_BYTES
    wire.contributor_count = 0
    wire.unreported = 0
    wire.retries = 0x7fffffff
    wire.acks = entry.acks
    wire.idempotent = entry.producer_id >= 0
    wire.unsure = (entry.flags & CYP_ENTRY_UNSURE) != 0
    wire.heir = (entry.flags & CYP_ENTRY_HEIR) != 0
    wire.stamped = entry.attempts > 0
    wire.sent = wire.unsure
    wire.packed = NULL
    wire.codec = 0
    wire.copy = NULL
    wire.corrupt = 0
    wire.ahead = AHEAD_NOT
    core.acks_seen |= <uint8_t>(1 << (entry.acks + 1))
    if wire.partition.topic.unled:
        wire.partition.topic.used = True
        core.refresh_wanted = True


cdef void _restore_contributors(Core *core, Owners *owners, Wire *wire) noexcept nogil:
    """Finds the batches again; who has none any more leaves an empty row, since the records of the others count."""
    cdef cyp_contributor *contributor
    cdef uint32_t row = wire.entry.contributors
    cdef FrontEnd *front_end
    cdef Batch *batch
    while row != CYP_NONE:
        contributor = &core.contributors[row]
        front_end = _owner(owners, contributor.attach_id)
        batch = NULL if front_end == NULL else _restore_batch(core, front_end, wire, contributor)
        core.contributor_batches[row] = batch
        wire.contributor_count += 1
        if batch != NULL:
            wire.unreported += not batch.reported
            if front_end.retries < wire.retries:
                wire.retries = front_end.retries
            wire.codec = front_end.codec  # what was as small as the broker takes must be so again
            wire.level = front_end.level
        elif front_end == NULL and wire.entry.state == CYP_ENTRY_ASSIGNED:
            note_failure(
                core, contributor.attach_id, wire.partition.topic.number, CODE_OUTCOME_UNKNOWN, contributor.count
            )
        row = contributor.next


cdef void _settle_split(Core *core, Owners *owners, Wire *wire) noexcept nogil:
    """Who is in a part was found there. Of the others, some have had their result and are owed their chunks; the
    rest were refused: nobody told them yet. If no attempt is unsure, they are queued like what was never sent.
    """
    cdef cyp_contributor *contributor
    cdef uint32_t row = wire.entry.contributors
    cdef FrontEnd *front_end
    while row != CYP_NONE:
        contributor = &core.contributors[row]
        front_end = _owner(owners, contributor.attach_id)
        if front_end != NULL and (wire.unsure or _is_reported(front_end, contributor)):
            core.contributor_batches[row] = _restore_batch(core, front_end, wire, contributor)
            let_go(core, row, -1, -1, CODE_OUTCOME_UNKNOWN)
        row = contributor.next


cdef inline bint _is_reported(FrontEnd *front_end, cyp_contributor *contributor) noexcept nogil:
    if contributor.flags & CYP_CONTRIBUTOR_REPORTED:
        return True
    return contributor.slot < front_end.slot_count \
        and _published(front_end, contributor.slot, contributor.generation) & CYP_OUTCOME_RESULT


cdef Batch *_restore_batch(
    Core *core, FrontEnd *front_end, Wire *wire, cyp_contributor *contributor
) noexcept nogil:
    """The batch of an entry, measured again; NULL if it is over, or not what it was."""
    cdef cyp_slot_row *row
    cdef uint64_t word
    cdef Batch *batch
    if contributor.slot >= front_end.slot_count:
        return NULL
    touch(core, front_end, contributor.slot)
    row = &front_end.rows[contributor.slot]
    word = slot_peek(row)
    if not word_is_live(word, contributor.generation) and not word_is_taken(word, contributor.generation):
        return NULL  # its owner has freed it
    if _published(front_end, contributor.slot, contributor.generation) & CYP_OUTCOME_RELEASE:
        slot_done(row, contributor.generation)
        return NULL
    if front_end.batches[contributor.slot].state != BATCH_NONE:
        return NULL  # it is in another entry
    batch = enter(core, front_end, contributor.slot, contributor.generation, True)
    batch.state = BATCH_DUE
    if not seal(core, batch):
        return NULL
    batch.queue = _queue_in(front_end, wire.partition)
    if batch.queue == NULL or batch.count != contributor.count or (
        wire.body == NULL and wire.entry.state == CYP_ENTRY_ASSIGNED and batch.bytes != wire.entry.length
    ):
        condemn(core, front_end, CONDEMNED_CHANGED)
        finish(core, batch, -1, -1, CODE_INVALID_BATCH)
        return NULL
    batch.state = BATCH_ASSIGNED
    batch.wire = wire
    if _is_reported(front_end, contributor):
        batch.reported = True
        age_unlink(front_end, batch)
        contributor.flags |= CYP_CONTRIBUTOR_REPORTED
    return batch


cdef Queue *_queue_in(FrontEnd *front_end, Partition *lane) noexcept nogil:
    """The queue for a partition, in the lane where an entry of it was found; NULL without memory."""
    cdef Queue *queue = queue_for(front_end, lane.twin if lane.penalty else lane)
    if queue != NULL and lane.penalty and queue.partition != lane:
        convict(queue)
        move_queue(queue, lane)
    return queue


cdef void _settle_partition(Core *core, Partition *partition) noexcept nogil:
    """The next sequence. An epoch that was being begun, or a gap, ends in one more epoch."""
    cdef cyp_identity *identity = &partition.row.identity[partition.row.current]
    cdef uint64_t end = 0
    cdef bint bump = identity.bumping != 0
    cdef Wire *wire = partition.wire_head
    # one until the broker has answered: nobody knows for how long this partition was silent
    partition.acknowledged = False
    partition.next_sequence = identity.acked_end
    while wire != NULL:
        if wire.idempotent:
            if wire.entry.producer_id != identity.producer_id or wire.entry.producer_epoch != identity.producer_epoch \
                    or wire.entry.base_sequence < end or wire.entry.base_sequence > partition.next_sequence:
                bump = True
            end = wire.entry.base_sequence + wire.entry.count
            partition.next_sequence = max(partition.next_sequence, end)
        wire = wire.next
    if bump:
        demand_epoch(partition)


cdef object _adopt_slots(Core *core, FrontEnd *front_end):
    """Queues what was committed and is in no entry, by open_seq; an ended front-end's is closed.

    Its owner may go on meanwhile: of two batches that it opens now, a single look at the table can find the second and
    miss the first. So a first look says up to where it had come; what is older is seen by a second one, what is younger
    is left to the hints, which were not read yet.
    """
    cdef Ranked *found = <Ranked *>calloc(front_end.slot_count, sizeof(Ranked))
    cdef uint32_t slot, count = 0, at
    cdef uint64_t youngest = 0, steps = 0
    if found == NULL:
        raise MemoryError
    for slot in range(front_end.slot_count):
        touch(core, front_end, slot)
        if _is_unassigned(front_end, slot):
            youngest = max(youngest, front_end.rows[slot].open_seq)
    for slot in range(front_end.slot_count):
        touch(core, front_end, slot)
        if _is_unassigned(front_end, slot) and front_end.rows[slot].open_seq <= youngest:
            found[count].rank = front_end.rows[slot].open_seq
            found[count].index = slot
            count += 1
    qsort(found, count, sizeof(Ranked), _by_rank)
    for at in range(count):
        if front_end.condemned:
            break
        _adopt_slot(core, front_end, <uint32_t>found[at].index, &steps)
        CRASHPOINT(b"adopt.batch-queued")
    free(found)
    if front_end.detached and not front_end.condemned:
        scan(core, front_end)
    if front_end.detached:
        front_end.outcomes_header.control = CYP_CONTROL_DETACHED
    front_end.outcomes_header.submit_head = front_end.submit_head
    _sort_by_age(front_end)


cdef bint _is_unassigned(FrontEnd *front_end, uint32_t slot) noexcept nogil:
    """Does a batch start here that holds records, is not over, and was not found by way of an entry?"""
    cdef uint64_t word = slot_peek(&front_end.rows[slot])
    cdef uint32_t generation = word_generation(word)
    if front_end.batches[slot].state != BATCH_NONE:
        return False
    if not word_is_live(word, generation) and not word_is_taken(word, generation):
        return False
    if _published(front_end, slot, word_generation(word)) & CYP_OUTCOME_RELEASE:
        slot_done(&front_end.rows[slot], word_generation(word))
        return False
    return word_state(word) != CYP_OPEN or word_count(word) > 0 or word_continues(word)


cdef void _adopt_slot(Core *core, FrontEnd *front_end, uint32_t slot, uint64_t *steps) noexcept nogil:
    cdef uint64_t word = slot_peek(&front_end.rows[slot])
    cdef Batch *batch
    touch(core, front_end, slot)
    batch = admit(core, front_end, slot, word_generation(word), True)
    # an open one lingers on; that another was closed may have been said in a hint that is over
    if batch != NULL and (batch.state == BATCH_LINGERING or batch.state == BATCH_DUE) \
            and not _is_open(front_end, slot, steps):
        seal(core, batch)
    if steps[0] > 2 * <uint64_t>front_end.slot_count:
        condemn(core, front_end, CONDEMNED_CHAIN)


cdef bint _is_open(FrontEnd *front_end, uint32_t slot, uint64_t *steps) noexcept nogil:
    """May the owner still add to the chain that starts here?

    `steps` counts the chunks of all chains. Each is in one, or, if it was used again meanwhile, in two: what exceeds
    that are chains that lead into each other.
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
        if slot >= front_end.slot_count:
            return False
    return False


cdef object _sort_by_age(FrontEnd *front_end):
    """expire() looks at the oldest first; they came in the order of entries and slots."""
    cdef Batch **batches = <Batch **>calloc(front_end.live + 1, sizeof(Batch *))
    cdef Batch *batch = front_end.age_head
    cdef uint32_t count = 0, index
    if batches == NULL:
        raise MemoryError
    while batch != NULL:
        batches[count] = batch
        count += 1
        batch = batch.age_next
    qsort(batches, count, sizeof(Batch *), _by_age)
    front_end.age_head = NULL
    front_end.age_tail = NULL
    for index in range(count):
        age_append(front_end, batches[index])
    free(batches)
