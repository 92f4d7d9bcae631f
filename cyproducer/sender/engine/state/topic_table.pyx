"""Keeps the sender's append-only table of topics and partitions in the state region, numbered without gaps.

A front-end stores a topic's number in its slot rows, so a successor of the sender uses the same numbers.
"""

from libc.stdint cimport int32_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, realloc
from libc.string cimport memcpy, memset

from cyproducer.sender.engine.state.model cimport Core, Lane, Topic
from cyproducer.sender.engine.state.ready cimport first_connection
from cyproducer.shm.atomics cimport store_release32
from cyproducer.shm.crash cimport CRASHPOINT
from cyproducer.shm.layout cimport (
    CYP_LANE_ORDINARY,
    CYP_LANE_ISOLATION,
    CYP_PARTITIONS_MAX,
    CYP_TOPIC_NAME_BYTES,
    CYP_TOPICS_MAX,
    cyp_identity,
    cyp_partition_row,
)


cdef inline char *_persistent_name(Core *core, uint32_t number) noexcept:
    return <char *>core.state + core.state_header.topics_offset + <uint64_t>number * CYP_TOPIC_NAME_BYTES


cdef Topic *append_topic(Core *core, bytes name) except NULL:
    """Add a topic. Raise OverflowError if there are 16,384, ValueError if the name is too long, or MemoryError."""
    cdef Topic *topic
    if len(name) >= CYP_TOPIC_NAME_BYTES:
        raise ValueError(f"the topic name has {len(name)} bytes, at most {CYP_TOPIC_NAME_BYTES - 1} are allowed")
    if core.topic_count == CYP_TOPICS_MAX:
        raise OverflowError(f"too many topics: one sender handles at most {CYP_TOPICS_MAX}")
    topic = _new_topic(core)
    topic.name_bytes = <uint32_t>len(name)
    memcpy(topic.name, <const char *>name, len(name))
    memcpy(_persistent_name(core, topic.number), topic.name, CYP_TOPIC_NAME_BYTES)
    CRASHPOINT(b"attach.topic-named")
    store_release32(&core.state_header.topic_count, core.topic_count)  # a successor sees it with its whole name
    return topic


cdef Topic *restore_topic(Core *core, uint32_t number) except NULL:
    """Restore topic `number` as the predecessor has stored it; `number` must be the next one. Raise MemoryError."""
    cdef Topic *topic = _new_topic(core)
    memcpy(topic.name, _persistent_name(core, number), CYP_TOPIC_NAME_BYTES - 1)
    while topic.name[topic.name_bytes]:
        topic.name_bytes += 1
    topic.not_refreshed = True
    return topic


cdef Topic *_new_topic(Core *core) except NULL:
    cdef Topic **grown
    cdef Topic *topic
    if core.topic_count == core.topic_room:
        grown = <Topic **>realloc(core.topics, 2 * (core.topic_room + 32) * sizeof(Topic *))
        if grown == NULL:
            raise MemoryError
        core.topics = grown
        core.topic_room = 2 * (core.topic_room + 32)
    topic = <Topic *>calloc(1, sizeof(Topic))
    if topic == NULL:
        raise MemoryError
    topic.number = core.topic_count
    topic.sticky = -1
    core.topics[topic.number] = topic
    core.topic_count += 1
    return topic


cdef Lane *append_partition(Core *core, Topic *topic) except NULL:
    """Add the topic's next partition. Raise OverflowError if all 65,536 rows are in use, or MemoryError."""
    cdef Lane *lane
    if core.lane_count == CYP_PARTITIONS_MAX:
        raise OverflowError(f"too many partitions: one sender handles {CYP_PARTITIONS_MAX}, isolation lanes included")
    lane = _new_partition(core, topic)
    _fill_row(lane, CYP_LANE_ORDINARY)
    CRASHPOINT(b"attach.partition-filled")
    store_release32(&core.state_header.partition_count, core.lane_count)  # a successor sees a whole row
    return lane


