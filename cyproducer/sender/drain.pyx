"""Sender.sendProducerData: from what is ready to requests.

Fair over partitions: the ready ones of a node are a ring that goes on where the last request stopped (Kafka's
drainIndex): at the first one whose batch found no room in it, or no time to compress it. Fair over front-ends inside
one: deficit round robin over their queues, so that one's backlog of 32 MiB does not stand before another's record. A
small request takes along what still lingers, since sending it now costs no request more; but for full batches that
their owner is compressing.
"""

from libc.stdint cimport int16_t, int64_t, uint8_t, uint32_t, uint64_t

from cyproducer.shm.crash cimport CRASHPOINT
from cyproducer.shm.layout cimport CYP_BLOCK_BYTES, CYP_READY
from cyproducer.shm.slot cimport slot_glance
from cyproducer.shm.word cimport word_bytes, word_continues, word_state
from cyproducer.sender.accumulator cimport place_last, put_back, seal, take_head
from cyproducer.sender.connection cimport enqueue
from cyproducer.sender.entries cimport any_idempotent, assign, stamp
from cyproducer.sender.epoch cimport next_to_settle, settle_epoch, want_producer_id
from cyproducer.sender.model cimport (
    BATCH_CLOSED,
    BATCH_LINGERING,
    CONNECTION_CLOSED,
    CONNECTION_READY,
    DRAIN_ALL_BELOW_BYTES,
    EVENT_WORK,
    LIST_READY,
    MERGE_BELOW_BYTES,
    MERGE_MAX,
    UNRESOLVED_MAX,
    WIRE_IN_FLIGHT,
    WIRES_PER_REQUEST_MAX,
    Batch,
    Core,
    FrontEnd,
    Node,
    Partition,
    Queue,
    Request,
    Wire,
)
from cyproducer.sender.outcomes cimport push_event
from cyproducer.sender.packing cimport has_time, put_off, put_off_wire, wire_bytes
from cyproducer.sender.partitioner cimport drained
from cyproducer.sender.partitions cimport lane_producer_id, note_timer, relist
from cyproducer.sender.penalty cimport banish
from cyproducer.sender.poison cimport reject_changed
from cyproducer.sender.requests cimport produce_overhead, produce_request


cdef enum:
    QUANTUM_BYTES = 65536           # of the round robin: a batch of the default size
    # a producer that has been silent for this long may be unknown to the broker (producer.id.expiration.ms)
    IDLE_SECONDS = 3600


cdef bint drain(Core *core, Node *node) noexcept nogil:
    """Makes the requests that the node takes now; True if there is one to write."""
    cdef int16_t acks
    cdef uint32_t step
    if node.state != CONNECTION_READY:
        if node.state == CONNECTION_CLOSED and not node.work_reported and (node.ready_count or node.lingering_count):
            node.work_reported = True
            push_event(core, EVENT_WORK, node.index, 0, 0)
        return False
    if node.muted_until_ns > core.now:
        note_timer(core, node.muted_until_ns)
        return False
    for step in range(3):
        if node.out_head != NULL or node.in_flight >= core.max_in_flight or not node.ready_count:
            break
        acks = <int16_t>((node.acks_turn + step) % 3) - 1
        if core.acks_seen >> (acks + 1) & 1 and _drain_request(core, node, acks):
            node.acks_turn = <uint8_t>((node.acks_turn + step + 1) % 3)  # a backlog of one kind lets the others by
            return True
    return False


cdef bint saturated(Core *core) noexcept nogil:
    """Has every broker as much as it takes? Then no batch can go out before one of the sockets is ready."""
    cdef uint32_t index, full = 0
    cdef Node *node
    for index in range(core.node_count):
        node = core.nodes[index]
        if node.id < 0 and node.state == CONNECTION_CLOSED:
            continue
        if node.state != CONNECTION_READY or (node.out_head == NULL and node.in_flight < core.max_in_flight):
            return False
        full += 1
    return full > 0


cdef bint _drain_request(Core *core, Node *node, int16_t acks) noexcept nogil:
    cdef Wire *wires[WIRES_PER_REQUEST_MAX]
    cdef uint32_t count = 0
    cdef uint64_t size = 0
    cdef Request *request
    cdef uint32_t index
    _collect(core, node, acks, wires, &count, &size, False)
    if count == 0:
        return False
    if size < DRAIN_ALL_BELOW_BYTES:
        _collect(core, node, acks, wires, &count, &size, True)
    for index in range(count):
        wires[index].partition.collected = False
    request = produce_request(core, node, wires, count)
    if request == NULL:
        for index in range(count):
            relist(wires[index].partition)
        return False
    for index in range(count):
        wires[index].state = WIRE_IN_FLIGHT
        wires[index].request = request
        wires[index].partition.in_flight += 1
        wires[index].partition.waiting -= 1
        relist(wires[index].partition)
        drained(core, wires[index].partition, wires[index].entry.length)
    enqueue(node, request)
    CRASHPOINT(b"drain.queued")
    return True


