"""Chooses partitions for records without a key (KIP-794): shares that front-ends draw from, and sticky partitions.

Each partition of a topic has a byte in the metadata snapshot, its share: how likely it is to be drawn. As in Kafka's
producer (RecordAccumulator, BuiltInPartitioner), the share falls with the length of the partition's queue. It has its
lowest value, CYP_SHARE_AVOID, while the leader does not answer, or throttles for long. A front-end that fills whole
batches draws from these shares.

With partitioner_rack_aware, partitions with a leader in client_rack are drawn only, as long as one of these answers
(KIP-1123).

The other front-ends follow the topic's sticky partition, which the sender draws in the same way. So many slow
front-ends fill one batch together. The sender chooses another one after a batch's worth of bytes was sent to it, or
when a batch of it is sent after 50 ms. So a slow stream of records also reaches all partitions, without smaller
batches. It also chooses another one when the leader does not answer, since nothing is sent there.
"""


cdef enum:
    STICKY_BYTES = 65536            # if the front-end of a batch has ended: the default of batch_size
    STICKY_NS = 50000000
    STUCK_MIN_NS = 100000000
    STUCK_MAX_NS = 1000000000
    UNRESPONSIVE_CHECK_NS = 100000000   # interval of checking which brokers are stuck
    SHARES_NS = 10000000            # interval of publishing shares
    SHARES_PARTITIONS = 1024        # about how many partitions are handled each time


# Which partitions of a topic may be drawn, and how likely each of them is.
ctypedef struct Draw:
    uint32_t longest                # length of the longest queue of a partition whose leader answers
    bint any_answers                # a partition has a leader that answers
    bint rack_only                  # only leaders in client_rack: one of them answers (KIP-1123)
    bint stuck_too                  # also partitions whose leader does not answer


cdef inline uint32_t _load(Lane *lane) noexcept nogil:
    return lane.wire.unresolved + lane.intake.ready


# ---------------------------------------------------------------- the sticky partition


cdef void choose_sticky(Core *core, Topic *topic) noexcept nogil:
    """Draw the topic's next sticky partition and publish it.

    Partitions whose leader answers are preferred, then those that have a leader, then any.
    """
    cdef Draw draw = _draw(core, topic)
    cdef uint32_t number
    cdef uint64_t total = 0, drawn, weight
    draw.stuck_too = not draw.any_answers
    if topic.topics.partition_count <= 0:
        return
    for number in range(<uint32_t>topic.topics.partition_count):
        total += _weight(core, topic.topics.partitions[number], &draw)
    topic.partitioner.sticky = <int32_t>(draw_random(core) % <uint64_t>topic.topics.partition_count)
    if total:
        drawn = draw_random(core) % total
        for number in range(<uint32_t>topic.topics.partition_count):
            weight = _weight(core, topic.topics.partitions[number], &draw)
            if drawn < weight:
                topic.partitioner.sticky = <int32_t>number
                break
            drawn -= weight
    topic.partitioner.sticky_bytes = 0
    topic.partitioner.sticky_ns = core.loop.now
    store_relaxed_i32(&core.sticky[topic.number], topic.partitioner.sticky)


cdef Draw _draw(Core *core, Topic *topic) noexcept nogil:
    """Return how to draw a partition of the topic whose leader answers."""
    cdef Draw draw
    cdef int32_t number
    cdef Lane *lane
    draw.longest = 0
    draw.any_answers = draw.rack_only = draw.stuck_too = False
    for number in range(topic.topics.partition_count):
        lane = topic.topics.partitions[number]
        if lane.drain.leader == NULL or _is_unresponsive(core, lane.drain.leader):
            continue
        draw.any_answers = True
        draw.longest = max(draw.longest, _load(lane))
        draw.rack_only = draw.rack_only or core.settings.rack_aware and first_connection(lane.drain.leader).loop.in_rack
    return draw


cdef inline uint64_t _weight(Core *core, Lane *lane, const Draw *draw) noexcept nogil:
    """Return 1 for the longest queue, and more for shorter ones; 0 if the partition must not be drawn."""
    cdef uint32_t load = _load(lane)
    if lane.drain.leader == NULL or (not draw.stuck_too and _is_unresponsive(core, lane.drain.leader)):
        return 0
    if draw.rack_only and not first_connection(lane.drain.leader).loop.in_rack:
        return 0
    return draw.longest + 1 - load if load <= draw.longest else 1


cdef bint _is_unresponsive(Core *core, const Node *node) noexcept nogil:
    """Return whether the broker does not answer, throttles for long, or has batches but no connection.

    The time counts from its last answer: a request behind others waits long even if all is well.
    """
    cdef const Request *request = oldest_request(node)
    cdef uint64_t timeout = _unresponsive_timeout(core, node)
    if node.connection.state != CONNECTION_READY or node.connection.muted_until_ns > core.loop.now + timeout:
        return node.drain.ready_count > 0 or node.drain.backing_off.length > 0
    return request != NULL and max(request.connection.sent_ns, node.connection.answered_ns) + timeout <= core.loop.now


cdef inline uint64_t _unresponsive_timeout(Core *core, const Node *node) noexcept nogil:
    """Return after how many nanoseconds without an answer a broker counts as stuck.

    A front-end can fill its memory with records for such a broker in less than a second, so ten times the usual
    response time is enough. A broker that is excluded by mistake is drawn again after its next answer.
    """
    if core.settings.unresponsive_ns:
        return core.settings.unresponsive_ns
    if node.connection.window.idle_time_ns == 0:
        return STUCK_MAX_NS
    return min(max(10 * node.connection.window.idle_time_ns, <uint64_t>STUCK_MIN_NS), <uint64_t>STUCK_MAX_NS)


