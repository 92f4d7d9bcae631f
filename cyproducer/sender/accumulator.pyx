"""RecordAccumulator: the batches of all front-ends by partition, until they are drained.

The submission rings say what happened, the slot tables are the truth. Everything that a front-end can write
is read once, checked against private geometry, and kept in private memory; a front-end that breaks the
protocol is condemned, which costs it its own records at the most.
"""

from libc.stdint cimport INT32_MAX, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, qsort, realloc
from libc.string cimport memset

from cyproducer.record.merge cimport scan_records
from cyproducer.shm.atomics cimport load_relaxed, load_relaxed32, load_relaxed_i32
from cyproducer.shm.crash cimport CRASHPOINT
from cyproducer.shm.layout cimport (
    CYP_NONE,
    CYP_REVOKED,
    CYP_SUBMIT_FULL,
    CYP_SUBMIT_OPEN,
    CYP_TAKEN,
    CYP_UNIT_BYTES,
    cyp_slot_row,
)
from cyproducer.shm.ring cimport submit_generation, submit_kind, submit_slot, submit_tail, submit_take
from cyproducer.shm.slot cimport slot_hinted, slot_next, slot_peek, slot_revoke, slot_seal, word_is_live, word_is_taken
from cyproducer.shm.word cimport word_bytes, word_continues, word_count, word_generation, word_state
from cyproducer.sender.breadcrumb cimport touch, untouch
from cyproducer.sender.model cimport (
    BATCH_CLOSED,
    BATCH_DUE,
    BATCH_LINGERING,
    BATCH_NONE,
    CONDEMNED_CHAIN,
    CONDEMNED_HINT,
    CONDEMNED_RING,
    EVENT_CONDEMNED,
    Batch,
    Core,
    FrontEnd,
    Partition,
    Queue,
)
from cyproducer.sender.outcomes cimport (
    CODE_INVALID_BATCH,
    CODE_UNKNOWN_PARTITION,
    age_append,
    finish,
    push_event,
)
from cyproducer.sender.partitions cimport note_timer, relist


cdef enum:
    HINTS_PER_TURN = 16384          # what more a front-end has submitted waits, that others' turn comes


cdef void condemn(Core *core, FrontEnd *front_end, int why) noexcept nogil:
    """The front-end broke the protocol: nothing of it is looked at again; Python detaches it."""
    if not front_end.condemned:
        front_end.condemned = True
        push_event(core, EVENT_CONDEMNED, 0, why, front_end.attach_id)


cdef bint anything_submitted(Core *core) noexcept nogil:
    """The last look before sleeping."""
    cdef FrontEnd *front_end = core.front_ends
    while front_end != NULL:
        if not front_end.detached and not front_end.condemned:
            if submit_tail(&front_end.header.submit_tail) != front_end.submit_head:
                return True
        front_end = front_end.next
    return False


cdef void accumulate(Core *core) noexcept nogil:
    """Takes what every front-end has submitted."""
    cdef FrontEnd *front_end = core.front_ends
    cdef FrontEnd *following
    cdef uint64_t tail, entry, _taken
    while front_end != NULL:
        following = front_end.next
        if not front_end.detached and not front_end.condemned:
            tail = submit_tail(&front_end.header.submit_tail)
            if tail != front_end.submit_head:
                touch(core, front_end, CYP_NONE)
            if tail - front_end.submit_head > front_end.submit_mask + 1:
                condemn(core, front_end, CONDEMNED_RING)
            for _taken in range(min(tail - front_end.submit_head, <uint64_t>HINTS_PER_TURN)):
                if front_end.condemned:
                    break
                entry = submit_take(front_end.submit_ring, front_end.submit_mask, front_end.submit_head)
                front_end.submit_head += 1
                _take_hint(core, front_end, submit_kind(entry), submit_slot(entry), submit_generation(entry))
                CRASHPOINT(b"accumulate.hint-taken")
            front_end.outcomes_header.submit_head = front_end.submit_head
        front_end = following
    untouch(core)


