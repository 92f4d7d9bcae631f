"""The sticky partition of each topic (KIP-794), one for all front-ends of the sender.

Records without a key follow it, so that many slow front-ends fill one batch together. It moves on when a
batch's worth of bytes was drained to it, to a partition drawn at random among those with a leader; with
partitioner_adaptive_partitioning_enable the longer a partition's queue, the smaller its chance. And it leaves a broker
that does not answer, or throttles for long: nothing is drained there, and Kafka's producer, which counts what is
appended, goes on as well.
"""

from libc.stdint cimport int32_t, uint32_t, uint64_t

from cyproducer.shm.atomics cimport store_relaxed_i32
from cyproducer.sender.model cimport CONNECTION_READY, Core, Node, Partition, Request, Topic


cdef enum:
    STICKY_BYTES = 65536            # batch_size's default
    STUCK_NS = 1000000000           # no answer for so long, or no request to be sent for so long
    CHECK_NS = 100000000            # how often the brokers are looked at


cdef inline uint64_t _random(Core *core) noexcept nogil:
    """xorshift64: which partition it is matters to nobody."""
    core.random ^= core.random << 13
    core.random ^= core.random >> 7
    core.random ^= core.random << 17
    return core.random


cdef inline uint32_t _load(Partition *partition) noexcept nogil:
    return partition.unresolved + partition.ready


cdef void choose_sticky(Core *core, Topic *topic) noexcept nogil:
    """Draws the topic's next sticky partition and publishes it.

    Of those whose leader answers, else of those that have a leader, else any.
    """
    cdef uint32_t longest = 0, number
    cdef uint64_t total = 0, drawn, weight
    cdef bint stuck_too = not _any_answers(core, topic)
    cdef Partition *partition
    if topic.partition_count <= 0:
        return
    for number in range(<uint32_t>topic.partition_count):
        partition = topic.partitions[number]
        if partition.leader != NULL and _load(partition) > longest:
            longest = _load(partition)
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
    store_relaxed_i32(&core.sticky[topic.number], topic.sticky)


cdef inline uint64_t _weight(Core *core, Partition *partition, uint32_t longest, bint stuck_too) noexcept nogil:
    if partition.leader == NULL or (not stuck_too and _is_stuck(core, partition.leader)):
        return 0
    return longest + 1 - _load(partition) if core.adaptive else 1


cdef bint _any_answers(Core *core, Topic *topic) noexcept nogil:
    """Has a partition a leader that is not stuck?"""
    cdef int32_t number
    for number in range(topic.partition_count):
        if topic.partitions[number].leader != NULL and not _is_stuck(core, topic.partitions[number].leader):
            return True
    return False


cdef bint _is_stuck(Core *core, const Node *node) noexcept nogil:
    """Does the broker not answer, or throttle for long, or is there no connection for what waits?"""
    cdef const Request *request = node.sent_head if node.sent_head != NULL else node.out_head
    if node.state != CONNECTION_READY or node.muted_until_ns > core.now + STUCK_NS:
        return node.ready_count > 0
    return request != NULL and request.sent_ns != 0 and request.sent_ns + STUCK_NS <= core.now


cdef void leave_stuck(Core *core) noexcept nogil:
    """Topics whose sticky partition is led by a broker that is stuck get another one, if there is a better one."""
    cdef uint32_t index
    cdef bint any_stuck = False
    cdef Topic *topic
    cdef Node *leader
    if core.now - core.sticky_checked_ns < CHECK_NS:
        return
    core.sticky_checked_ns = core.now
    for index in range(core.node_count):
        any_stuck = any_stuck or _is_stuck(core, core.nodes[index])
    for index in range(core.topic_count if any_stuck else 0):
        topic = core.topics[index]
        if 0 <= topic.sticky < topic.partition_count:
            leader = topic.partitions[topic.sticky].leader
            if leader != NULL and _is_stuck(core, leader) and _any_answers(core, topic):
                choose_sticky(core, topic)


cdef void drained(Core *core, Partition *partition, uint64_t size) noexcept nogil:
    """To be called with every batch that goes out."""
    cdef Topic *topic = partition.topic
    topic.used = True
    if partition.number == topic.sticky:
        topic.sticky_bytes += size
        if topic.sticky_bytes >= STICKY_BYTES:
            choose_sticky(core, topic)