cdef void _collect(
    Core *core, Node *node, int16_t acks, Wire **wires, uint32_t *count, uint64_t *size, bint lingering
) noexcept nogil:
    """Walks the ring of ready partitions, or of lingering ones, once around."""
    cdef uint32_t left = node.lingering_count if lingering else node.ready_count
    cdef uint64_t room
    cdef bint late
    cdef Partition *partition
    cdef Partition *first_late = NULL
    cdef Wire *wire
    while left and count[0] < WIRES_PER_REQUEST_MAX:
        left -= 1
        partition = node.lingering if lingering else node.ready
        if partition == NULL or size[0] >= (DRAIN_ALL_BELOW_BYTES if lingering else core.max_request_size):
            break
        if lingering:
            node.lingering = partition.next
        else:
            node.ready = partition.next
        # A wire that was collected still counts as waiting: the second walk would take it once more.
        if partition.collected:
            continue
        if partition.twin != NULL and partition.twin.collected:
            partition.owed = True
            continue
        room = core.max_request_size - size[0]
        wire = NULL
        late = False
        if partition.twin != NULL and partition.twin.owed:
            wire = _next_wire(core, partition.twin, acks, room, count[0] == 0, &late)
            partition.twin.owed = late and wire == NULL
        if wire == NULL and not late:
            wire = _next_wire(core, partition, acks, room, count[0] == 0, &late)
        if late and first_late == NULL and not lingering:
            first_late = partition
        if wire == NULL:
            continue
        if not stamp(core, wire):
            reject_changed(core, wire)
            continue
        wire.partition.collected = True
        wires[count[0]] = wire
        count[0] += 1
        size[0] += wire_bytes(wire) + produce_overhead(wire)
    if first_late != NULL and first_late.listed == LIST_READY and first_late.leader == node:
        node.ready = first_late


cdef Wire *_next_wire(
    Core *core, Partition *partition, int16_t acks, uint64_t room, bint alone, bint *late
) noexcept nogil:
    """The partition's next wire for a request with `room` bytes; NULL: not now. `alone`: it may exceed the room.

    `late` becomes true where one could go but for the room, or for the time that compressing it takes.
    """
    cdef Wire *wire
    cdef bint settling
    if partition.retry_at_ns > core.now:
        note_timer(core, partition.retry_at_ns)
        return NULL
    if partition.suspects:
        banish(core, partition)
    settling = partition.bumping and not settle_epoch(core, partition)
    if settling or partition.waiting:
        # retries go singly and in order: the broker must never see a later sequence first
        if partition.in_flight:
            return NULL
        wire = next_to_settle(partition) if settling else partition.wire_head
        if wire == NULL or wire.acks != acks:
            return NULL
        late[0] = not _fits(wire, room, alone) or put_off_wire(core, wire)
        return NULL if late[0] else wire
    if partition.acknowledged and core.now - partition.acknowledged_ns > <uint64_t>IDLE_SECONDS * 1000000000 \
            and not any_idempotent(partition):
        partition.acknowledged = False
    return _new_wire(core, partition, acks, room, alone, late)


cdef bint _fits(Wire *wire, uint64_t room, bint alone) noexcept nogil:
    return alone or wire_bytes(wire) + produce_overhead(wire) <= room


cdef Wire *_new_wire(
    Core *core, Partition *partition, int16_t acks, uint64_t room, bint alone, bint *late
) noexcept nogil:
    cdef Batch *batches[MERGE_MAX]
    cdef uint32_t count = 0
    cdef uint64_t size
    cdef bint idempotent
    cdef Queue *queue
    cdef Wire *wire
    if partition.unresolved >= (1 if partition.penalty else UNRESOLVED_MAX):
        return NULL
    queue = _next_queue(core, partition, acks, late)
    if queue == NULL:
        return NULL
    idempotent = queue.front_end.idempotent
    if idempotent and not partition.acknowledged and any_idempotent(partition):
        return NULL  # one until the broker has answered for this producer id and epoch
    if idempotent and lane_producer_id(core, partition) < 0:
        want_producer_id(core, partition)
        return NULL
    if not _close_head(core, queue):
        return NULL
    if not alone and queue.head.bytes + 400 > room:
        late[0] = True
        partition.ring = queue  # its turn is not over
        return NULL
    batches[0] = take_head(queue)
    queue.deficit -= batches[0].bytes
    CRASHPOINT(b"drain.head-taken")
    count = 1
    size = batches[0].bytes
    # merged it would have to be compressed, offer or not
    if size < MERGE_BELOW_BYTES and not batches[0].solo and not partition.penalty \
            and has_time(core, batches[0].front_end):
        _find_company(core, partition, batches, &count, size, room)
    wire = assign(core, partition, batches, count)
    CRASHPOINT(b"drain.assigned")
    if wire == NULL and count > 1:
        while count > 1:
            count -= 1
            put_back(batches[count])
        wire = assign(core, partition, batches, 1)
    if wire == NULL:
        put_back(batches[0])
    return wire


