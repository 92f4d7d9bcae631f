"""Keeps the sender's table of topics and partitions in the state region.

A front-end stores a topic's number in its slot rows, so a successor of the sender uses the same numbers. A number that
was given back, and the rows of its partitions, are used again for other names (topic_numbers.pyx). The partitions of a
topic are in the table from 0 on without a gap, but their rows are in any order.
"""


cdef inline void flag_use(Core *core, Topic *topic) noexcept nogil:
    """Note that a batch of the topic was queued or sent: its metadata must be kept up to date."""
    if not topic.topics.used:
        topic.topics.used = True
        topic.topics.next_used = core.topics.used_topics
        core.topics.used_topics = topic


cdef Topic *take_used(Core *core) noexcept nogil:
    """Return the list of the topics that are used, and note that they are not."""
    cdef Topic *first = core.topics.used_topics
    cdef Topic *topic = first
    core.topics.used_topics = NULL
    while topic != NULL:
        topic.topics.used = False
        topic = topic.topics.next_used
    return first


cdef inline uint32_t rows_left(Core *core) noexcept nogil:
    """Return how many lanes can still be added."""
    return CYP_PARTITIONS_MAX - core.topics.lane_count + core.topics.free_row_count


cdef inline Lane *next_lane(Lane *lane) noexcept nogil:
    """Return the lane of the same partition after `lane`: ordinary, isolation, transactional ones. NULL ends."""
    if lane.transaction != NULL:
        return lane.topics.next_transactional
    if lane.isolation:
        return lane.topics.other_lane.topics.transactional
    return lane.topics.other_lane if lane.topics.other_lane != NULL else lane.topics.transactional


cdef inline bint is_idle(const Lane *lane) noexcept nogil:
    """Return whether the lane has no batch and is in no ring."""
    return (
        lane.intake.queues.length == 0 and lane.intake.ready == 0 and lane.wire.head == NULL
        and lane.wire.unresolved == 0 and lane.wire.in_flight == 0 and lane.wire.waiting == 0
        and lane.drain.retries.flow == NULL
        and lane.drain.listed == LIST_NONE and not lane.drain.backs_off and not lane.drain.collected
    )


cdef cyp_topic_state *topic_state(Core *core, uint32_t number) noexcept nogil:
    """Return the row of a number in the state region."""
    return <cyp_topic_state *>(core.state + core.state_header.topics_offset) + number


# ---------------------------------------------------------------- topics


cdef Topic *add_topic(Core *core, bytes name) except NULL:
    """Give a topic a number. Raise OverflowError if 16,384 are in use, ValueError if the name is too long, MemoryError.

    The caller must enter the name into the snapshot next.
    """
    cdef Topic *topic
    cdef cyp_topic_state *state
    if len(name) >= CYP_TOPIC_NAME_BYTES:
        raise ValueError(f"the topic name has {len(name)} bytes, at most {CYP_TOPIC_NAME_BYTES - 1} are allowed")
    if core.topics.free_topic_count:
        core.topics.free_topic_count -= 1
        topic = core.topics.table[core.topics.free_topics[core.topics.free_topic_count]]
    elif core.topics.count == CYP_TOPICS_MAX:
        raise OverflowError(f"too many topics: one sender handles at most {CYP_TOPICS_MAX}")
    else:
        topic = _new_topic(core)
    _reset_topic(topic, False)
    topic.name_bytes = <uint32_t>len(name)
    memcpy(topic.name, <const char *>name, len(name))
    topic.generation = topic_next_generation(&core.topic_rows[topic.number])
    state = topic_state(core, topic.number)
    memcpy(state.name, topic.name, CYP_TOPIC_NAME_BYTES)
    state.generation = topic.generation
    CRASHPOINT(b"attach.topic-named")
    store_release32(&state.state, CYP_TOPIC_USED)  # a successor sees it with its whole name
    CRASHPOINT(b"attach.topic-used")
    store_release32(&core.state_header.topic_count, core.topics.count)
    return topic


cdef Topic *restore_topic(Core *core, uint32_t number) except NULL:
    """Restore topic `number` as the predecessor has stored it; `number` must be the next one.

    A number that was being given back is `retired`: the caller must free it. Raise ValueError for a row that no sender
    writes, or MemoryError.
    """
    cdef cyp_topic_state *state = topic_state(core, number)
    cdef Topic *topic
    if state.state > CYP_TOPIC_RETIRED:
        raise ValueError(f"the topic table has an invalid row {number}")
    topic = _new_topic(core)
    _reset_topic(topic, state.state == CYP_TOPIC_FREE)
    if topic.topics.free:
        core.topics.free_topics[core.topics.free_topic_count] = number
        core.topics.free_topic_count += 1
        return topic
    memcpy(topic.name, state.name, CYP_TOPIC_NAME_BYTES - 1)
    while topic.name[topic.name_bytes]:
        topic.name_bytes += 1
    topic.generation = state.generation
    topic.topic_numbers.retired = state.state == CYP_TOPIC_RETIRED
    topic.loop.not_refreshed = True
    return topic