cdef Lane *append_lane(Core *core, Lane *ordinary) noexcept nogil:
    """Add the isolation lane of a partition. Return NULL without memory, or if the partition table has no free row."""
    cdef Lane *lane = NULL
    if core.lane_count < CYP_PARTITIONS_MAX:
        lane = _new_row(core, ordinary.topic, ordinary.number)
    if lane == NULL:
        return NULL
    _link_lanes(ordinary, lane)
    _fill_row(lane, CYP_LANE_ISOLATION)
    CRASHPOINT(b"attach.lane-filled")
    store_release32(&core.state_header.partition_count, core.lane_count)  # a successor sees a whole row
    return lane


cdef void _link_lanes(Lane *ordinary, Lane *lane) noexcept nogil:
    lane.isolation = True
    lane.other_lane = ordinary
    lane.leader = first_connection(ordinary.leader) if ordinary.leader != NULL else NULL
    lane.leader_epoch = ordinary.leader_epoch
    ordinary.other_lane = lane


cdef void _fill_row(Lane *lane, uint32_t kind) noexcept nogil:
    cdef cyp_partition_row *row = lane.row
    memset(row, 0, sizeof(row[0]))
    row.topic = lane.topic.number
    row.partition = lane.number
    row.lane = kind
    row.identity[0].producer_id = -1
    row.identity[0].producer_epoch = -1


cdef Lane *restore_partition(Core *core, uint32_t index) except NULL:
    """Restore the lane in row `index` as the predecessor has stored it; `index` must be the next one.

    Raise ValueError for a row that no sender writes, or MemoryError.
    """
    cdef cyp_partition_row *row = &core.partition_rows[index]
    cdef cyp_identity *identity
    cdef Lane *lane
    cdef Topic *topic
    if row.topic >= core.topic_count or row.current > 1 or row.lane > CYP_LANE_ISOLATION:
        raise ValueError(f"the partition table has an invalid row {index}")
    topic = core.topics[row.topic]
    if row.lane == CYP_LANE_ORDINARY and row.partition == topic.partition_count:
        lane = _new_partition(core, topic)
    elif row.lane == CYP_LANE_ISOLATION and 0 <= row.partition < topic.partition_count:
        lane = _new_row(core, topic, row.partition)
        if lane == NULL:
            raise MemoryError
        _link_lanes(topic.partitions[row.partition], lane)
    else:
        raise ValueError(f"the partition table has an invalid row {index}")
    identity = &row.identity[row.current]
    lane.producer_id = identity.producer_id
    lane.producer_epoch = identity.producer_epoch
    lane.next_sequence = identity.acked_end
    lane.bumping = identity.bumping != 0
    return lane


cdef Lane *_new_partition(Core *core, Topic *topic) except NULL:
    cdef Lane **of_topic
    cdef Lane *lane
    cdef int32_t count = topic.partition_count
    if count & (count - 1) == 0:  # 0 or a power of two: it is full
        of_topic = <Lane **>realloc(topic.partitions, max(2 * count, 1) * sizeof(Lane *))
        if of_topic == NULL:
            raise MemoryError
        topic.partitions = of_topic
    lane = _new_row(core, topic, topic.partition_count)
    if lane == NULL:
        raise MemoryError
    topic.partitions[topic.partition_count] = lane
    topic.partition_count += 1
    return lane


cdef Lane *_new_row(Core *core, Topic *topic, int32_t number) noexcept nogil:
    """Create a lane of partition `number` for the next row, which is not written. Return NULL without memory."""
    cdef Lane **grown
    cdef Lane *lane
    if core.lane_count == core.lane_room:
        grown = <Lane **>realloc(core.lanes, 2 * (core.lane_room + 32) * sizeof(Lane *))
        if grown == NULL:
            return NULL
        core.lanes = grown
        core.lane_room = 2 * (core.lane_room + 32)
    lane = <Lane *>calloc(1, sizeof(Lane))
    if lane == NULL:
        return NULL
    lane.index = core.lane_count
    lane.topic = topic
    lane.number = number
    lane.producer_id = -1
    lane.producer_epoch = -1
    lane.known_end_offset = -1
    lane.leader_epoch = -1
    lane.lost_id = -1
    lane.row = &core.partition_rows[lane.index]
    core.lanes[lane.index] = lane
    core.lane_count += 1
    return lane
