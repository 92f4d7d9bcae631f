"""Moves front-ends whose records the broker refused to the isolation lane of the partition, and back.

Every refused batch leaves a gap in the sequences. To close it, all front-ends that share the sequences need a new
epoch. So the batches of isolated front-ends are sent under a separate producer id, unmerged, with one batch in flight:
a gap there affects no other batch. A front-end enters and leaves the isolation lane with nothing in flight, which keeps
its batches in order. It leaves after `isolation_batches` accepted batches. This number doubles with each isolation.

Each row of the partition table is one lane (cyp_partition_row.lane). After a takeover, a front-end with an unresolved
entry in an isolation lane belongs to that lane. All other front-ends start in the ordinary lane.
"""

from libc.stdint cimport uint32_t

from cyproducer.sender.engine.intake.accumulator cimport move_queue
from cyproducer.sender.engine.state.model cimport Core, Lane, Queue, WireBatch
from cyproducer.sender.engine.state.topic_table cimport append_lane
from cyproducer.shm.layout cimport CYP_NONE


cdef enum:
    ISOLATION_BATCHES_FIRST = 16             # batches
    ISOLATION_BATCHES_MAX = 4096


cdef void isolate_queue(Core *core, Queue *queue) noexcept nogil:
    """Isolate a queue whose records were refused. If it is in the isolation lane already, restart its count of batches.

    The only front-end of a sender stays in the ordinary lane, since it affects no other front-end. A transactional
    producer has a lane of its own.
    """
    if queue.lane.transaction != NULL:
        return
    if queue.lane.isolation:
        queue.isolation_left = queue.isolation_batches
    elif not queue.isolated and core.front_end_count > 1:
        mark_for_isolation(queue)
        queue.lane.isolation_pending = True


cdef void mark_for_isolation(Queue *queue) noexcept nogil:
    """Mark the queue as isolated and set how many accepted batches let it leave the isolation lane."""
    queue.isolated = True
    cdef uint32_t doubled = max(2 * queue.isolation_batches, <uint32_t>ISOLATION_BATCHES_FIRST)
    queue.isolation_batches = min(doubled, <uint32_t>ISOLATION_BATCHES_MAX)
    queue.isolation_left = queue.isolation_batches


cdef void move_to_isolation(Core *core, Lane *lane) noexcept nogil:
    """Move the isolated queues that have no unresolved entry in the ordinary lane to the isolation lane."""
    cdef Queue *queue = lane.ring
    cdef Queue *following
    cdef uint32_t left = lane.queue_count
    lane.isolation_pending = False
    if lane.other_lane == NULL:
        append_lane(core, lane)
    while left:
        left -= 1
        following = queue.next
        if queue.isolated and lane.other_lane == NULL:
            queue.isolated = False  # no memory or table row for the isolation lane: it stays in its lane
        elif queue.isolated and _has_unresolved(core, queue):
            lane.isolation_pending = True
        elif queue.isolated:
            queue.isolation_left = queue.isolation_batches
            move_queue(queue, lane.other_lane)
        queue = following


cdef bint _has_unresolved(Core *core, Queue *queue) noexcept nogil:
    """Return whether an unresolved entry of the lane contains a batch of this queue."""
    cdef WireBatch *wire = queue.lane.wire_head
    cdef uint32_t row
    while wire != NULL:
        row = wire.entry.contributors
        while row != CYP_NONE:
            if core.contributor_batches[row] != NULL and core.contributor_batches[row].queue == queue:
                return True
            row = core.contributors[row].next
        wire = wire.next
    return False


cdef void count_isolated_batch(Queue *queue) noexcept nogil:
    """Count a batch accepted in the isolation lane. After the last one, move the queue back to the ordinary lane."""
    queue.isolation_left -= queue.isolation_left > 0
    if queue.isolation_left == 0:
        queue.isolated = False
        move_queue(queue, queue.lane.other_lane)
