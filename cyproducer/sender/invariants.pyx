"""What holds between two turns of the loop; the debug build checks it after every one.

Every batch, wire, contributor and body is in exactly one place, and every count is the length of its list.
"""

from libc.stdint cimport uint32_t, uint64_t

from cyproducer.shm.debug cimport check
from cyproducer.shm.layout cimport CYP_BODIES_MAX, CYP_CONTRIBUTORS_MAX, CYP_ENTRIES_MAX, CYP_ENTRY_ASSIGNED
from cyproducer.sender.model cimport (
    BATCH_ASSIGNED,
    BATCH_CLOSED,
    BATCH_DUE,
    BATCH_LINGERING,
    BATCH_NONE,
    CONNECTION_CLOSED,
    LIST_LINGERING,
    LIST_NONE,
    LIST_READY,
    UNRESOLVED_MAX,
    WIRE_IN_FLIGHT,
    WIRE_WAITING,
    Batch,
    Core,
    FrontEnd,
    Node,
    Partition,
    Queue,
    Request,
    Wire,
)


cdef void check_core(Core *core) noexcept nogil:
    cdef uint32_t index, wires = 0, contributors = 0, bodies = 0, front_ends = 0
    cdef uint64_t live = 0, assigned = 0, queued = 0
    cdef FrontEnd *front_end = core.front_ends
    while front_end != NULL:
        live += front_end.live
        _check_front_end(front_end)
        front_ends += 1
        check(front_end.next == NULL or front_end.next.previous == front_end, b"the front-ends are doubly linked")
        check(not (front_end.detached and front_end.live == 0), b"an ended front-end has left the list")
        front_end = front_end.next
    check(front_ends == core.front_end_count, b"front_end_count is the length of their list")
    check(live == core.live_batches, b"live_batches is the sum over the front-ends")
    for index in range(core.node_count):
        _check_node(core.nodes[index])
    for index in range(core.partition_count):
        _check_partition(core.partitions[index], &wires, &contributors, &bodies, &queued)
    for index in range(CYP_CONTRIBUTORS_MAX):
        if core.contributor_batches[index] != NULL:
            assigned += 1
            check(core.contributor_batches[index].state == BATCH_ASSIGNED, b"a contributor's batch is ASSIGNED")
            check(core.contributor_batches[index].slot == core.contributors[index].slot
                  and core.contributor_batches[index].generation == core.contributors[index].generation,
                  b"a contributor names its batch as it was assigned")
    check(assigned <= contributors, b"every contributor belongs to a wire; after a takeover some have no batch")
    check(wires + core.free_wire_count == CYP_ENTRIES_MAX, b"every entry is free or unresolved")
    check(contributors + core.free_contributor_count == CYP_CONTRIBUTORS_MAX, b"every contributor is free or used")
    check(bodies + core.free_body_count == CYP_BODIES_MAX, b"every body is free or used")
    check(queued + assigned == live, b"every live batch is queued or assigned")


cdef void _check_front_end(FrontEnd *front_end) noexcept nogil:
    cdef Batch *batch = front_end.linger_head
    cdef uint32_t unreported = 0, live = 0, chunks = 0, held = 0, slot, lingering = 0
    cdef uint64_t size = 0
    while batch != NULL:
        check(batch.state == BATCH_LINGERING, b"only LINGERING batches are in the linger list")
        check(batch.linger_next == NULL or batch.linger_next.linger_previous == batch,
              b"the linger list is doubly linked")
        lingering += 1
        batch = batch.linger_next
    for slot in range(front_end.slot_count):
        batch = &front_end.batches[slot]
        held += front_end.chunk_held[slot]
        if batch.state == BATCH_NONE:
            continue
        live += 1
        size += batch.bytes
        chunks += batch.chunks
        lingering -= batch.state == BATCH_LINGERING
        check(batch.slot == slot and batch.front_end == front_end, b"a batch is in the row of its head slot")
        check((batch.chunks > 0) == (batch.state >= BATCH_CLOSED), b"a batch has its chunks from its sealing on")
        check(not batch.reported or batch.state == BATCH_ASSIGNED, b"only an assigned batch outlives its result")
        # SENT is said before a byte goes out: an attempt without it would be a lie to a front-end without sender
        if batch.state == BATCH_ASSIGNED and batch.wire.entry.attempts and not front_end.detached:
            check(front_end.sent[slot] == batch.generation + 1, b"a batch that went out has its SENT word")
    check(live == front_end.live, b"live counts the front-end's batches")
    check(size == front_end.bytes_live, b"bytes_live is the sum over the front-end's batches")
    check(chunks == held, b"every held chunk belongs to one live batch")
    check(lingering == 0, b"every LINGERING batch is in the linger list")
    batch = front_end.age_head
    while batch != NULL:
        check(batch.state != BATCH_NONE, b"a batch without a result is not NONE")
        check(not batch.reported or front_end.acks == 0, b"only acks=0 ages on when it was reported")
        unreported += 1
        batch = batch.age_next
    check(unreported <= front_end.live, b"batches that age are live")