cdef Topic *_new_topic(Core *core) except NULL:
    cdef Topic **grown
    cdef Topic *topic
    if core.topics.count == core.topics.room:
        grown = <Topic **>realloc(core.topics.table, 2 * (core.topics.room + 32) * sizeof(Topic *))
        if grown == NULL:
            raise MemoryError
        core.topics.table = grown
        core.topics.room = 2 * (core.topics.room + 32)
    topic = <Topic *>calloc(1, sizeof(Topic))
    if topic == NULL:
        raise MemoryError
    topic.number = core.topics.count
    core.topics.table[topic.number] = topic
    core.topics.count += 1
    return topic


cdef void _reset_topic(Topic *topic, bint is_free) noexcept nogil:
    cdef uint32_t number = topic.number
    memset(topic, 0, sizeof(Topic))
    topic.number = number
    topic.partitioner.sticky = -1
    topic.topics.free = is_free


cdef void free_rows(Core *core, Topic *topic) noexcept nogil:
    """Free the partitions of a topic, which nothing refers to."""
    cdef int32_t number
    cdef Lane *lane
    for number in range(topic.topics.partition_count):
        lane = topic.topics.partitions[number]
        if lane.topics.other_lane != NULL:
            _free_row(core, lane.topics.other_lane)
        while lane.topics.transactional != NULL:
            free_transactional(core, lane.topics.transactional)
        _free_row(core, lane)
    free(topic.topics.partitions)
    topic.topics.partitions = NULL
    topic.topics.partition_count = 0


cdef void free_transactional(Core *core, Lane *lane) noexcept nogil:
    """Free the lane of a transactional producer, which nothing else refers to."""
    cdef Lane **link = &lane.ordinary.topics.transactional
    while link[0] != lane:
        link = &link[0].topics.next_transactional
    link[0] = lane.topics.next_transactional
    link = &lane.transaction.lanes
    while link[0] != lane:
        link = &link[0].topics.next_of_transaction
    link[0] = lane.topics.next_of_transaction
    _free_row(core, lane)


cdef void _free_row(Core *core, Lane *lane) noexcept nogil:
    store_release32(&lane.row.lane, CYP_LANE_FREE)
    CRASHPOINT(b"topics.row-freed")
    core.topics.lanes[lane.index] = NULL
    core.topics.free_rows[core.topics.free_row_count] = lane.index
    core.topics.free_row_count += 1
    free(lane)


cdef void free_topic(Core *core, Topic *topic) noexcept nogil:
    """Free the number of a topic without partitions, which is cleared in the snapshot."""
    store_release32(&topic_state(core, topic.number).state, CYP_TOPIC_FREE)
    CRASHPOINT(b"topics.freed")
    _reset_topic(topic, True)
    core.topics.free_topics[core.topics.free_topic_count] = topic.number
    core.topics.free_topic_count += 1


cdef bint has_batches(Topic *topic) noexcept nogil:
    """Return whether a partition of the topic has queued batches or unresolved wire batches."""
    cdef int32_t index
    cdef Lane *lane
    for index in range(topic.topics.partition_count):
        lane = topic.topics.partitions[index]
        while lane != NULL:
            if lane.intake.queues.length or lane.wire.unresolved:
                return True
            lane = next_lane(lane)
    return False


# ---------------------------------------------------------------- partitions


cdef Lane *append_partition(Core *core, Topic *topic) except NULL:
    """Add the topic's next partition. Raise OverflowError if all 65,536 rows are in use, or MemoryError."""
    cdef Lane *lane
    if core.topics.lane_count == CYP_PARTITIONS_MAX and core.topics.free_row_count == 0:
        raise OverflowError(f"too many partitions: one sender handles {CYP_PARTITIONS_MAX}, isolation lanes included")
    if not _make_space(topic):
        raise MemoryError
    lane = _new_lane_row(core, topic, topic.topics.partition_count)
    if lane == NULL:
        raise MemoryError
    topic.topics.partitions[topic.topics.partition_count] = lane
    topic.topics.partition_count += 1
    _fill_row(core, lane, CYP_LANE_ORDINARY)
    CRASHPOINT(b"attach.partition-filled")
    return lane