cdef void _take_hint(Core *core, FrontEnd *front_end, uint32_t kind, uint32_t slot, uint32_t generation) noexcept nogil:
    cdef Batch *batch
    if slot >= front_end.slot_count or (kind != CYP_SUBMIT_OPEN and kind != CYP_SUBMIT_FULL):
        condemn(core, front_end, CONDEMNED_HINT)
        return
    touch(core, front_end, slot)
    batch = &front_end.batches[slot]
    if batch.state == BATCH_NONE:
        batch = admit(core, front_end, slot, generation, False)
        if batch == NULL:
            return
    elif batch.generation != generation:
        return  # of a batch that was completed before its hint was read
    if kind == CYP_SUBMIT_FULL and (batch.state == BATCH_LINGERING or batch.state == BATCH_DUE):
        seal(core, batch)


cdef Batch *admit(Core *core, FrontEnd *front_end, uint32_t slot, uint32_t generation, bint adopted) noexcept nogil:
    """A batch that the sender has not seen yet enters its partition's queue; NULL if there is none.

    `adopted`: a former sender may have seen it, and sealed it.
    """
    cdef cyp_slot_row *row = &front_end.rows[slot]
    cdef uint64_t word = slot_peek(row)
    cdef uint32_t topic = load_relaxed32(&row.topic)  # each field once: the owner may change it at any time
    cdef int32_t partition_number = load_relaxed_i32(&row.partition)
    cdef Batch *batch
    cdef Queue *queue
    if not word_is_live(word, generation) and not (adopted and word_is_taken(word, generation)):
        return NULL
    batch = enter(core, front_end, slot, generation, adopted)
    if topic >= core.topic_count or partition_number < 0 or partition_number >= core.topics[topic].partition_count:
        _linger_append(front_end, batch)
        seal(core, batch)
        if batch.state != BATCH_NONE:
            finish(core, batch, -1, -1, CODE_UNKNOWN_PARTITION)
        return NULL
    queue = queue_for(front_end, core.topics[topic].partitions[partition_number])
    if queue == NULL:
        finish(core, batch, -1, -1, CODE_INVALID_BATCH)
        return NULL
    core.topics[topic].used = True
    if core.topics[topic].unled or (queue.partition.leader == NULL and queue.partition.ring == NULL):
        core.topics[topic].unled = False
        core.refresh_wanted = True
    _enqueue(queue, batch)
    _linger_append(front_end, batch)
    CRASHPOINT(b"accumulate.admitted")
    return batch


cdef Batch *enter(Core *core, FrontEnd *front_end, uint32_t slot, uint32_t generation, bint adopted) noexcept nogil:
    """The private picture of the batch that starts in `slot`: LINGERING, live, without a result.

    It expires by its age since it was opened: a sender may have been stopped, or killed again and again, and what is
    late is not to be sent. It lingers from now on, an adopted one from its opening. The owner can only make its own
    batches older.
    """
    cdef cyp_slot_row *row = &front_end.rows[slot]
    cdef uint64_t opened_ns = load_relaxed(&row.opened_ns)
    cdef uint64_t waited_ns = load_relaxed32(&row.waited_ms) * <uint64_t>1000000   # in a former arena
    cdef Batch *batch = &front_end.batches[slot]
    memset(batch, 0, sizeof(Batch))
    batch.state = BATCH_LINGERING
    batch.slot = slot
    batch.generation = generation
    batch.open_seq = load_relaxed(&row.open_seq)
    batch.base_timestamp = <int64_t>load_relaxed(<uint64_t *>&row.base_timestamp)
    batch.max_timestamp = batch.base_timestamp
    batch.born_ns = opened_ns if 0 < opened_ns < core.now else core.now
    batch.created_ns = batch.born_ns if adopted else core.now
    batch.born_ns -= min(batch.born_ns, waited_ns)
    batch.created_ns -= min(batch.created_ns, waited_ns)
    batch.front_end = front_end
    front_end.live += 1
    core.live_batches += 1
    age_append(front_end, batch)
    return batch