cdef void _check_node(Node *node) noexcept nogil:
    """The node's rings have their counts; its requests are in flight."""
    cdef uint32_t requests = 0
    cdef Request *request = node.sent_head
    check(_ring_length(node.ready, LIST_READY) == node.ready_count, b"ready_count is the length of the ring")
    check(_ring_length(node.lingering, LIST_LINGERING) == node.lingering_count, b"lingering_count is the ring's length")
    while request != NULL:
        check(request.finished, b"a request that waits for its response is written in full")
        _check_request(request)
        requests += 1
        request = request.next
    request = node.out_head
    while request != NULL:
        check(not request.finished, b"a request in the way out is not written in full")
        _check_request(request)
        requests += 1
        request = request.next
    check(requests == node.in_flight, b"in_flight counts the requests of a connection")
    check(node.state != CONNECTION_CLOSED or requests == 0, b"a closed connection has no requests")


cdef uint32_t _ring_length(Partition *head, int listed) noexcept nogil:
    cdef Partition *partition = head
    cdef uint32_t length = 0
    while partition != NULL:
        length += 1
        check(partition.listed == listed, b"a partition is in the ring that it says")
        check(partition.next.previous == partition, b"the ring of partitions is doubly linked")
        partition = partition.next
        if partition == head:
            break
    return length


cdef void _check_request(Request *request) noexcept nogil:
    cdef uint32_t index
    for index in range(request.wire_count):
        check(request.wires[index].state == WIRE_IN_FLIGHT and request.wires[index].request == request,
              b"the wires of a request are in flight with it")


cdef void _check_partition(
    Partition *partition, uint32_t *wires, uint32_t *contributors, uint32_t *bodies, uint64_t *queued
) noexcept nogil:
    cdef uint32_t ready = 0, queues = 0, queued_here, unresolved = 0, waiting = 0, in_flight = 0
    cdef Queue *queue = partition.ring
    cdef Batch *batch
    cdef Wire *wire = partition.wire_head
    cdef uint64_t sequence = 0
    while queues < partition.queue_count:
        check(queue != NULL and queue.head != NULL, b"a queue in the ring is not empty")
        queues += 1
        queued_here = 0
        batch = queue.head
        while batch != NULL:
            check(batch.state == BATCH_LINGERING or batch.state == BATCH_DUE or batch.state == BATCH_CLOSED,
                  b"a queued batch is not assigned")
            ready += batch.state != BATCH_LINGERING
            check(batch.queue == queue, b"a batch is in its own queue")
            check(batch.next != NULL or queue.tail == batch, b"the tail is the last")
            queued_here += 1
            batch = batch.next
        check(queued_here == queue.length, b"length counts the queue's batches")
        queued[0] += queued_here
        queue = queue.next
    check(queue == partition.ring, b"the ring of queues closes")
    check(ready == partition.ready, b"ready counts the queued batches that do not linger")
    while wire != NULL:
        check(wire.partition == partition, b"a wire is in its partition's list")
        check(wire.unreported <= wire.contributor_count, b"no contributor is reported twice")
        check(wire.entry.state == CYP_ENTRY_ASSIGNED, b"an unresolved wire's entry is ASSIGNED")
        if wire.idempotent and not partition.bumping:
            check(wire.entry.producer_id == partition.producer_id
                  and wire.entry.producer_epoch == partition.producer_epoch, b"wires have their partition's epoch")
            check(wire.entry.base_sequence >= sequence, b"sequences rise along the list")
            sequence = wire.entry.base_sequence + wire.entry.count
            check(sequence <= partition.next_sequence, b"next_sequence is behind all that are given")
        check(wire.next == NULL or wire.next.previous == wire, b"the list of wires is doubly linked")
        unresolved += 1
        waiting += wire.state == WIRE_WAITING
        in_flight += wire.state == WIRE_IN_FLIGHT
        contributors[0] += wire.contributor_count
        bodies[0] += wire.body != NULL
        wire = wire.next
    check(unresolved == partition.unresolved, b"unresolved counts the wires")
    check(waiting == partition.waiting and in_flight == partition.in_flight, b"a wire waits or is in flight")
    check(in_flight <= UNRESOLVED_MAX, b"five batches of a partition in flight at the most")
    wires[0] += unresolved
    if partition.leader == NULL:
        check(partition.listed == LIST_NONE, b"a partition without a leader is in no ring")
    elif partition.ready or partition.waiting:
        check(partition.listed == LIST_READY, b"a partition with something to send is in the ready ring")
    else:
        check(partition.listed == (LIST_LINGERING if queues else LIST_NONE), b"a partition is in the ring of its state")
