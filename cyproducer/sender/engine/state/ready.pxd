"""Keeps the rings of a node up to date: they hold the lanes and queues that have something to send."""

from cyproducer.sender.engine.state.flows cimport flow_of, list_backlog, unlist_backlog
from cyproducer.sender.engine.state.model cimport BATCH_LINGERING, Core, Flow, Node, Lane, Queue, Request
from cyproducer.sender.engine.state.states cimport DOUBT_NONE, LIST_LINGERING, LIST_NONE, LIST_READY
from cyproducer.sender.engine.state.transactions cimport place_of
from libc.stdint cimport int16_t, int64_t, uint8_t, uint64_t


cdef inline void note_timer(Core *core, uint64_t at_ns) noexcept nogil:
    """Make sure that the loop does not sleep beyond `at_ns`."""
    if at_ns < core.next_timer_ns:
        core.next_timer_ns = at_ns


cdef inline Node *first_connection(Node *node) noexcept nogil:
    """Return the node with the first connection to the node's broker. NULL stays NULL."""
    return node.broker if node != NULL and node.broker != NULL else node


cdef inline Request *oldest_request(const Node *node) noexcept nogil:
    """Return the oldest request that is being, or was, written and has no answer; NULL: there is none."""
    cdef Request *request = node.sent_head if node.sent_head != NULL else node.out_head
    return request if request != NULL and request.sent_ns else NULL


cdef inline void forget_doubt(Lane *lane) noexcept nogil:
    """Take the lane out of the list of doubted lanes that it is in. After the last one, the trials begin anew."""
    cdef Node *broker = lane.doubted_at
    cdef Lane **link
    if broker == NULL:
        return
    link = &broker.doubted
    while link[0] != lane:
        link = &link[0].next_doubted
    link[0] = lane.next_doubted
    lane.doubted_at = NULL
    lane.doubt = DOUBT_NONE
    if broker.doubted == NULL:
        broker.trials_end_ns = 0
        broker.late_trials = 0
        broker.prompt_trials = 0
        broker.latency.alarmed = False


cdef inline int64_t lane_producer_id(Core *core, Lane *lane) noexcept nogil:
    if lane.transaction != NULL:
        return place_of(lane.transaction).producer_id
    return core.isolation_producer_id if lane.isolation else core.producer_id


cdef inline int16_t lane_producer_epoch(Core *core, Lane *lane) noexcept nogil:
    if lane.transaction != NULL:
        return place_of(lane.transaction).producer_epoch
    return core.isolation_producer_epoch if lane.isolation else core.producer_epoch


cdef inline Lane *_unlink(Lane *head, Lane *lane) noexcept nogil:
    """Take the lane out of its ring. Return the new head of the ring."""
    if lane.next == lane:
        return NULL
    lane.previous.next = lane.next
    lane.next.previous = lane.previous
    return lane.next if head == lane else head


cdef inline Lane *_link_last(Lane *head, Lane *lane) noexcept nogil:
    """Append the lane to the ring. Return the head of the ring."""
    if head == NULL:
        lane.next = lane
        lane.previous = lane
        return lane
    lane.next = head
    lane.previous = head.previous
    head.previous.next = lane
    head.previous = lane
    return head


cdef inline void delist(Lane *lane) noexcept nogil:
    """Take the lane out of its leader's counts and rings."""
    cdef Node *node = lane.leader
    if lane.listed == LIST_READY:
        node.ready_count -= 1
    elif lane.listed == LIST_LINGERING:
        node.lingering = _unlink(node.lingering, lane)
        node.lingering_count -= 1
    lane.listed = LIST_NONE


cdef inline void relist(Lane *lane) noexcept nogil:
    """Put the lane into the right ring of its leader.

    This must be called after every change of ready, waiting, queue_count, the first wire, and the leader.
    """
    cdef Node *node = lane.leader
    cdef Flow *flow = NULL
    cdef uint8_t wanted
    if node == NULL:
        return
    if lane.waiting and not lane.backs_off:
        flow = lane.wire_head.flow if lane.wire_head.flow != NULL else &node.common
    if lane.retries.flow != flow:
        list_backlog(&lane.retries, lane, flow)
    if lane.ready or lane.waiting:
        wanted = LIST_READY
    elif lane.queue_count:
        wanted = LIST_LINGERING
    else:
        wanted = LIST_NONE
    if wanted == lane.listed:
        return
    delist(lane)
    if wanted == LIST_READY:
        node.ready_count += 1
    elif wanted == LIST_LINGERING:
        node.lingering = _link_last(node.lingering, lane)
        node.lingering_count += 1
    lane.listed = wanted


cdef inline void relist_queue(Queue *queue) noexcept nogil:
    """Put the queue into its flow's ring of backlogs, or take it out.

    This must be called after every change of the queue's head, the head's state, the lane, and the lane's leader.
    """
    cdef Node *node = queue.lane.leader
    if node == NULL or queue.head == NULL or queue.head.state == BATCH_LINGERING or queue.lane.backs_off:
        if queue.backlog.flow != NULL:
            unlist_backlog(&queue.backlog)
    elif queue.backlog.flow == NULL:
        list_backlog(&queue.backlog, queue.lane, flow_of(queue.front_end, node))