cdef Queue *queue_for(FrontEnd *front_end, Partition *partition) noexcept nogil:
    cdef uint32_t index = partition.index, capacity
    cdef Queue **grown
    if index >= front_end.queue_capacity:
        capacity = 2 * (index + 32)
        grown = <Queue **>realloc(front_end.queues, capacity * sizeof(Queue *))
        if grown == NULL:
            return NULL
        memset(grown + front_end.queue_capacity, 0, (capacity - front_end.queue_capacity) * sizeof(Queue *))
        front_end.queues = grown
        front_end.queue_capacity = capacity
    if front_end.queues[index] == NULL:
        front_end.queues[index] = <Queue *>calloc(1, sizeof(Queue))
        if front_end.queues[index] != NULL:
            front_end.queues[index].front_end = front_end
            front_end.queues[index].partition = partition
    return front_end.queues[index]


cdef void _ring_insert(Queue *queue) noexcept nogil:
    """Into the partition's ring, behind all that are in it."""
    cdef Partition *partition = queue.partition
    queue.deficit = 0
    if partition.ring == NULL:
        queue.next = queue
        queue.previous = queue
        partition.ring = queue
    else:
        queue.next = partition.ring
        queue.previous = partition.ring.previous
        partition.ring.previous.next = queue
        partition.ring.previous = queue
    partition.queue_count += 1
    if queue.offender and not partition.penalty:
        partition.suspects = True


cdef void _ring_remove(Queue *queue) noexcept nogil:
    cdef Partition *partition = queue.partition
    if queue.next == queue:
        partition.ring = NULL
    else:
        queue.previous.next = queue.next
        queue.next.previous = queue.previous
        if partition.ring == queue:
            partition.ring = queue.next
    queue.next = NULL
    queue.previous = NULL
    partition.queue_count -= 1


cdef void place_last(Queue *queue, Queue *first) noexcept nogil:
    """The partition's ring begins with `first`, and ends with `queue`, another one."""
    cdef int64_t deficit = queue.deficit
    _ring_remove(queue)
    queue.partition.ring = first
    _ring_insert(queue)
    queue.deficit = deficit


cdef void _enqueue(Queue *queue, Batch *batch) noexcept nogil:
    batch.queue = queue
    batch.next = NULL
    if queue.head == NULL:
        queue.head = batch
        _ring_insert(queue)
    else:
        queue.tail.next = batch
        batch.previous = queue.tail
        if queue.tail.state == BATCH_LINGERING:
            _due(queue.tail)  # its successor is there: its owner will not add to it
    queue.tail = batch
    queue.length += 1
    relist(queue.partition)


cdef Batch *take_head(Queue *queue) noexcept nogil:
    """Takes the head, which must be CLOSED, out of its queue."""
    cdef Batch *batch = queue.head
    queue.head = batch.next
    batch.next = NULL
    queue.length -= 1
    if queue.head == NULL:
        queue.tail = NULL
        _ring_remove(queue)
    else:
        queue.head.previous = NULL
    queue.partition.ready -= 1
    relist(queue.partition)
    return batch


cdef void remove(Queue *queue, Batch *batch) noexcept nogil:
    """Takes a CLOSED batch out of wherever it stands in its queue."""
    if queue.head == batch:
        take_head(queue)
        return
    batch.previous.next = batch.next
    if batch.next != NULL:
        batch.next.previous = batch.previous
    else:
        queue.tail = batch.previous
    batch.next = NULL
    batch.previous = NULL
    queue.length -= 1
    queue.partition.ready -= 1
    relist(queue.partition)