cdef bint _close_head(Core *core, Queue *queue) noexcept nogil:
    """Seals the queue's head if it is still open; False if there is none any more."""
    while queue.head != NULL and queue.head.state != BATCH_CLOSED:
        if seal(core, queue.head):
            return True
        # malformed: it has left the queue
    return queue.head != NULL


cdef uint64_t _peek_bytes(Batch *batch) noexcept nogil:
    """The batch's bytes; of an open one so far. A chain of several chunks is no small batch."""
    cdef uint64_t word
    if batch.state == BATCH_CLOSED:
        return batch.bytes
    word = slot_glance(&batch.front_end.rows[batch.slot])
    return CYP_BLOCK_BYTES if word_continues(word) else word_bytes(word)


cdef bint _owner_packs(Batch *batch) noexcept nogil:
    """Does its owner fill the batch, or compress the full one before it says so? It is due by its age as ever."""
    cdef uint64_t word
    if batch.front_end.codec == 0:
        return False
    word = slot_glance(&batch.front_end.rows[batch.slot])
    return word_continues(word) or word_state(word) == CYP_READY


cdef Queue *_next_queue(Core *core, Partition *partition, int16_t acks, bint *late) noexcept nogil:
    """The queue whose turn it is. Ready heads before lingering ones; the deficit decides among the ready.

    `late` becomes true if one is passed over whose head there is no time to compress: its turn is not over.
    """
    cdef Queue *queue = partition.ring
    cdef Queue *lingering = NULL
    cdef Queue *passed = NULL
    cdef uint32_t left, _round
    cdef bint some_ready = False
    if queue == NULL:
        return NULL
    for _round in range(1 + core.max_request_size // QUANTUM_BYTES):
        left = partition.queue_count
        while left:
            left -= 1
            if queue.front_end.acks == acks and (partition.penalty or not queue.offender):
                if queue.head.state == BATCH_LINGERING:
                    # without time to compress it, its owner may fill it
                    if lingering == NULL and has_time(core, queue.front_end) and not _owner_packs(queue.head):
                        lingering = queue
                elif put_off(core, queue.head):
                    if passed == NULL:
                        passed = queue
                    late[0] = True
                else:
                    some_ready = True
                    queue.deficit = min(queue.deficit + QUANTUM_BYTES, <int64_t>core.max_request_size + QUANTUM_BYTES)
                    if partition.queue_count == 1:
                        queue.deficit = <int64_t>queue.head.bytes  # alone it runs up no debt
                    if queue.deficit >= <int64_t>queue.head.bytes:
                        partition.ring = queue.next
                        if passed != NULL and passed != queue:  # its owner may have compressed it meanwhile
                            place_last(queue, passed)
                        return queue
            queue = queue.next
        if not some_ready:
            break
    return lingering


cdef void _find_company(
    Core *core, Partition *partition, Batch **batches, uint32_t *count, uint64_t size, uint64_t room
) noexcept nogil:
    """Small heads of other front-ends for the same wire batch, up to the size of a body and the request's room."""
    cdef Queue *queue = partition.ring
    cdef Queue *following
    cdef uint32_t left = partition.queue_count
    # re-encoding may lengthen each of a record's two deltas: a third of the room is kept for that
    cdef uint64_t limit = min(<uint64_t>CYP_BLOCK_BYTES, room) * 2 // 3
    if partition.merge_max:
        limit = min(limit, <uint64_t>partition.merge_max)
    cdef FrontEnd *first = batches[0].front_end
    while left and count[0] < MERGE_MAX and queue != NULL:
        left -= 1
        following = queue.next
        if queue.front_end != first and queue.front_end.acks == first.acks \
                and queue.front_end.idempotent == first.idempotent and queue.front_end.retries == first.retries \
                and queue.front_end.codec == first.codec and queue.front_end.level == first.level \
                and not queue.head.solo and not queue.offender \
                and not (queue.head.state == BATCH_LINGERING and _owner_packs(queue.head)) \
                and size + _peek_bytes(queue.head) <= limit:
            if _close_head(core, queue) and size + queue.head.bytes <= limit:
                size += queue.head.bytes
                queue.deficit -= queue.head.bytes
                batches[count[0]] = take_head(queue)
                count[0] += 1
        queue = following
        if partition.ring == NULL:
            break