cdef Lane *append_lane(Core *core, Lane *ordinary) noexcept nogil:
    """Add the isolation lane of a partition. Return NULL without memory, or if the partition table has no free row."""
    cdef Lane *lane = NULL
    if core.topics.lane_count < CYP_PARTITIONS_MAX or core.topics.free_row_count:
        lane = _new_lane_row(core, ordinary.topic, ordinary.number)
    if lane == NULL:
        return NULL
    _link_lanes(ordinary, lane)
    _fill_row(core, lane, CYP_LANE_ISOLATION)
    CRASHPOINT(b"attach.lane-filled")
    return lane


cdef Lane *append_transactional(Core *core, Lane *ordinary, Transaction *transaction) noexcept nogil:
    """Add the lane of a transactional producer. Return NULL without memory, or if the partition table is nearly full.

    The last quarter of the rows is for the partitions of new topics, which concern all front-ends.
    """
    cdef Lane *lane = NULL
    if rows_left(core) > CYP_PARTITIONS_MAX // 4:
        lane = _new_lane_row(core, ordinary.topic, ordinary.number)
    if lane == NULL:
        return NULL
    _link_transactional(ordinary, lane, transaction)
    _fill_row(core, lane, CYP_LANE_TRANSACTION | transaction.index << CYP_LANE_TRANSACTION_SHIFT)
    CRASHPOINT(b"attach.transactional-filled")
    return lane


cdef void _link_transactional(Lane *ordinary, Lane *lane, Transaction *transaction) noexcept nogil:
    lane.transaction = transaction
    lane.ordinary = ordinary
    lane.drain.leader = first_connection(ordinary.drain.leader)
    lane.topics.leader_epoch = ordinary.topics.leader_epoch
    lane.topics.next_transactional = ordinary.topics.transactional
    ordinary.topics.transactional = lane
    lane.topics.next_of_transaction = transaction.lanes
    transaction.lanes = lane


cdef void _link_lanes(Lane *ordinary, Lane *lane) noexcept nogil:
    lane.isolation = True
    lane.topics.other_lane = ordinary
    lane.drain.leader = first_connection(ordinary.drain.leader)
    lane.topics.leader_epoch = ordinary.topics.leader_epoch
    ordinary.topics.other_lane = lane


cdef void _fill_row(Core *core, Lane *lane, uint32_t kind) noexcept nogil:
    """Fill a row that is free, or the next one. A successor sees the whole row, or a free one."""
    cdef cyp_partition_row *row = lane.row
    store_release32(&row.lane, CYP_LANE_FREE)
    store_release32(&core.state_header.partition_count, core.topics.lane_count)
    row.topic = lane.topic.number
    row.partition = lane.number
    row.current = 0
    memset(row.identity, 0, sizeof(row.identity))
    row.identity[0].producer_id = -1
    row.identity[0].producer_epoch = -1
    CRASHPOINT(b"attach.row-filled")
    store_release32(&row.lane, kind)


cdef bint _make_space(Topic *topic) noexcept nogil:
    """Make space for one more partition in Topic.topics.partitions. Return False without memory."""
    cdef Lane **grown
    cdef int32_t count = topic.topics.partition_count
    if count & (count - 1) == 0:  # 0 or a power of two: it is full
        grown = <Lane **>realloc(topic.topics.partitions, max(2 * count, 1) * sizeof(Lane *))
        if grown == NULL:
            return False
        topic.topics.partitions = grown
    return True


cdef Lane *_new_lane_row(Core *core, Topic *topic, int32_t number) noexcept nogil:
    """Create a lane of partition `number` in a free row, or the next one, which is not written yet. NULL: no memory."""
    cdef Lane *lane
    cdef uint32_t index = core.topics.lane_count
    if core.topics.free_row_count:
        index = core.topics.free_rows[core.topics.free_row_count - 1]
    elif not _make_lanes(core, index + 1):
        return NULL
    lane = _new_lane(core, topic, number, index)
    if lane == NULL:
        return NULL
    if core.topics.free_row_count:
        core.topics.free_row_count -= 1
    else:
        core.topics.lane_count += 1
    return lane


cdef bint _make_lanes(Core *core, uint32_t count) noexcept nogil:
    """Make space for `count` rows in Core.topics.lanes. Return False without memory."""
    cdef Lane **grown
    cdef uint32_t room = max(2 * (core.topics.lane_room + 32), count)
    if count <= core.topics.lane_room:
        return True
    grown = <Lane **>realloc(core.topics.lanes, room * sizeof(Lane *))
    if grown == NULL:
        return False
    core.topics.lanes = grown
    core.topics.lane_room = room
    return True


