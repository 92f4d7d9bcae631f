"""Which partitions have something to send: the rings of a node, kept in step with a partition's counts."""

from cyproducer.sender.model cimport (
    LIST_LINGERING,
    LIST_NONE,
    LIST_READY,
    Core,
    Node,
    Partition,
)
from libc.stdint cimport int16_t, int64_t, uint8_t, uint64_t


cdef inline void note_timer(Core *core, uint64_t at_ns) noexcept nogil:
    """The loop must not sleep beyond `at_ns`."""
    if at_ns < core.next_timer_ns:
        core.next_timer_ns = at_ns


cdef inline int64_t lane_producer_id(Core *core, Partition *partition) noexcept nogil:
    return core.penalty_producer_id if partition.penalty else core.producer_id


cdef inline int16_t lane_producer_epoch(Core *core, Partition *partition) noexcept nogil:
    return core.penalty_producer_epoch if partition.penalty else core.producer_epoch


cdef inline Partition *_unlink(Partition *head, Partition *partition) noexcept nogil:
    """The ring's head after the partition has left it."""
    if partition.next == partition:
        return NULL
    partition.previous.next = partition.next
    partition.next.previous = partition.previous
    return partition.next if head == partition else head


cdef inline Partition *_link_last(Partition *head, Partition *partition) noexcept nogil:
    if head == NULL:
        partition.next = partition
        partition.previous = partition
        return partition
    partition.next = head
    partition.previous = head.previous
    head.previous.next = partition
    head.previous = partition
    return head


cdef inline void delist(Partition *partition) noexcept nogil:
    cdef Node *node = partition.leader
    if partition.listed == LIST_READY:
        node.ready = _unlink(node.ready, partition)
        node.ready_count -= 1
    elif partition.listed == LIST_LINGERING:
        node.lingering = _unlink(node.lingering, partition)
        node.lingering_count -= 1
    partition.listed = LIST_NONE


cdef inline void relist(Partition *partition) noexcept nogil:
    """To be called after every change of ready, waiting or queue_count, and of the leader."""
    cdef Node *node = partition.leader
    cdef uint8_t wanted
    if node == NULL:
        return
    if partition.ready or partition.waiting:
        wanted = LIST_READY
    elif partition.queue_count:
        wanted = LIST_LINGERING
    else:
        wanted = LIST_NONE
    if wanted == partition.listed:
        return
    delist(partition)
    if wanted == LIST_READY:
        node.ready = _link_last(node.ready, partition)
        node.ready_count += 1
    elif wanted == LIST_LINGERING:
        node.lingering = _link_last(node.lingering, partition)
        node.lingering_count += 1
    partition.listed = wanted
