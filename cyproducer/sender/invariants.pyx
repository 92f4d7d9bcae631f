"""What holds between two turns of the loop; the debug build checks it after every one.

Every batch, wire, contributor and body is in exactly one place, and every count is the length of its list.
"""

from libc.stdint cimport uint32_t, uint64_t

from cyproducer.shm.debug cimport check
from cyproducer.shm.layout cimport CYP_BODIES_MAX, CYP_CONTRIBUTORS_MAX, CYP_ENTRIES_MAX
from cyproducer.sender.model cimport (
    BATCH_ASSIGNED,
    BATCH_CLOSED,
    BATCH_DUE,
    BATCH_LINGERING,
    BATCH_NONE,
    LIST_LINGERING,
    LIST_NONE,
    LIST_READY,
    UNRESOLVED_MAX,
    WIRE_IN_FLIGHT,
    WIRE_WAITING,
    Batch,
    Core,
    FrontEnd,
    Partition,
    Queue,
    Wire,
)


cdef void check_core(Core *core) noexcept nogil:
    cdef uint32_t index, wires = 0, contributors = 0, bodies = 0
    cdef uint64_t live = 0, assigned = 0, queued = 0
    cdef FrontEnd *front_end = core.front_ends
    while front_end != NULL:
        live += front_end.live
        _check_front_end(front_end)
        front_end = front_end.next
    check(live == core.live_batches, b"live_batches is the sum over the front-ends")
    for index in range(core.partition_count):
        _check_partition(core.partitions[index], &wires, &contributors, &bodies, &queued)
    for index in range(CYP_CONTRIBUTORS_MAX):
        if core.contributor_batches[index] != NULL:
            assigned += 1
            check(core.contributor_batches[index].state == BATCH_ASSIGNED, b"a contributor's batch is ASSIGNED")
    check(assigned == contributors, b"every contributor belongs to a wire")
    check(wires + core.free_wire_count == CYP_ENTRIES_MAX, b"every entry is free or unresolved")
    check(contributors + core.free_contributor_count == CYP_CONTRIBUTORS_MAX, b"every contributor is free or used")
    check(bodies + core.free_body_count == CYP_BODIES_MAX, b"every body is free or used")
    check(queued + assigned == live, b"every live batch is queued or assigned")


cdef void _check_front_end(FrontEnd *front_end) noexcept nogil:
    cdef Batch *batch = front_end.linger_head
    cdef uint32_t unreported = 0
    while batch != NULL:
        check(batch.state == BATCH_LINGERING, b"only LINGERING batches are in the linger list")
        batch = batch.linger_next
    batch = front_end.age_head
    while batch != NULL:
        check(batch.state != BATCH_NONE, b"a batch without a result is not NONE")
        check(not batch.reported, b"a reported batch has left the age list")
        unreported += 1
        batch = batch.age_next
    check(unreported <= front_end.live, b"batches without a result are live")


cdef void _check_partition(
    Partition *partition, uint32_t *wires, uint32_t *contributors, uint32_t *bodies, uint64_t *queued
) noexcept nogil:
    cdef uint32_t ready = 0, queues = 0, unresolved = 0, waiting = 0, in_flight = 0
    cdef Queue *queue = partition.ring
    cdef Batch *batch
    cdef Wire *wire = partition.wire_head
    while queues < partition.queue_count:
        check(queue != NULL and queue.head != NULL, b"a queue in the ring is not empty")
        queues += 1
        batch = queue.head
        while batch != NULL:
            check(batch.state == BATCH_LINGERING or batch.state == BATCH_DUE or batch.state == BATCH_CLOSED,
                  b"a queued batch is not assigned")
            ready += batch.state != BATCH_LINGERING
            queued[0] += 1
            batch = batch.next
        queue = queue.next
    check(queue == partition.ring, b"the ring of queues closes")
    check(ready == partition.ready, b"ready counts the queued batches that do not linger")
    while wire != NULL:
        check(wire.partition == partition, b"a wire is in its partition's list")
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
