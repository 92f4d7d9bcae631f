"""Chooses partitions for records without a key (KIP-794): shares that front-ends draw from, and sticky partitions.

Each partition of a topic has a byte in the metadata snapshot, its share: how likely it is to be drawn. As in Kafka's
producer (RecordAccumulator, BuiltInPartitioner), the share falls with the length of the partition's queue. It has its
lowest value, CYP_SHARE_AVOID, while the leader does not answer, or throttles for long. A front-end that fills whole
batches draws from these shares.

The other front-ends follow the topic's sticky partition, which the sender draws in the same way. So many slow
front-ends fill one batch together. The sender chooses another one after a batch's worth of bytes was sent to it, or
when a batch of it is sent after 50 ms. So a slow stream of records also reaches all partitions, without smaller
batches. It also chooses another one when the leader does not answer, since nothing is sent there.
"""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t

from cyproducer.sender.engine.state.model cimport CONNECTION_READY, Core, Node, Lane, Request, Topic
from cyproducer.sender.engine.state.topic_table cimport note_use
from cyproducer.shm.atomics cimport load_relaxed8, store_relaxed8, store_relaxed_i32
from cyproducer.shm.layout cimport cyp_topic_row
from cyproducer.shm.snapshot cimport (
    CYP_SHARE_AVOID,
    CYP_SHARE_FULL,
    CYP_SHARE_NONE,
    topic_leaders,
    topic_load,
    topic_partitions,
)


cdef enum:
    STICKY_BYTES = 65536            # the default of batch_size
    STICKY_NS = 50000000
    STUCK_MIN_NS = 100000000
    STUCK_MAX_NS = 1000000000
    CHECK_NS = 100000000            # interval of checking which brokers are stuck
    SHARES_NS = 10000000            # interval of publishing shares
    SHARES_PARTITIONS = 1024        # about how many partitions are handled each time


cdef inline uint64_t _random(Core *core) noexcept nogil:
    """Return a pseudo-random number (xorshift64), which is good enough to draw a partition."""
    core.random ^= core.random << 13
    core.random ^= core.random >> 7
    core.random ^= core.random << 17
    return core.random


cdef inline uint32_t _load(Lane *lane) noexcept nogil:
    return lane.unresolved + lane.ready


# ---------------------------------------------------------------- the sticky partition


cdef void choose_sticky(Core *core, Topic *topic) noexcept nogil:
    """Draw the topic's next sticky partition and publish it.

    Partitions whose leader answers are preferred, then those that have a leader, then any.
    """
    cdef uint32_t number, longest = _longest(core, topic)
    cdef uint64_t total = 0, drawn, weight
    cdef bint stuck_too = not _any_answers(core, topic)
    if topic.partition_count <= 0:
        return
    for number in range(<uint32_t>topic.partition_count):
        total += _weight(core, topic.partitions[number], longest, stuck_too)
    topic.sticky = <int32_t>(_random(core) % <uint64_t>topic.partition_count)
    if total:
        drawn = _random(core) % total
        for number in range(<uint32_t>topic.partition_count):
            weight = _weight(core, topic.partitions[number], longest, stuck_too)
            if drawn < weight:
                topic.sticky = <int32_t>number
                break
            drawn -= weight
    topic.sticky_bytes = 0
    topic.sticky_ns = core.now
    store_relaxed_i32(&core.sticky[topic.number], topic.sticky)


cdef inline uint64_t _weight(Core *core, Lane *lane, uint32_t longest, bint stuck_too) noexcept nogil:
    """Return 1 for the longest queue, and more for shorter ones; 0 if the partition must not be drawn."""
    cdef uint32_t load = _load(lane)
    if lane.leader == NULL or (not stuck_too and _is_stuck(core, lane.leader)):
        return 0
    return longest + 1 - load if load <= longest else 1


cdef uint32_t _longest(Core *core, Topic *topic) noexcept nogil:
    """Return the length of the longest queue of a partition whose leader answers."""
    cdef uint32_t longest = 0
    cdef int32_t number
    cdef Lane *lane
    for number in range(topic.partition_count):
        lane = topic.partitions[number]
        if _load(lane) > longest and lane.leader != NULL and not _is_stuck(core, lane.leader):
            longest = _load(lane)
    return longest


cdef bint _any_answers(Core *core, Topic *topic) noexcept nogil:
    """Return whether a partition of the topic has a leader that is not stuck."""
    cdef int32_t number
    for number in range(topic.partition_count):
        if topic.partitions[number].leader != NULL and not _is_stuck(core, topic.partitions[number].leader):
            return True
    return False


cdef bint _is_stuck(Core *core, const Node *node) noexcept nogil:
    """Return whether the broker does not answer, throttles for long, or has batches but no connection.

    The time counts from its last answer: a request behind others waits long even if all is well.
    """
    cdef const Request *request = node.sent_head if node.sent_head != NULL else node.out_head
    cdef uint64_t timeout = _stuck_timeout(core, node)
    if node.state != CONNECTION_READY or node.muted_until_ns > core.now + timeout:
        return node.ready_count > 0 or node.backing_off_count > 0
    return request != NULL and request.sent_ns != 0 and max(request.sent_ns, node.answered_ns) + timeout <= core.now