cdef Lane *_new_lane(Core *core, Topic *topic, int32_t number, uint32_t index) noexcept nogil:
    """Create a lane for row `index`. Return NULL without memory."""
    cdef Lane *lane = <Lane *>calloc(1, sizeof(Lane))
    if lane == NULL:
        return NULL
    lane.index = index
    lane.topic = topic
    lane.number = number
    lane.topics.leader_epoch = -1
    clear_identity(lane)
    lane.row = &core.partition_rows[index]
    core.topics.lanes[index] = lane
    return lane


# ---------------------------------------------------------------- the partitions of a predecessor


cdef object restore_partitions(Core *core, uint32_t count):
    """Restore the lanes as the predecessor has stored them, after all topics. Free the rows of topics that are retired.

    Raise ValueError for a table that no sender writes, or MemoryError.
    """
    cdef uint32_t index
    cdef cyp_partition_row *row
    if not _make_lanes(core, count):
        raise MemoryError
    core.topics.lane_count = count
    for index in range(count):
        core.topics.lanes[index] = NULL
    for index in range(count):
        row = &core.partition_rows[index]
        if row.lane == CYP_LANE_FREE:
            continue
        if row.topic >= core.topics.count or row.partition < 0 or row.current > 1 or not _is_lane(row.lane) \
                or core.topics.table[row.topic].topics.free:
            raise ValueError(f"the partition table has an invalid row {index}")
        if core.topics.table[row.topic].topic_numbers.retired or _is_of_ended(core, row):
            store_release32(&row.lane, CYP_LANE_FREE)
            CRASHPOINT(b"recover.row-freed")
        elif row.lane == CYP_LANE_ORDINARY:
            core.topics.table[row.topic].topics.partition_count += 1
    for index in range(core.topics.count):
        _make_partitions(core.topics.table[index])
    for index in range(count):
        if core.partition_rows[index].lane == CYP_LANE_ORDINARY:
            _restore_lane(core, index)
    for index in range(count):
        if core.partition_rows[index].lane not in (CYP_LANE_ORDINARY, CYP_LANE_FREE):
            _restore_lane(core, index)
    for index in range(count, 0, -1):
        if core.topics.lanes[index - 1] == NULL:
            core.topics.free_rows[core.topics.free_row_count] = index - 1
            core.topics.free_row_count += 1


cdef inline bint _is_lane(uint32_t kind) noexcept nogil:
    """Return whether `cyp_partition_row.lane` has a value that a sender writes."""
    return kind <= CYP_LANE_FREE or (
        kind & ((1 << CYP_LANE_TRANSACTION_SHIFT) - 1) == CYP_LANE_TRANSACTION
        and kind >> CYP_LANE_TRANSACTION_SHIFT < CYP_TRANSACTIONS_MAX
    )


cdef inline bint _is_of_ended(Core *core, const cyp_partition_row *row) noexcept nogil:
    """Return whether the row is that of a transactional producer whose own row is free already."""
    return row.lane > CYP_LANE_FREE and not core.transactions.table[row.lane >> CYP_LANE_TRANSACTION_SHIFT].used


cdef int _make_partitions(Topic *topic) except -1:
    """Make space for the partitions that were counted. Raise MemoryError."""
    cdef uint64_t room = 1
    while room < <uint64_t>topic.topics.partition_count:
        room *= 2
    if topic.topics.partition_count:
        topic.topics.partitions = <Lane **>calloc(room, sizeof(Lane *))
        if topic.topics.partitions == NULL:
            raise MemoryError
    return 0


cdef int _restore_lane(Core *core, uint32_t index) except -1:
    """Restore the lane in row `index`, an ordinary one before the other lanes of its partition."""
    cdef cyp_partition_row *row = &core.partition_rows[index]
    cdef Topic *topic = core.topics.table[row.topic]
    cdef Lane *lane
    cdef bint isolation = row.lane == CYP_LANE_ISOLATION, ordinary = row.lane == CYP_LANE_ORDINARY
    if row.partition >= topic.topics.partition_count or (topic.topics.partitions[row.partition] == NULL) != ordinary \
            or (isolation and topic.topics.partitions[row.partition].topics.other_lane != NULL):
        raise ValueError(f"the partition table has an invalid row {index}")
    lane = _new_lane(core, topic, row.partition, index)
    if lane == NULL:
        raise MemoryError
    if isolation:
        _link_lanes(topic.topics.partitions[row.partition], lane)
    elif ordinary:
        topic.topics.partitions[row.partition] = lane
    else:
        _link_transactional(
            topic.topics.partitions[row.partition], lane,
            &core.transactions.table[row.lane >> CYP_LANE_TRANSACTION_SHIFT]
        )
    restore_identity(lane)
    return 0
