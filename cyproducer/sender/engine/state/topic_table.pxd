"""Declares the sender's table of topics and partitions, see topic_table.pyx."""

from cyproducer.sender.engine.state.model cimport Core, Lane, Topic, Transaction
from cyproducer.sender.engine.state.states cimport LIST_NONE
from cyproducer.shm.layout cimport CYP_PARTITIONS_MAX, cyp_topic_state
from libc.stdint cimport uint32_t


cdef inline void note_use(Core *core, Topic *topic) noexcept nogil:
    """Note that a batch of the topic was queued or sent: its metadata must be kept up to date."""
    if not topic.used:
        topic.used = True
        topic.next_used = core.used_topics
        core.used_topics = topic


cdef inline uint32_t rows_left(Core *core) noexcept nogil:
    """Return how many lanes can still be added."""
    return CYP_PARTITIONS_MAX - core.lane_count + core.free_row_count


cdef inline Lane *next_lane(Lane *lane) noexcept nogil:
    """Return the lane of the same partition after `lane`: ordinary, isolation, transactional ones. NULL ends."""
    if lane.transaction != NULL:
        return lane.next_transactional
    if lane.isolation:
        return lane.other_lane.transactional
    return lane.other_lane if lane.other_lane != NULL else lane.transactional


cdef inline bint is_idle(const Lane *lane) noexcept nogil:
    """Return whether the lane has no batch and is in no ring."""
    return (
        lane.ring == NULL and lane.queue_count == 0 and lane.ready == 0 and lane.wire_head == NULL
        and lane.unresolved == 0 and lane.in_flight == 0 and lane.waiting == 0 and lane.retries.flow == NULL
        and lane.listed == LIST_NONE and not lane.backs_off and not lane.collected
    )


cdef cyp_topic_state *topic_state(Core *core, uint32_t number) noexcept nogil
cdef bint has_batches(Topic *topic) noexcept nogil
cdef Topic *add_topic(Core *core, bytes name) except NULL
cdef void free_rows(Core *core, Topic *topic) noexcept nogil
cdef void free_topic(Core *core, Topic *topic) noexcept nogil
cdef Lane *append_partition(Core *core, Topic *topic) except NULL
cdef Lane *append_lane(Core *core, Lane *ordinary) noexcept nogil
cdef Lane *append_transactional(Core *core, Lane *ordinary, Transaction *transaction) noexcept nogil
cdef void free_transactional(Core *core, Lane *lane) noexcept nogil
cdef Topic *restore_topic(Core *core, uint32_t number) except NULL
cdef object restore_partitions(Core *core, uint32_t count)