cdef inline uint64_t _stuck_timeout(Core *core, const Node *node) noexcept nogil:
    """Return after how many nanoseconds without an answer a broker counts as stuck.

    A front-end can fill its memory with records for such a broker in less than a second, so ten times the usual
    response time is enough. A broker that is excluded by mistake is drawn again after its next answer.
    """
    if core.stuck_ns:
        return core.stuck_ns
    if node.idle_time_ns == 0:
        return STUCK_MAX_NS
    return min(max(10 * node.idle_time_ns, <uint64_t>STUCK_MIN_NS), <uint64_t>STUCK_MAX_NS)


cdef void leave_stuck(Core *core) noexcept nogil:
    """Choose another sticky partition for topics whose sticky partition has a stuck leader, if another leader answers.

    If a broker became stuck, or answers again, note that the shares must be published.
    """
    cdef uint32_t index
    cdef bint any_stuck = False, stuck, changed = False
    cdef Topic *topic
    cdef Node *leader
    if core.now - core.sticky_checked_ns < CHECK_NS:
        return
    core.sticky_checked_ns = core.now
    for index in range(core.node_count):
        stuck = _is_stuck(core, core.nodes[index])
        changed = changed or stuck != core.nodes[index].stuck
        core.nodes[index].stuck = stuck
        any_stuck = any_stuck or stuck
    for index in range(core.topic_count if any_stuck or changed else 0):
        topic = core.topics[index]
        if changed:
            note_load(core, topic)
        if any_stuck and 0 <= topic.sticky < topic.partition_count:
            leader = topic.partitions[topic.sticky].leader
            if leader != NULL and _is_stuck(core, leader) and _any_answers(core, topic):
                choose_sticky(core, topic)


cdef void note_drained(Core *core, Lane *lane, uint64_t size) noexcept nogil:
    """Update the sticky partition after `size` bytes were sent to the lane. This must be called for every batch."""
    cdef Topic *topic = lane.topic
    note_use(core, topic)
    note_load(core, topic)
    if lane.number == topic.sticky:
        topic.sticky_bytes += size
        if topic.sticky_bytes >= STICKY_BYTES or core.now - topic.sticky_ns >= STICKY_NS:
            choose_sticky(core, topic)


# ---------------------------------------------------------------- shares


cdef void note_load(Core *core, Topic *topic) noexcept nogil:
    """Note that queues or leaders of the topic's partitions have changed, so its shares must be published."""
    if topic.shares_due or topic.partition_count < 2:
        return
    topic.shares_due = True
    topic.next_shares_due = NULL
    if core.shares_due_tail == NULL:
        core.shares_due = topic
    else:
        core.shares_due_tail.next_shares_due = topic
    core.shares_due_tail = topic


cdef void publish_shares(Core *core) noexcept nogil:
    """Publish the shares of topics that changed. Note those again whose partitions do not all have the full share.

    No timer is set for this: without activity no front-end draws a partition.
    """
    cdef Topic *last = core.shares_due_tail
    cdef Topic *topic = NULL
    cdef int64_t room = SHARES_PARTITIONS
    if last == NULL or core.now - core.shares_published_ns < SHARES_NS:
        return
    core.shares_published_ns = core.now
    while topic != last and room > 0:
        topic = core.shares_due
        core.shares_due = topic.next_shares_due
        if core.shares_due == NULL:
            core.shares_due_tail = NULL
        topic.shares_due = False
        room -= topic.partition_count
        if not _publish_topic(core, topic):
            note_load(core, topic)


cdef bint _publish_topic(Core *core, Topic *topic) noexcept nogil:
    """Publish the shares of a topic's partitions. Return whether all have the full share."""
    cdef cyp_topic_row *row = &core.topic_rows[topic.number]
    cdef uint32_t count = topic_partitions(topic_load(row)), number
    cdef uint32_t longest = _longest(core, topic)
    cdef uint8_t *shares = core.leaders + <uint32_t>topic_leaders(row)
    cdef uint8_t share
    cdef uint64_t weight
    cdef bint even = True
    if count > <uint32_t>topic.partition_count:
        count = <uint32_t>topic.partition_count
    for number in range(count):
        share = CYP_SHARE_AVOID
        weight = _weight(core, topic.partitions[number], longest, False)
        if weight:
            weight = weight * (CYP_SHARE_FULL - CYP_SHARE_AVOID) // (longest + 1)
            share = <uint8_t>(CYP_SHARE_AVOID + (weight if weight else 1))
        even = even and share == CYP_SHARE_FULL
        if load_relaxed8(&shares[number]) != CYP_SHARE_NONE and load_relaxed8(&shares[number]) != share:
            store_relaxed8(&shares[number], share)  # a hint: it is not ordered with other stores
    return even
