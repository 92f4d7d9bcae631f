"""The penalty lane of a partition: where front-ends send whose records were refused.

Every refused batch leaves a gap, and closing it costs all who share the sequences a new epoch. So an offender's
batches go out under a producer id of their own, unmerged, one in flight: then there is nobody whom a gap
concerns. A front-end enters and leaves the lane with nothing in flight, which keeps its batches in order; it
leaves when as many batches were accepted as its sentence says, which doubles with every time.

For a successor: a row of the partition table is a lane (cyp_partition_row.lane). A front-end with an unresolved
entry in a penalty lane belongs there; all others begin in the ordinary one.
"""

from libc.stdint cimport uint32_t

from cyproducer.shm.layout cimport CYP_NONE
from cyproducer.sender.accumulator cimport move_queue
from cyproducer.sender.model cimport Core, Partition, Queue, Wire
from cyproducer.sender.topics cimport append_lane


cdef enum:
    SENTENCE_FIRST = 16             # batches
    SENTENCE_MAX = 4096


cdef void offend(Core *core, Queue *queue) noexcept nogil:
    """Records of the queue were refused. Alone with the sender a front-end harms nobody and stays where it is."""
    if queue.partition.penalty:
        queue.to_serve = queue.sentence
    elif not queue.offender and core.front_end_count > 1:
        convict(queue)
        queue.partition.suspects = True


cdef void convict(Queue *queue) noexcept nogil:
    """It belongs into the penalty lane for the length of its sentence."""
    queue.offender = True
    queue.sentence = min(max(2 * queue.sentence, <uint32_t>SENTENCE_FIRST), <uint32_t>SENTENCE_MAX)
    queue.to_serve = queue.sentence


cdef void banish(Core *core, Partition *partition) noexcept nogil:
    """Offenders that have nothing on the way in the ordinary lane leave it."""
    cdef Queue *queue = partition.ring
    cdef Queue *following
    cdef uint32_t left = partition.queue_count
    partition.suspects = False
    if partition.twin == NULL:
        append_lane(core, partition)
    while left:
        left -= 1
        following = queue.next
        if queue.offender and partition.twin == NULL:
            queue.offender = False  # no memory, or too many partitions: it stays
        elif queue.offender and _on_the_way(core, queue):
            partition.suspects = True
        elif queue.offender:
            queue.to_serve = queue.sentence
            move_queue(queue, partition.twin)
        queue = following


cdef bint _on_the_way(Core *core, Queue *queue) noexcept nogil:
    """Has an unresolved entry of the partition a batch of this queue?"""
    cdef Wire *wire = queue.partition.wire_head
    cdef uint32_t row
    while wire != NULL:
        row = wire.entry.contributors
        while row != CYP_NONE:
            if core.contributor_batches[row] != NULL and core.contributor_batches[row].queue == queue:
                return True
            row = core.contributors[row].next
        wire = wire.next
    return False


cdef void serve(Queue *queue) noexcept nogil:
    """A batch of the queue was accepted in the penalty lane and has left it."""
    queue.to_serve -= queue.to_serve > 0
    if queue.to_serve == 0:
        queue.offender = False
        move_queue(queue, queue.partition.twin)