cdef void put_back(Batch *batch) noexcept nogil:
    """A batch that was assigned goes back to the front of its queue."""
    cdef Queue *queue = batch.queue
    batch.state = BATCH_CLOSED
    batch.wire = NULL
    batch.next = queue.head
    if queue.head == NULL:
        queue.tail = batch
        queue.head = batch
        _ring_insert(queue)
    else:
        queue.head.previous = batch
    queue.head = batch
    queue.length += 1
    queue.partition.ready += 1
    relist(queue.partition)


cdef void move_queue(Queue *queue, Partition *lane) noexcept nogil:
    """The queue goes on in the other lane of its partition; none of its batches may be assigned."""
    cdef Partition *left = queue.partition
    cdef Batch *batch = queue.head
    cdef uint32_t ready = 0
    while batch != NULL:
        ready += batch.state != BATCH_LINGERING
        batch = batch.next
    if queue.head != NULL:
        _ring_remove(queue)
    left.ready -= ready
    relist(left)
    queue.partition = lane
    if queue.head != NULL:
        _ring_insert(queue)
    lane.ready += ready
    relist(lane)


cdef void _linger_append(FrontEnd *front_end, Batch *batch) noexcept nogil:
    batch.linger_previous = front_end.linger_tail
    batch.linger_next = NULL
    if front_end.linger_tail != NULL:
        front_end.linger_tail.linger_next = batch
    else:
        front_end.linger_head = batch
    front_end.linger_tail = batch


cdef void _linger_unlink(FrontEnd *front_end, Batch *batch) noexcept nogil:
    if batch.linger_previous != NULL:
        batch.linger_previous.linger_next = batch.linger_next
    else:
        front_end.linger_head = batch.linger_next
    if batch.linger_next != NULL:
        batch.linger_next.linger_previous = batch.linger_previous
    else:
        front_end.linger_tail = batch.linger_previous


cdef void _due(Batch *batch) noexcept nogil:
    _linger_unlink(batch.front_end, batch)
    batch.state = BATCH_DUE
    batch.queue.partition.ready += 1
    relist(batch.queue.partition)


cdef bint seal(Core *core, Batch *batch) noexcept nogil:
    """Closes an open batch for good and measures its chain; False if it was malformed and is finished.

    The count and bytes of each chunk are read once and kept privately, so that nothing the front-end
    stores later changes what is sent; a chunk is held until its batch is released, so that no other chain
    that leads to it does.
    """
    cdef FrontEnd *front_end = batch.front_end
    cdef uint32_t slot = batch.slot, chunks = 0
    cdef uint64_t size = 0, count = 0
    cdef uint64_t word, room
    cdef int64_t max_timestamp = batch.base_timestamp
    if batch.state == BATCH_LINGERING:
        _linger_unlink(front_end, batch)
        if batch.queue != NULL:
            batch.queue.partition.ready += 1
    touch(core, front_end, slot)
    batch.state = BATCH_CLOSED
    if batch.queue != NULL:
        relist(batch.queue.partition)
    while True:
        if front_end.chunk_held[slot]:
            return _malformed(core, batch)
        room = (front_end.slot_count - slot) * <uint64_t>CYP_UNIT_BYTES
        word = slot_seal(&front_end.rows[slot], chunks == 0, batch.generation, room)
        if word_state(word) == CYP_TAKEN:
            CRASHPOINT(b"seal.taken")
        chunks += 1
        size += word_bytes(word)
        count += word_count(word)
        if word == 0 or chunks > front_end.slot_count or size > core.max_request_size + 65536 or count > INT32_MAX:
            return _malformed(core, batch)
        if not _chunk_max_timestamp(front_end, batch, slot, word, &max_timestamp):
            return _malformed(core, batch)
        front_end.chunk_held[slot] = 1
        batch.chunks = chunks
        front_end.chunk_bytes[slot] = word_bytes(word)
        front_end.chunk_count[slot] = word_count(word)
        front_end.chunk_next[slot] = CYP_NONE
        if not word_continues(word):
            break
        front_end.chunk_next[slot] = slot_next(&front_end.rows[slot])
        slot = front_end.chunk_next[slot]
        if slot >= front_end.slot_count:
            return _malformed(core, batch)
    batch.count = <uint32_t>count
    batch.bytes = <uint32_t>size
    batch.max_timestamp = max_timestamp
    front_end.bytes_live += size
    CRASHPOINT(b"seal.measured")
    if count == 0:
        return _malformed(core, batch)
    return True


