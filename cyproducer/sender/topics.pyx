"""Topics and partitions of the sender: numbered densely, append-only, kept in the state region.

A front-end puts a topic's number into its slot rows, so a successor of the sender uses the same numbers.
"""

from libc.stdint cimport int32_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, realloc
from libc.string cimport memcpy, memset

from cyproducer.sender.model cimport Core, Partition, Topic
from cyproducer.shm.atomics cimport store_release32
from cyproducer.shm.crash cimport CRASHPOINT
from cyproducer.shm.layout cimport (
    CYP_LANE_ORDINARY,
    CYP_LANE_PENALTY,
    CYP_PARTITIONS_MAX,
    CYP_TOPIC_NAME_BYTES,
    CYP_TOPICS_MAX,
    cyp_identity,
    cyp_partition_row,
)


cdef inline char *_persistent_name(Core *core, uint32_t number) noexcept:
    return <char *>core.state + core.state_header.topics_offset + <uint64_t>number * CYP_TOPIC_NAME_BYTES


cdef Topic *append_topic(Core *core, bytes name) except NULL:
    """A topic that the sender does not know yet. Raises OverflowError after 16,384, ValueError for a long name."""
    cdef Topic *topic
    if len(name) >= CYP_TOPIC_NAME_BYTES:
        raise ValueError(f"the topic's name has {len(name)} bytes")
    if core.topic_count == CYP_TOPICS_MAX:
        raise OverflowError(f"{CYP_TOPICS_MAX} topics are the most that one sender knows")
    topic = _new_topic(core)
    topic.name_bytes = <uint32_t>len(name)
    memcpy(topic.name, <const char *>name, len(name))
    memcpy(_persistent_name(core, topic.number), topic.name, CYP_TOPIC_NAME_BYTES)
    CRASHPOINT(b"attach.topic-named")
    store_release32(&core.state_header.topic_count, core.topic_count)  # a successor sees it with its whole name
    return topic


cdef Topic *restore_topic(Core *core, uint32_t number) except NULL:
    """The topic of that number as a former sender has stored it; `number` is the next one."""
    cdef Topic *topic = _new_topic(core)
    memcpy(topic.name, _persistent_name(core, number), CYP_TOPIC_NAME_BYTES - 1)
    while topic.name[topic.name_bytes]:
        topic.name_bytes += 1
    topic.unled = True
    return topic


cdef Topic *_new_topic(Core *core) except NULL:
    cdef Topic **grown = <Topic **>realloc(core.topics, (core.topic_count + 1) * sizeof(Topic *))
    cdef Topic *topic
    if grown == NULL:
        raise MemoryError
    core.topics = grown
    topic = <Topic *>calloc(1, sizeof(Topic))
    if topic == NULL:
        raise MemoryError
    topic.number = core.topic_count
    topic.sticky = -1
    core.topics[topic.number] = topic
    core.topic_count += 1
    return topic


cdef Partition *append_partition(Core *core, Topic *topic) except NULL:
    """The topic's next partition. Raises OverflowError if all topics together have 65,536."""
    cdef Partition *partition
    if core.partition_count == CYP_PARTITIONS_MAX:
        raise OverflowError(f"{CYP_PARTITIONS_MAX} partitions are the most that one sender knows")
    partition = _new_partition(core, topic)
    _fill_row(partition, CYP_LANE_ORDINARY)
    CRASHPOINT(b"attach.partition-filled")
    store_release32(&core.state_header.partition_count, core.partition_count)  # a successor sees a whole row
    return partition


cdef Partition *append_lane(Core *core, Partition *ordinary) noexcept nogil:
    """The penalty lane of a partition; NULL without memory, or if all rows of the partition table are used."""
    cdef Partition *lane = NULL
    if core.partition_count < CYP_PARTITIONS_MAX:
        lane = _new_row(core, ordinary.topic, ordinary.number)
    if lane == NULL:
        return NULL
    _link_lanes(ordinary, lane)
    _fill_row(lane, CYP_LANE_PENALTY)
    CRASHPOINT(b"attach.lane-filled")
    store_release32(&core.state_header.partition_count, core.partition_count)  # a successor sees a whole row
    return lane


cdef void _link_lanes(Partition *ordinary, Partition *lane) noexcept nogil:
    lane.penalty = True
    lane.twin = ordinary
    lane.leader = ordinary.leader
    ordinary.twin = lane


cdef void _fill_row(Partition *partition, uint32_t lane) noexcept nogil:
    cdef cyp_partition_row *row = partition.row
    memset(row, 0, sizeof(row[0]))
    row.topic = partition.topic.number
    row.partition = partition.number
    row.lane = lane
    row.identity[0].producer_id = -1
    row.identity[0].producer_epoch = -1


cdef Partition *restore_partition(Core *core, uint32_t index) except NULL:
    """The partition, or penalty lane, of that row as a former sender has stored it; `index` is the next one.

    Raises ValueError for a row that no sender writes.
    """
    cdef cyp_partition_row *row = &core.partition_rows[index]
    cdef cyp_identity *identity
    cdef Partition *partition
    cdef Topic *topic
    if row.topic >= core.topic_count or row.current > 1 or row.lane > CYP_LANE_PENALTY:
        raise ValueError(f"row {index} of the partition table is none")
    topic = core.topics[row.topic]
    if row.lane == CYP_LANE_ORDINARY and row.partition == topic.partition_count:
        partition = _new_partition(core, topic)
    elif row.lane == CYP_LANE_PENALTY and 0 <= row.partition < topic.partition_count:
        partition = _new_row(core, topic, row.partition)
        if partition == NULL:
            raise MemoryError
        _link_lanes(topic.partitions[row.partition], partition)
    else:
        raise ValueError(f"row {index} of the partition table is none")
    identity = &row.identity[row.current]
    partition.producer_id = identity.producer_id
    partition.producer_epoch = identity.producer_epoch
    partition.next_sequence = identity.acked_end
    partition.bumping = identity.bumping != 0
    return partition


cdef Partition *_new_partition(Core *core, Topic *topic) except NULL:
    cdef Partition **of_topic
    cdef Partition *partition
    of_topic = <Partition **>realloc(topic.partitions, (topic.partition_count + 1) * sizeof(Partition *))
    if of_topic == NULL:
        raise MemoryError
    topic.partitions = of_topic
    partition = _new_row(core, topic, topic.partition_count)
    if partition == NULL:
        raise MemoryError
    topic.partitions[topic.partition_count] = partition
    topic.partition_count += 1
    return partition


cdef Partition *_new_row(Core *core, Topic *topic, int32_t number) noexcept nogil:
    """A lane of the topic's partition `number` for the next row, which is not touched; NULL without memory."""
    cdef Partition **grown = <Partition **>realloc(core.partitions, (core.partition_count + 1) * sizeof(Partition *))
    cdef Partition *partition
    if grown == NULL:
        return NULL
    core.partitions = grown
    partition = <Partition *>calloc(1, sizeof(Partition))
    if partition == NULL:
        return NULL
    partition.index = core.partition_count
    partition.topic = topic
    partition.number = number
    partition.producer_id = -1
    partition.producer_epoch = -1
    partition.row = &core.partition_rows[partition.index]
    core.partitions[partition.index] = partition
    core.partition_count += 1
    return partition