cdef void leave_unresponsive(Core *core) noexcept nogil:
    """Choose another sticky partition for topics whose sticky partition has a stuck leader, if another leader answers.

    If a broker became stuck, or answers again, note that the shares must be published. This must be called each
    UNRESPONSIVE_CHECK_NS.
    """
    cdef uint32_t index
    cdef bint any_stuck = False, stuck, changed = False
    cdef Topic *topic
    cdef Node *leader
    core.partitioner.sticky_checked_ns = core.loop.now
    for index in range(core.connection.node_count):
        stuck = _is_unresponsive(core, core.connection.nodes[index])
        changed = changed or stuck != core.connection.nodes[index].partitioner.unresponsive
        core.connection.nodes[index].partitioner.unresponsive = stuck
        any_stuck = any_stuck or stuck
    for index in range(core.topics.count if any_stuck or changed else 0):
        topic = core.topics.table[index]
        if changed:
            schedule_load(core, topic)
        if any_stuck and 0 <= topic.partitioner.sticky < topic.topics.partition_count:
            leader = topic.topics.partitions[topic.partitioner.sticky].drain.leader
            if leader != NULL and _is_unresponsive(core, leader) and _draw(core, topic).any_answers:
                choose_sticky(core, topic)


cdef void count_drained(Core *core, const WireBatch *wire) noexcept nogil:
    """Update the sticky partition after a batch was sent to its lane.

    This must be called for every batch of a topic with several partitions.
    The batch_size of its front-end is the quantum of the change, as in Kafka's producer (BuiltInPartitioner).
    """
    cdef Lane *lane = wire.lane
    cdef Topic *topic = lane.topic
    cdef uint64_t quantum = STICKY_BYTES
    schedule_load(core, topic)
    if lane.number == topic.partitioner.sticky:
        if wire.drain.flow != NULL and wire.drain.flow.front_end != NULL:
            quantum = wire.drain.flow.front_end.settings.batch_bytes
        topic.partitioner.sticky_bytes += wire.entry.length
        if topic.partitioner.sticky_bytes >= quantum or core.loop.now - topic.partitioner.sticky_ns >= STICKY_NS:
            choose_sticky(core, topic)


# ---------------------------------------------------------------- shares


cdef void schedule_load(Core *core, Topic *topic) noexcept nogil:
    """Note that queues or leaders of the topic's partitions have changed, so its shares must be published."""
    if topic.partitioner.shares_due or topic.topics.partition_count < 2:
        return
    topic.partitioner.shares_due = True
    topic.partitioner.next_shares_due = NULL
    if core.partitioner.shares_due_tail == NULL:
        core.partitioner.shares_due = topic
    else:
        core.partitioner.shares_due_tail.partitioner.next_shares_due = topic
    core.partitioner.shares_due_tail = topic


cdef void unlist_shares(Core *core, Topic *topic) noexcept nogil:
    """Remove the topic from the list of those whose shares must be published: a broker that is down keeps it there."""
    cdef Topic *before = NULL
    cdef Topic *listed = core.partitioner.shares_due
    while listed != NULL and listed != topic:
        before = listed
        listed = listed.partitioner.next_shares_due
    if listed == NULL:
        return
    if before == NULL:
        core.partitioner.shares_due = topic.partitioner.next_shares_due
    else:
        before.partitioner.next_shares_due = topic.partitioner.next_shares_due
    if core.partitioner.shares_due_tail == topic:
        core.partitioner.shares_due_tail = before
    topic.partitioner.shares_due = False


cdef void publish_shares(Core *core) noexcept nogil:
    """Publish the shares of topics that changed. Note those again whose partitions do not all have the full share.

    There must be such a topic. No timer is set for this: without activity no front-end draws a partition.
    """
    cdef Topic *last = core.partitioner.shares_due_tail
    cdef Topic *topic = NULL
    cdef int64_t room = SHARES_PARTITIONS
    if core.loop.now - core.partitioner.shares_published_ns < SHARES_NS:
        return
    core.partitioner.shares_published_ns = core.loop.now
    while topic != last and room > 0:
        topic = core.partitioner.shares_due
        core.partitioner.shares_due = topic.partitioner.next_shares_due
        if core.partitioner.shares_due == NULL:
            core.partitioner.shares_due_tail = NULL
        topic.partitioner.shares_due = False
        room -= topic.topics.partition_count
        if not _publish_topic(core, topic):
            schedule_load(core, topic)


cdef bint _publish_topic(Core *core, Topic *topic) noexcept nogil:
    """Publish the shares of a topic's partitions. Return whether all have the full share."""
    cdef cyp_topic_row *row = &core.topic_rows[topic.number]
    cdef uint32_t count = topic_partitions(topic_load(row)), number
    cdef Draw draw = _draw(core, topic)
    cdef uint8_t *shares = core.leaders + <uint32_t>topic_leaders(row)
    cdef uint8_t share
    cdef uint64_t weight
    cdef bint even = True
    if count > <uint32_t>topic.topics.partition_count:
        count = <uint32_t>topic.topics.partition_count
    for number in range(count):
        share = CYP_SHARE_AVOID
        weight = _weight(core, topic.topics.partitions[number], &draw)
        if weight:
            weight = weight * (CYP_SHARE_FULL - CYP_SHARE_AVOID) // (draw.longest + 1)
            share = <uint8_t>(CYP_SHARE_AVOID + (weight if weight else 1))
        even = even and share == CYP_SHARE_FULL
        if load_relaxed8(&shares[number]) != CYP_SHARE_NONE and load_relaxed8(&shares[number]) != share:
            store_relaxed8(&shares[number], share)  # a hint: it is not ordered with other stores
    return even