cdef bint _chunk_max_timestamp(
    FrontEnd *front_end, Batch *batch, uint32_t slot, uint64_t word, int64_t *maximum
) noexcept nogil:
    """The owner's hint if it is about the records that the word counts; else the records are walked."""
    cdef int64_t found = 0, delta = 0
    cdef const uint8_t *chunk
    if word_count(word) == 0:
        return True
    if not slot_hinted(&front_end.rows[slot], word, &found):
        chunk = front_end.chunks + <uint64_t>slot * CYP_UNIT_BYTES
        if scan_records(chunk, word_bytes(word), word_count(word), &delta) < 0:
            return False
        # of a liar's timestamps the sum may wrap
        found = <int64_t>(<uint64_t>batch.base_timestamp + <uint64_t>delta)
    if found > maximum[0]:
        maximum[0] = found
    return True


cdef bint _malformed(Core *core, Batch *batch) noexcept nogil:
    cdef FrontEnd *front_end = batch.front_end
    if batch.queue != NULL:
        remove(batch.queue, batch)
    condemn(core, front_end, CONDEMNED_CHAIN)
    finish(core, batch, -1, -1, CODE_INVALID_BATCH)
    return False


cdef void linger(Core *core) noexcept nogil:
    """Linger times that are over; notes the next one."""
    cdef FrontEnd *front_end = core.front_ends
    cdef Batch *batch
    while front_end != NULL:
        batch = front_end.linger_head
        while batch != NULL and batch.created_ns + front_end.linger_ns <= core.now:
            _due(batch)
            batch = front_end.linger_head
        if batch != NULL:
            note_timer(core, batch.created_ns + front_end.linger_ns)
        front_end = front_end.next


cdef int _by_open_seq(const void *a, const void *b) noexcept nogil:
    cdef uint64_t left = (<const uint64_t *>a)[0], right = (<const uint64_t *>b)[0]
    return (left > right) - (left < right)


cdef void scan(Core *core, FrontEnd *front_end) noexcept nogil:
    """The end of a front-end: everything that it committed is taken, known or not; nothing can be opened any more."""
    cdef uint32_t slot, found = 0
    cdef uint64_t word
    cdef Batch *batch
    # pairs (open_seq, slot) of batches that were committed but not announced
    cdef uint64_t *unknown = <uint64_t *>calloc(front_end.slot_count, 2 * sizeof(uint64_t))
    for slot in range(front_end.slot_count):
        word = slot_revoke(&front_end.rows[slot])
        if word_state(word) == CYP_REVOKED:
            CRASHPOINT(b"reclaim.slot-revoked")
        if not word_is_live(word, word_generation(word)) or unknown == NULL:
            continue
        if front_end.batches[slot].state == BATCH_NONE:
            unknown[2 * found] = load_relaxed(&front_end.rows[slot].open_seq)
            unknown[2 * found + 1] = slot
            found += 1
    CRASHPOINT(b"reclaim.scanned")
    qsort(unknown, found, 2 * sizeof(uint64_t), _by_open_seq)
    for slot in range(found):
        word = slot_peek(&front_end.rows[unknown[2 * slot + 1]])
        admit(core, front_end, <uint32_t>unknown[2 * slot + 1], word_generation(word), False)
    free(unknown)
    while front_end.linger_head != NULL:
        batch = front_end.linger_head
        seal(core, batch)
