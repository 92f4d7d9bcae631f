"""Makes requests of the batches that are ready, like Sender.sendProducerData in Kafka's producer.

It is fair at three levels:

 - Front-ends with batches for a broker share its requests by deficit round robin, whether their batches are
   in one partition or in thousands.
 - The partitions of a front-end are visited round-robin: a request continues where the last one stopped (Kafka's
   drainIndex).
 - Front-ends in a partition share it by deficit round robin over their queues.

Work that is postponed because a request has no space, or for lack of time for compression, keeps its round-robin
position at every level. A small request also takes batches that still linger, since it costs no further request. It
does not take a full batch that its front-end is compressing.
"""


# ------------------------------------------------------------ rings
#
# Links the elements of a Ring, see model.pyx.


cdef inline void ring_append(Ring *ring, Link *link) noexcept nogil:
    """Append an element whose link is in no ring."""
    cdef Link *first = ring.first
    ring.length += 1
    if first == NULL:
        link.next = link
        link.previous = link
        ring.first = link
        return
    link.next = first
    link.previous = first.previous
    first.previous.next = link
    first.previous = link


cdef inline void ring_remove(Ring *ring, Link *link) noexcept nogil:
    """Remove an element of the ring. If it was the first one, the element after it becomes the first."""
    ring.length -= 1
    if link.next == link:
        ring.first = NULL
        return
    link.previous.next = link.next
    link.next.previous = link.previous
    if ring.first == link:
        ring.first = link.next


cdef inline void ring_rotate(Ring *ring, Link *link) noexcept nogil:
    """Let the next walk begin at this element of the ring."""
    ring.first = link


# ------------------------------------------------------------ ready
#
# Keeps the rings of a node up to date: they hold the lanes and queues that have something to send.


cdef inline Node *first_connection(Node *node) noexcept nogil:
    """Return the node with the first connection to the node's broker. NULL stays NULL."""
    return node.pool.first if node != NULL and node.pool.first != NULL else node


cdef inline Request *oldest_request(const Node *node) noexcept nogil:
    """Return the oldest request that is being, or was, written and has no answer; NULL: there is none."""
    cdef Request *request = node.connection.sent_head if node.connection.sent_head != NULL else node.connection.out_head
    return request if request != NULL and request.connection.sent_ns else NULL


cdef inline int64_t lane_producer_id(Core *core, Lane *lane) noexcept nogil:
    if lane.transaction != NULL:
        return current_copy(lane.transaction).producer_id
    return core.idempotence.isolation_producer_id if lane.isolation else core.idempotence.producer_id


cdef inline int16_t lane_producer_epoch(Core *core, Lane *lane) noexcept nogil:
    if lane.transaction != NULL:
        return current_copy(lane.transaction).producer_epoch
    return core.idempotence.isolation_producer_epoch if lane.isolation else core.idempotence.producer_epoch


cdef inline void delist(Lane *lane) noexcept nogil:
    """Take the lane out of its leader's counts and rings."""
    cdef Node *node = lane.drain.leader
    if lane.drain.listed == LIST_READY:
        node.drain.ready_count -= 1
    elif lane.drain.listed == LIST_LINGERING:
        ring_remove(&node.drain.lingering, &lane.link)
    lane.drain.listed = LIST_NONE


cdef inline void relist(Lane *lane) noexcept nogil:
    """Put the lane into the right ring of its leader.

    This must be called after every change of ready, waiting, queues, the first wire, and the leader.
    """
    cdef Node *node = lane.drain.leader
    cdef Flow *flow = NULL
    cdef uint8_t wanted
    if node == NULL:
        return
    if lane.wire.waiting and not lane.drain.backs_off:
        flow = lane.wire.head.drain.flow if lane.wire.head.drain.flow != NULL else &node.common
    if lane.drain.retries.flow != flow:
        list_backlog(&lane.drain.retries, lane, flow)
    if lane.intake.ready or lane.wire.waiting:
        wanted = LIST_READY
    elif lane.intake.queues.length:
        wanted = LIST_LINGERING
    else:
        wanted = LIST_NONE
    if wanted == lane.drain.listed:
        return
    delist(lane)
    if wanted == LIST_READY:
        node.drain.ready_count += 1
    elif wanted == LIST_LINGERING:
        ring_append(&node.drain.lingering, &lane.link)
    lane.drain.listed = wanted


cdef inline void relist_queue(Queue *queue) noexcept nogil:
    """Put the queue into its flow's ring of backlogs, or take it out.

    This must be called after every change of the queue's head, the head's state, the lane, and the lane's leader.
    """
    cdef Node *node = queue.intake.lane.drain.leader
    if node == NULL or queue.intake.head == NULL or queue.intake.head.intake.state == BATCH_LINGERING \
            or queue.intake.lane.drain.backs_off:
        if queue.drain.backlog.flow != NULL:
            unlist_backlog(&queue.drain.backlog)
    elif queue.drain.backlog.flow == NULL:
        list_backlog(&queue.drain.backlog, queue.intake.lane, flow_of(queue.front_end, node))


# ------------------------------------------------------------ flows
#
# Shares each broker's requests, and the rows of the state region, among front-ends.
#
# A flow is what one front-end has for one broker. Requests are shared by deficit round robin. A flow sends up to
# QUANTUM_BYTES, then the next flow follows. So a front-end with a backlog in thousands of partitions gets no larger
# part of a request than one with a single batch. A flow has two rings of backlogs and takes from them alternately:
# queues with new batches, and partitions with wire batches that are sent again. Partitions that back off are in neither
# ring. They are checked all together: 8,000 of them every 8 ms.
#
# The entries are shared in two halves. Any flow may use the first half; the second half is a reserve. With N entries
# and n brokers a broker may take up to N / 2 / (n + 1) of the reserve. Each of its m flows may take 1 / (m + 1) of
# that, and at least one entry. So brokers that do not answer cannot use up the entries, in whatever order they take
# them:
#
#     a broker that answers finds       N / 2 / (n + 1) entries: 682 of 8,192 with five brokers, 40 with a hundred
#     each flow of a broker finds       its part of these, even if the other flows of the broker use up the first half
#     the only flow of a sender finds   at least N / 2 = 4,096 entries; five requests of 512 partitions need 2,560
#
# The first half is given out without conditions, and the reserve consists of the entries that are still free. So no
# deadlock is possible. A batch that is sent in parts takes an entry for each part, under the same rule.
#
# After a takeover, a sender does not know which entries its predecessor took from the reserve. It counts entries as
# taken from the reserve when their partition gets a leader, if more entries are in use than the first half and the
# counted ones. For each broker it counts at most the broker's part. So the numbers above hold after any number of
# takeovers.
#
# Bodies, and more than one contributor for an entry, are only needed for merging. Merging is optional: a broker that
# uses its part of one half of these rows merges nothing until more than half of them are free. One free contributor is
# kept for each free entry. Merged batches get only contributors beyond these.


cdef inline Flow *flow_of(FrontEnd *front_end, Node *node) noexcept nogil:
    """Return the front-end's flow at the broker. Without memory for a new one, return the broker's common flow."""
    if node.index < front_end.drain.flow_capacity and front_end.drain.flows[node.index] != NULL:
        return front_end.drain.flows[node.index]
    return new_flow(front_end, node)


cdef extern from *:
    """
    #include <assert.h>
    #include "cyproducer/shm/layout.h"
    _Static_assert(CYP_ENTRIES_MAX / 2 >= 5 * 512, "one front-end at one broker can fill five requests");
    _Static_assert(CYP_ENTRIES_MAX / 2 / (100 + 1) >= 40, "100 brokers that do not answer leave entries for others");
    _Static_assert(CYP_CONTRIBUTORS_MAX >= 2 * CYP_ENTRIES_MAX, "every entry has a contributor of its own, and more");
    """


cdef enum:
    QUANTUM_BYTES = 65536           # bytes per flow, or queue, and round: the size of a default batch
    DEBT_MAX_BYTES = 1048576        # largest negative deficit of a flow after a large batch
    BACKOFF_CHECK_NS = 1000         # interval of the checks, per partition: they take a twentieth of the time


cdef Flow *new_flow(FrontEnd *front_end, Node *node) noexcept nogil:
    """Create and return the front-end's flow at the broker. Without memory, return the broker's common flow."""
    cdef uint32_t capacity
    cdef Flow **grown
    cdef Flow *home = flow_of(front_end, node.pool.first) if node.pool.first != NULL else NULL
    if node.index >= front_end.drain.flow_capacity:
        capacity = 2 * (node.index + 4)
        grown = <Flow **>realloc(front_end.drain.flows, capacity * sizeof(Flow *))
        if grown == NULL:
            return &node.common
        memset(grown + front_end.drain.flow_capacity, 0, (capacity - front_end.drain.flow_capacity) * sizeof(Flow *))
        front_end.drain.flows = grown
        front_end.drain.flow_capacity = capacity
    if front_end.drain.flows[node.index] == NULL:
        front_end.drain.flows[node.index] = <Flow *>calloc(1, sizeof(Flow))
        if front_end.drain.flows[node.index] == NULL:
            return &node.common
        front_end.drain.flows[node.index].front_end = front_end
        front_end.drain.flows[node.index].node = node
        front_end.drain.flows[node.index].home = home if home != NULL else front_end.drain.flows[node.index]
        node.drain.users += 1
    return front_end.drain.flows[node.index]


cdef void free_flows(FrontEnd *front_end) noexcept nogil:
    """Free the flows of a front-end that is being freed. None of its batches is queued or assigned."""
    cdef uint32_t index
    for index in range(front_end.drain.flow_capacity):
        if front_end.drain.flows[index] != NULL:
            front_end.drain.flows[index].node.drain.users -= 1
            free(front_end.drain.flows[index])
    free(front_end.drain.flows)


# ---------------------------------------------------------------- round robin


cdef inline bint has_backlog(const Flow *flow) noexcept nogil:
    """Return whether the flow has a backlog: then it is in the ring of its node."""
    return flow.backlogs[0].first != NULL or flow.backlogs[1].first != NULL


cdef void list_backlog(Backlog *backlog, Lane *lane, Flow *flow) noexcept nogil:
    """Take the backlog out of its ring and append it to its ring of `flow`. If `flow` is NULL, only take it out.

    With its first backlog, the flow is appended to the ring of its node, and its deficit starts at 0.
    """
    if backlog.flow != NULL:
        unlist_backlog(backlog)
    if flow == NULL:
        return
    backlog.kind = BACKLOG_RETRIES if backlog == &lane.drain.retries else BACKLOG_NEW
    backlog.lane = lane
    backlog.flow = flow
    if not has_backlog(flow):
        flow.deficit = 0
        ring_append(&flow.node.drain.flows, &flow.link)
    ring_append(&flow.backlogs[backlog.kind], &backlog.link)


cdef void unlist_backlog(Backlog *backlog) noexcept nogil:
    """Take the backlog out of its ring. A flow without a backlog leaves the ring of its node."""
    cdef Flow *flow = backlog.flow
    cdef uint8_t kind = backlog.kind
    backlog.flow = NULL
    if flow.postponed[kind] == backlog:
        flow.postponed[kind] = NULL
    ring_remove(&flow.backlogs[kind], &backlog.link)
    if not has_backlog(flow):
        ring_remove(&flow.node.drain.flows, &flow.link)


cdef bint is_walk_done(const Core *core, Flow *flow) noexcept nogil:
    """Return whether this walk is done with the flow: every backlog was visited, or it may take no more entries."""
    cdef uint8_t kind
    if flow.walk != core.drain.walk:
        flow.walk = core.drain.walk
        for kind in range(2):
            flow.left[kind] = flow.backlogs[kind].length
            if flow.postponed[kind] != NULL:
                ring_rotate(&flow.backlogs[kind], &flow.postponed[kind].link)
                flow.postponed[kind] = NULL
    return not _offers(core, flow, BACKLOG_RETRIES) and not _offers(core, flow, BACKLOG_NEW)


cdef inline bint _offers(const Core *core, const Flow *flow, uint8_t kind) noexcept nogil:
    """Return whether the flow's ring of this kind has a backlog for this walk."""
    return flow.left[kind] > 0 and flow.backlogs[kind].first != NULL \
        and (kind == BACKLOG_RETRIES or may_begin(core, flow))


cdef Backlog *next_backlog(const Core *core, Flow *flow) noexcept nogil:
    """Return the flow's next backlog, from its two rings alternately. is_walk_done() must be false."""
    cdef uint8_t kind = flow.next_kind if _offers(core, flow, flow.next_kind) else flow.next_kind ^ 1
    cdef Backlog *found = <Backlog *>flow.backlogs[kind].first
    flow.next_kind = kind ^ 1
    flow.left[kind] -= 1
    ring_rotate(&flow.backlogs[kind], found.link.next)
    return found


cdef void keep_position(Flow *flow, Backlog *backlog) noexcept nogil:
    """Keep the round-robin position of a backlog that was postponed: the next walk starts at the first such backlog."""
    if backlog.flow == flow and flow.postponed[backlog.kind] == NULL:
        flow.postponed[backlog.kind] = backlog


cdef void go_to_next_flow(Node *node) noexcept nogil:
    """Go on to the node's next flow and allow it QUANTUM_BYTES more, less its debt."""
    cdef Flow *flow = <Flow *>node.drain.flows.first.next
    ring_rotate(&node.drain.flows, &flow.link)
    flow.deficit = min(flow.deficit + QUANTUM_BYTES, <int64_t>QUANTUM_BYTES)


cdef void charge_bytes(const Core *core, Flow *flow, uint32_t size) noexcept nogil:
    """Charge the flow for `size` bytes that it has in the request that is being made."""
    flow.deficit = max(flow.deficit - <int64_t>size, <int64_t>-DEBT_MAX_BYTES)
    flow.served = core.drain.walk


cdef void begin_with(const Core *core, Flow *flow) noexcept nogil:
    """Start the next request with this flow, because something of it had to be left out of this request.

    If nothing of it is in this request, it may send in the next one in spite of a debt.
    """
    if has_backlog(flow):
        ring_rotate(&flow.node.drain.flows, &flow.link)
        if flow.served != core.drain.walk:
            flow.deficit = max(flow.deficit, 1)


cdef void begin_backoff(Lane *lane) noexcept nogil:
    """Take the partition's backlogs out of their rings until the first check after `retry_at_ns`."""
    cdef Node *node = lane.drain.leader
    if lane.drain.backs_off:
        return
    if node.drain.backing_off.first == NULL:
        node.drain.backoff_ends_ns = UINT64_MAX
    lane.drain.backoff.lane = lane
    ring_append(&node.drain.backing_off, &lane.drain.backoff.link)
    lane.drain.backs_off = True
    node.drain.backoff_ends_ns = min(node.drain.backoff_ends_ns, _check_at(node, lane.drain.retry_at_ns))
    _relist_all(lane)


cdef inline uint64_t _check_at(const Node *node, uint64_t wanted_ns) noexcept nogil:
    """Return when the ring is checked next: the interval grows with the number of partitions, as all are checked."""
    return max(wanted_ns, node.drain.backoff_checked_ns + node.drain.backing_off.length * <uint64_t>BACKOFF_CHECK_NS)


cdef void unlink_backoff(Lane *lane) noexcept nogil:
    """Take a partition that backs off out of its ring. The caller lists its backlogs, if it has some."""
    lane.drain.backs_off = False
    ring_remove(&lane.drain.leader.drain.backing_off, &lane.drain.backoff.link)


cdef void end_backoffs(Core *core, Node *node) noexcept nogil:
    """List the backlogs of partitions whose backoff is over, and note when the ring must be checked next."""
    cdef Link *link = node.drain.backing_off.first
    cdef Lane *lane
    cdef uint64_t earliest = UINT64_MAX
    cdef uint32_t _index
    if link == NULL:
        return
    if node.drain.backoff_ends_ns <= core.loop.now:
        node.drain.backoff_checked_ns = core.loop.now
        for _index in range(node.drain.backing_off.length):
            lane = (<LaneLink *>link).lane
            link = link.next
            if lane.drain.retry_at_ns <= core.loop.now:
                unlink_backoff(lane)
                _relist_all(lane)
            else:
                earliest = min(earliest, lane.drain.retry_at_ns)
        node.drain.backoff_ends_ns = _check_at(node, earliest)
    if node.drain.backing_off.first != NULL:
        schedule_timer(core, node.drain.backoff_ends_ns)


cdef void _relist_all(Lane *lane) noexcept nogil:
    """Update the lists of the partition's retries and queues."""
    cdef Queue *queue = <Queue *>lane.intake.queues.first
    cdef uint32_t _index
    relist(lane)
    for _index in range(lane.intake.queues.length):
        relist_queue(queue)
        queue = <Queue *>queue.link.next


cdef void set_leader(Core *core, Lane *lane, Node *leader, int32_t epoch) noexcept nogil:
    """Set the lane's leader (NULL: none) and its epoch (-1: not known).

    A retry backoff concerns the old leader, so another leader or a newer epoch ends it, as
    ProducerBatch.hasLeaderChangedForTheOngoingRetry in Kafka.
    """
    cdef bint newer = leader != NULL and epoch > lane.topics.leader_epoch
    if leader != NULL:
        lane.topics.leader_epoch = epoch
    if leader != lane.drain.leader:
        if leader != NULL:
            lane.drain.retry_at_ns = 0
        move_lane(core, lane, leader)
    elif newer:
        lane.drain.retry_at_ns = 0
        if lane.drain.backs_off:
            unlink_backoff(lane)
            _relist_all(lane)


cdef void move_lane(Core *core, Lane *lane, Node *leader) noexcept nogil:
    """Change the lane's leader, or its connection. Its batches wait for that one, and its rows are counted there."""
    cdef Queue *queue = <Queue *>lane.intake.queues.first
    cdef uint32_t _index
    cdef WireBatch *wire = lane.wire.head
    cdef FrontEnd *front_end
    while wire != NULL:
        discharge(wire)
        wire = wire.wire.next
    if lane.drain.backs_off:
        unlink_backoff(lane)
    if lane.drain.retries.flow != NULL:
        unlist_backlog(&lane.drain.retries)
    for _index in range(lane.intake.queues.length):
        if queue.drain.backlog.flow != NULL:
            unlist_backlog(&queue.drain.backlog)
        queue = <Queue *>queue.link.next
    delist(lane)
    lane.drain.leader = leader
    wire = lane.wire.head
    while wire != NULL:
        front_end = NULL
        if wire.entry.contributors != CYP_NONE and core.contributor_batches[wire.entry.contributors] != NULL:
            front_end = core.contributor_batches[wire.entry.contributors].front_end
        charge(core, wire, front_end)
        wire = wire.wire.next
    _relist_all(lane)


# ---------------------------------------------------------------- shares


cdef void charge_new(Core *core, WireBatch *wire, FrontEnd *front_end) noexcept nogil:
    """Count the rows of a wire batch whose entry has just been taken from the free list, like `charge`."""
    wire.drain.reserved = core.wire.free_wire_count < CYP_ENTRIES_MAX // 2
    core.drain.reserved_wire_count += wire.drain.reserved
    charge(core, wire, front_end)


cdef void charge(Core *core, WireBatch *wire, FrontEnd *front_end) noexcept nogil:
    """Count the rows of a wire batch at the leader of its partition, for its first contributor (NULL: not known)."""
    cdef Node *node = wire.lane.drain.leader
    cdef Usage *used
    if node == NULL:
        wire.drain.flow = NULL
        return
    used = &first_connection(node).drain.used
    if not wire.drain.reserved and _exceeds_half(core) and used.reserved < _part(core, CYP_ENTRIES_MAX):
        wire.drain.reserved = True  # the predecessor took it from the reserve
        core.drain.reserved_wire_count += 1
    wire.drain.flow = &node.common if front_end == NULL else flow_of(front_end, node)
    _count(&wire.drain.flow.home.used, wire)
    _count(used, wire)


cdef inline bint _exceeds_half(const Core *core) noexcept nogil:
    """Return whether more entries are in use than the half plus the reserved ones: only after a takeover."""
    return CYP_ENTRIES_MAX - core.wire.free_wire_count > CYP_ENTRIES_MAX // 2 + core.drain.reserved_wire_count


cdef void _count(Usage *used, const WireBatch *wire) noexcept nogil:
    used.entries += 1
    used.reserved += wire.drain.reserved
    used.bodies += wire.wire.body != NULL
    used.extras += _extras(wire)
    used.parts += wire.partial


cdef void discharge(WireBatch *wire) noexcept nogil:
    """Stop counting the rows of a wire batch at its broker."""
    if wire.drain.flow != NULL:
        _uncount(&wire.drain.flow.home.used, wire)
        _uncount(&first_connection(wire.drain.flow.node).drain.used, wire)
        wire.drain.flow = NULL


cdef inline void leave_reserve(Core *core, WireBatch *wire) noexcept nogil:
    """Give the entry of a wire batch back to the reserve, if it was taken from there."""
    core.drain.reserved_wire_count -= wire.drain.reserved
    wire.drain.reserved = False


cdef void _uncount(Usage *used, const WireBatch *wire) noexcept nogil:
    used.entries -= 1
    used.reserved -= wire.drain.reserved
    used.bodies -= wire.wire.body != NULL
    used.extras -= _extras(wire)
    used.parts -= wire.partial


cdef inline uint32_t _extras(const WireBatch *wire) noexcept nogil:
    return wire.wire.contributor_count - 1 if wire.wire.contributor_count else 0


cdef bint may_begin(const Core *core, const Flow *flow) noexcept nogil:
    """Return whether the flow may take one more entry."""
    cdef uint32_t part
    if core.wire.free_wire_count > CYP_ENTRIES_MAX // 2:
        return True
    part = _part(core, CYP_ENTRIES_MAX)
    return first_connection(flow.node).drain.used.reserved < part \
        and flow.home.used.reserved < max(<uint32_t>1, part // (first_connection(flow.node).drain.users + 1))


cdef uint32_t split_room(const Core *core, ClientBatch *batch) noexcept nogil:
    """Return how many entries the parts of the batch may take now.

    Two are allowed in any case if no other batch of the flow has parts. So a front-end can always split one batch at
    each broker, and the batches that wait for its parts can be split later.
    """
    cdef Node *node = batch.queue.intake.lane.drain.leader
    cdef uint32_t room = 0, half = CYP_ENTRIES_MAX // 2, part = _part(core, CYP_ENTRIES_MAX)
    cdef uint32_t reserved
    cdef Flow *flow
    if core.wire.free_wire_count > half:
        room = core.wire.free_wire_count - half
    if node == NULL:
        return room
    reserved = first_connection(node).drain.used.reserved
    flow = flow_of(batch.front_end, node).home
    if flow.used.parts <= batch.parts.pending:
        room = max(room, <uint32_t>2)
    if reserved < part:
        part = max(<uint32_t>1, part // (first_connection(node).drain.users + 1))
        room += min(_part(core, CYP_ENTRIES_MAX) - reserved, part - min(flow.used.reserved, part))
    return min(room, core.wire.free_wire_count)


cdef uint32_t range_room(const Core *core, ClientBatch *batch, uint32_t entries) noexcept nogil:
    """Return how many contributors the parts of the batch may take now, if these are `entries` entries."""
    cdef Node *node = batch.queue.intake.lane.drain.leader
    if node == NULL or merge_room(core, flow_of(batch.front_end, node)) == 1:
        return entries
    return core.wire.free_contributor_count - (core.wire.free_wire_count - entries)


cdef inline uint32_t _part(const Core *core, uint32_t rows) noexcept nogil:
    """Return the part of half of a table that each broker may use."""
    return rows // 2 // (core.connection.broker_count + 1)


cdef uint32_t merge_room(const Core *core, const Flow *flow) noexcept nogil:
    """Return how many contributors the flow's next entry may have; 1 means that it must not be merged."""
    cdef uint32_t rows = CYP_CONTRIBUTORS_MAX - CYP_ENTRIES_MAX
    cdef uint32_t spare = 0
    cdef const Usage *used = &first_connection(flow.node).drain.used
    if core.wire.free_contributor_count > core.wire.free_wire_count:
        spare = core.wire.free_contributor_count - core.wire.free_wire_count
    if spare <= rows // 2 and used.extras >= _part(core, rows):
        return 1
    if core.wire.free_body_count <= CYP_BODIES_MAX // 2 and used.bodies >= _part(core, CYP_BODIES_MAX):
        return 1
    return 1 + min(spare, <uint32_t>MERGE_MAX - 1)


# ------------------------------------------------------------ backoff
#
# Computes the pause before a batch's next attempt: retry.backoff.ms, doubled with each attempt, as in Kafka.


cdef inline uint64_t backoff_ns(Core *core, uint32_t attempts) noexcept nogil:
    """Return the pause in ns after `attempts` failed attempts (0 counts as 1), by the rule of cluster/backoff.py."""
    cdef uint64_t wait = core.settings.retry_backoff_ns
    cdef uint64_t spread
    if wait >= core.settings.retry_backoff_max_ns:
        return core.settings.retry_backoff_max_ns
    while attempts > 1 and wait < core.settings.retry_backoff_max_ns:
        wait *= 2
        attempts -= 1
    wait = min(wait, core.settings.retry_backoff_max_ns)
    spread = wait // 5
    return min(wait - spread + draw_random(core) % (2 * spread + 1), core.settings.retry_backoff_max_ns)


cdef inline void postpone_lane(Core *core, Lane *lane, uint32_t attempts) noexcept nogil:
    """Start the pause of the lane after `attempts` failed attempts, in place of a pause that is already set."""
    lane.drain.retry_at_ns = core.loop.now + backoff_ns(core, attempts)


cdef inline void back_off(Core *core, WireBatch *wire) noexcept nogil:
    """Start the pause of the lane after a failed attempt of `wire`. A longer pause that is already set stays."""
    wire.lane.drain.retry_at_ns = max(
        wire.lane.drain.retry_at_ns, core.loop.now + backoff_ns(core, wire.entry.attempts)
    )


# ------------------------------------------------------------ drain


cdef enum:
    # the broker may have forgotten a producer that was silent for this long (producer.id.expiration.ms)
    IDLE_SECONDS = 3600


# A request that is being made.
ctypedef struct Draft:
    int16_t acks
    Transaction *transaction        # of its batches; NULL: they are in no transaction
    uint32_t count
    uint64_t size
    uint64_t room                   # bytes that it may have; only its first wire batch may exceed this
    WireBatch *wires[WIRES_PER_REQUEST_MAX]


cdef void drain_all(Core *core) noexcept nogil:
    """Make the requests that the brokers can take now, and write them."""
    cdef Node *node
    cdef uint32_t index
    cdef uint64_t began
    for index in range(core.connection.node_count):
        choose_connections(core, core.connection.nodes[index])
    for index in range(core.connection.node_count):
        # a different node is first in each iteration: the first ones may use up the time for compression
        node = core.connection.nodes[(core.totals.turns + index) % core.connection.node_count]
        while _drain(core, node):
            began = monotonic_ns()
            flush_out(core, node)
            count_work(core, monotonic_ns() - began)
        if node.drain.ready_count and core.loop.now < late_at(node):
            schedule_timer(core, late_at(node))


cdef bint _drain(Core *core, Node *node) noexcept nogil:
    """Make the next request for the node. Return True if there is one to write."""
    cdef Request *request
    if node.connection.state != CONNECTION_READY:
        if node.connection.state == CONNECTION_CLOSED and not node.drain.work_reported \
                and (node.drain.ready_count or node.drain.lingering.length):
            node.drain.work_reported = True
            push_event(core, EVENT_WORK, node.index, 0, 0)
        return False
    if node.connection.muted_until_ns > core.loop.now:
        schedule_timer(core, node.connection.muted_until_ns)
        return False
    if node.drain.exclusive_in_flight or (node.drain.exclusive_waits and node.connection.in_flight):
        return False
    node.drain.exclusive_waits = False
    if _drain_batches(core, node):
        return True
    request = states_request(core, node) if node.idempotence.asked_count else NULL
    if request != NULL:
        enqueue(core, node, request)
        CRASHPOINT(b"drain.state-asked")
    return request != NULL


cdef inline void report_work_again(Node *node) noexcept nogil:
    """Let the next iteration report work for a closed connection with EVENT_WORK again."""
    node.drain.work_reported = False


cdef bint _drain_batches(Core *core, Node *node) noexcept nogil:
    """Make the next Produce request for the node. Return True if there is one."""
    cdef int16_t acks
    cdef uint32_t step
    for step in range(3):
        if _is_full(core, node) or not node.drain.ready_count:
            break
        acks = <int16_t>((node.drain.next_acks + step) % 3) - 1
        if core.front_end.acks_seen >> (acks + 1) & 1 and _drain_request(core, node, acks):
            # no value of acks blocks the others
            node.drain.next_acks = <uint8_t>((node.drain.next_acks + step + 1) % 3)
            return True
    return False


cdef bint saturated(Core *core) noexcept nogil:
    """Return whether no broker can take a request now. Then no batch can be sent before one of the sockets is ready."""
    cdef uint32_t index, full = 0
    cdef Node *node
    for index in range(core.connection.node_count):
        node = core.connection.nodes[index]
        if node.connection.state == CONNECTION_CLOSED and (node.id < 0 or node.pool.first != NULL):
            continue
        if node.connection.state != CONNECTION_READY or not _is_full(core, node):
            return False
        full += 1
    return full > 0


cdef inline bint _is_full(const Core *core, const Node *node) noexcept nogil:
    """Return whether the broker takes no request before it has read or answered another one."""
    return (
        node.connection.out_head != NULL or node.connection.in_flight >= core.settings.max_in_flight
        or window_room(core, node) == 0
    )


cdef bint _drain_request(Core *core, Node *node, int16_t acks) noexcept nogil:
    """Make one Produce request of batches with these acks. Return False if there is none."""
    cdef Draft draft
    cdef WireBatch *wire
    cdef Request *request
    cdef uint32_t index
    cdef bint exclusive
    draft.acks = acks
    draft.count = 0
    draft.size = 0
    draft.room = min(window_room(core, node), <uint64_t>core.settings.max_request_size)
    if node.refusal.limit:
        draft.room = min(draft.room, request_limit(core, node))
    _collect_ready(core, node, &draft)
    if draft.count == 0:
        return False
    exclusive = needs_exclusive(draft.wires[0])
    if not exclusive:
        _collect_lingering(core, node, &draft)
    for index in range(draft.count):
        draft.wires[index].lane.drain.collected = False
    request = produce_request(core, node, draft.wires, draft.count)
    if request == NULL:
        for index in range(draft.count):
            relist(draft.wires[index].lane)
        return False
    request.drain.exclusive = node.drain.exclusive_in_flight = exclusive
    for index in range(draft.count):
        wire = draft.wires[index]
        put_in_flight(wire, request)
        relist(wire.lane)
        if not wire.lane.topic.topics.used:
            flag_use(core, wire.lane.topic)
        if wire.lane.topic.topics.partition_count > 1:
            count_drained(core, wire)
    count_produce(core, draft.wires, draft.count)
    enqueue(core, node, request)
    CRASHPOINT(b"drain.queued")
    return True


cdef inline void end_exclusive(Node *node) noexcept nogil:
    """Let other requests be sent again: the exclusive one has its answer, or its connection was closed."""
    node.drain.exclusive_in_flight = False


cdef void _collect_ready(Core *core, Node *node, Draft *draft) noexcept nogil:
    """Go through the flows by deficit round robin until the request is full, or every flow was visited."""
    cdef uint32_t idle = 0
    cdef bint postponed
    cdef Flow *flow
    cdef Flow *left_out = NULL      # the first flow of this walk of which something did not fit
    cdef Backlog *backlog
    cdef WireBatch *wire
    core.drain.walk += 1
    while node.drain.flows.first != NULL and idle <= node.drain.flows.length \
            and draft.count < WIRES_PER_REQUEST_MAX and draft.size < draft.room:
        flow = <Flow *>node.drain.flows.first
        if node.drain.flows.length == 1:
            flow.deficit = max(flow.deficit, 1)  # a single flow gets no debt
        if flow.deficit <= 0 or is_walk_done(core, flow):
            # A flow that only has a debt is visited again in this walk, since the others may have nothing to send.
            idle = idle + 1 if is_walk_done(core, flow) else 0
            go_to_next_flow(node)
            continue
        idle = 0
        postponed = False
        backlog = next_backlog(core, flow)
        wire = _add_next_of(core, backlog.lane, draft, &postponed)
        if wire != NULL:
            charge_bytes(core, wire.drain.flow if wire.drain.flow != NULL else flow, wire_bytes(wire))
        if postponed and (left_out == NULL or (left_out.served == core.drain.walk and flow.served != core.drain.walk)):
            left_out = flow
        if postponed or (wire != NULL and wire.drain.flow != flow):
            keep_position(flow, backlog)
        if wire != NULL and needs_exclusive(wire):
            break
    if left_out != NULL:
        begin_with(core, left_out)


cdef void _collect_lingering(Core *core, Node *node, Draft *draft) noexcept nogil:
    """Add batches to a small request: go once through the partitions that only have lingering batches."""
    cdef uint32_t left = node.drain.lingering.length
    cdef bint postponed = False
    cdef Lane *lane
    cdef WireBatch *wire
    while left and node.drain.lingering.first != NULL and draft.count < WIRES_PER_REQUEST_MAX \
            and draft.size < DRAIN_ALL_BELOW_BYTES:
        left -= 1
        lane = <Lane *>node.drain.lingering.first
        ring_rotate(&node.drain.lingering, lane.link.next)
        wire = _add_next_of(core, lane, draft, &postponed)
        if wire != NULL and wire.drain.flow != NULL:
            charge_bytes(core, wire.drain.flow, wire_bytes(wire))


cdef WireBatch *_add_next_of(Core *core, Lane *lane, Draft *draft, bint *postponed) noexcept nogil:
    """Add the partition's next wire batch to the request and return it; NULL if none can be sent now.

    Set `postponed` if one is postponed for lack of space in the request, or of time for compression.
    """
    cdef uint64_t room = 0
    cdef WireBatch *wire = NULL
    # a wire batch that was collected still counts as waiting: a second visit would take it again
    if lane.drain.collected or is_leaving(lane):
        return NULL
    if lane.topics.other_lane != NULL and lane.topics.other_lane.drain.collected:
        lane.drain.goes_first = True
        return NULL
    if draft.count and lane.transaction != draft.transaction:
        postponed[0] = True  # a request is of one transaction, or of none
        return NULL
    if draft.size < draft.room:
        room = draft.room - draft.size
    if lane.topics.other_lane != NULL and lane.topics.other_lane.drain.goes_first \
            and lane.topics.other_lane.drain.leader == lane.drain.leader and not is_leaving(lane.topics.other_lane):
        wire = _next_wire(core, lane.topics.other_lane, draft.acks, room, draft.count == 0, postponed)
        lane.topics.other_lane.drain.goes_first = postponed[0] and wire == NULL
    if wire == NULL and not postponed[0]:
        wire = _next_wire(core, lane, draft.acks, room, draft.count == 0, postponed)
    if wire == NULL:
        return NULL
    wire = _ready_to_send(core, wire)
    if wire == NULL:
        return NULL
    wire.lane.drain.collected = True
    draft.transaction = lane.transaction
    draft.wires[draft.count] = wire
    draft.count += 1
    draft.size += wire_bytes(wire) + produce_overhead(wire)
    return wire


cdef WireBatch *_ready_to_send(Core *core, WireBatch *wire) noexcept nogil:
    """Write the records and the header of the wire batch. Return it, or its first part if its topic refuses its size.

    Return NULL if it cannot be sent: its front-end has changed its records, or there is no memory.
    """
    cdef Lane *lane = wire.lane
    cdef WireBatch *before
    cdef PartCode code
    while True:
        code = encode_part(core, wire) if wire.partial and wire.wire.copy == NULL else PART_DONE
        if code == PART_NO_ROOM:
            schedule_timer(core, core.loop.now + core.settings.retry_backoff_ns)
            return NULL
        if code == PART_MALFORMED or not stamp(core, wire):
            reject_changed(core, wire, NULL)
            return NULL
        if not (wire.lane.topic.parts.too_large and exceeds_limit(core, wire)):
            return wire
        before = wire.wire.previous
        code = divide_by_size(core, wire, NULL)
        if code == PART_MALFORMED:
            reject_changed(core, wire, NULL)
            return NULL
        if code != PART_DONE:
            return wire  # the broker refuses it, and it is tried again
        wire = before.wire.next if before != NULL else lane.wire.head


cdef WireBatch *_next_wire(
    Core *core, Lane *lane, int16_t acks, uint64_t room, bint alone, bint *postponed
) noexcept nogil:
    """Return the partition's next wire batch for a request with `room` free bytes; NULL if none can be sent now.

    `alone`: the request is empty, so the wire batch may exceed its space. Set `postponed` if a wire batch is postponed
    for lack of space in the request, or of time for compression.
    """
    cdef WireBatch *wire
    cdef bint awaits_epoch
    if lane.transaction != NULL and not may_send(lane):
        return NULL
    if lane.drain.retry_at_ns > core.loop.now:
        begin_backoff(lane)
        schedule_timer(core, lane.drain.leader.drain.backoff_ends_ns)
        return NULL
    if lane.refusal.isolation_pending:
        move_to_isolation(core, lane)
    awaits_epoch = lane.idempotence.bumping and not try_bump_epoch(core, lane)
    if awaits_epoch or lane.wire.waiting:
        # retries go one by one and in order: the broker must never see a later sequence first
        if lane.wire.in_flight or not may_send_again(lane):
            return NULL
        wire = next_unsure_to_resend(lane) if awaits_epoch else lane.wire.head
        if wire == NULL or wire.acks != acks:
            return NULL
        if needs_exclusive(wire) and (not alone or lane.drain.leader.connection.in_flight):
            lane.drain.leader.drain.exclusive_waits = True
            postponed[0] = True
            return NULL
        postponed[0] = not _fits(wire, room, alone) or must_postpone_wire(core, wire)
        return NULL if postponed[0] else wire
    if lane.idempotence.acknowledged \
            and core.loop.now - lane.wire.acknowledged_ns > <uint64_t>IDLE_SECONDS * 1000000000 \
            and not any_idempotent(lane):
        lane.idempotence.acknowledged = False
    return _new_wire(core, lane, acks, room, alone, postponed)


cdef bint needs_exclusive(const WireBatch *wire) noexcept nogil:
    """Return whether the batch must be sent alone, so that on_break() knows which batch ends connections."""
    return wire.refusal.breaks >= SUSPECT_BREAKS


cdef bint _fits(WireBatch *wire, uint64_t room, bint alone) noexcept nogil:
    """Return whether the wire batch fits into the request."""
    return alone or wire_bytes(wire) + produce_overhead(wire) <= room


cdef WireBatch *_new_wire(
    Core *core, Lane *lane, int16_t acks, uint64_t room, bint alone, bint *postponed
) noexcept nogil:
    """Assign the lane's next batch, or several small ones, to a new wire batch. Return it; NULL if none can be sent."""
    cdef ClientBatch *batches[MERGE_MAX]
    cdef uint32_t count = 0
    cdef uint64_t size
    cdef bint idempotent
    cdef Queue *queue
    cdef WireBatch *wire
    if lane.wire.unresolved >= (1 if lane.isolation else UNRESOLVED_MAX):
        return NULL
    queue = _next_queue(core, lane, acks, postponed)
    if queue == NULL:
        return NULL
    idempotent = queue.front_end.idempotent
    if idempotent and not lane.idempotence.acknowledged and any_idempotent(lane):
        return NULL  # only one until the broker has acknowledged this producer id and epoch
    if idempotent and is_retrying(lane):
        return NULL  # the broker remembers five batches: with more it forgets the earlier attempt
    if idempotent and lane_producer_id(core, lane) < 0:
        want_producer_id(core, lane)
        return NULL
    if not _close_head(core, queue):
        return NULL
    if not alone and queue.intake.head.intake.bytes + 400 > room and sent_bytes(queue.intake.head) + 400 > room:
        postponed[0] = True
        ring_rotate(&lane.intake.queues, &queue.link)  # it keeps its round-robin position
        return NULL
    batches[0] = pop_head(queue)
    queue.drain.deficit -= batches[0].intake.bytes
    CRASHPOINT(b"drain.head-taken")
    count = 1
    size = batches[0].intake.bytes
    # a merged batch must be compressed here, even if the front-ends have offered compressed records
    if size < MERGE_BELOW_BYTES and not batches[0].refusal.unmergeable and not lane.isolation \
            and lane.transaction == NULL \
            and _may_compress(core, batches[0].front_end):
        _add_small_heads(core, lane, batches, &count, size, room)
    wire = assign(core, lane, batches, count)
    CRASHPOINT(b"drain.assigned")
    if wire == NULL and count > 1:
        while count > 1:
            count -= 1
            put_back(batches[count])
        wire = assign(core, lane, batches, 1)
    if wire == NULL:
        put_back(batches[0])
    return wire


cdef bint _may_compress(const Core *core, const FrontEnd *front_end) noexcept nogil:
    """Return whether this loop iteration may still compress a batch of the front-end, if it needs compression."""
    return front_end.codec == 0 or core.compression.packing_ns < PACKING_NS


cdef bint _close_head(Core *core, Queue *queue) noexcept nogil:
    """Seal the queue's head if it is still open. Return False if the queue has no head any more."""
    while queue.intake.head != NULL and queue.intake.head.intake.state != BATCH_CLOSED:
        if seal(core, queue.intake.head):
            return True
        # malformed: seal has removed it from the queue
    return queue.intake.head != NULL


cdef uint64_t _peek_bytes(ClientBatch *batch) noexcept nogil:
    """Return the batch's size in bytes, so far if it is open. A chain of several chunks counts as a full batch."""
    cdef uint64_t word
    if batch.intake.state == BATCH_CLOSED:
        return batch.intake.bytes
    word = slot_glance(&batch.front_end.rows[batch.slot])
    return CYP_BLOCK_BYTES if word_continues(word) else word_bytes(word)


cdef bint _front_end_finishes(ClientBatch *batch) noexcept nogil:
    """Return whether the front-end still fills the batch, or compresses the full batch before it submits it as full.

    The batch still becomes due by its age.
    """
    cdef uint64_t word
    if batch.front_end.codec == 0:
        return False
    word = slot_glance(&batch.front_end.rows[batch.slot])
    return word_continues(word) or word_state(word) == CYP_READY


cdef Queue *_next_queue(Core *core, Lane *lane, int16_t acks, bint *postponed) noexcept nogil:
    """Return the next queue: ready heads before lingering ones, the ready ones by deficit round robin.

    Return NULL if there is none. Set `postponed` if a queue is passed for lack of time to compress its head. This
    queue keeps its position.
    """
    cdef Queue *queue = <Queue *>lane.intake.queues.first
    cdef Queue *lingering = NULL
    cdef Queue *passed = NULL
    cdef uint32_t left, _round
    cdef bint some_ready = False
    if queue == NULL:
        return NULL
    for _round in range(1 + core.settings.max_request_size // QUANTUM_BYTES):
        left = lane.intake.queues.length
        while left:
            left -= 1
            if queue.front_end.settings.acks == acks and (lane.isolation or not queue.refusal.isolated) \
                    and may_begin(core, flow_of(queue.front_end, lane.drain.leader)):
                if queue.intake.head.intake.state == BATCH_LINGERING:
                    # without time to compress the batch, its front-end may go on filling it
                    if lingering == NULL and _may_compress(core, queue.front_end) \
                            and not _front_end_finishes(queue.intake.head):
                        lingering = queue
                elif queue.front_end.codec and must_postpone(core, queue.intake.head):
                    if passed == NULL:
                        passed = queue
                    postponed[0] = True
                else:
                    some_ready = True
                    queue.drain.deficit = min(
                        queue.drain.deficit + QUANTUM_BYTES, <int64_t>core.settings.max_request_size + QUANTUM_BYTES
                    )
                    if lane.intake.queues.length == 1:
                        queue.drain.deficit = <int64_t>queue.intake.head.intake.bytes  # a single queue gets no debt
                    if queue.drain.deficit >= <int64_t>queue.intake.head.intake.bytes:
                        ring_rotate(&lane.intake.queues, queue.link.next)
                        if passed != NULL and passed != queue:  # by then its front-end may have compressed it
                            rotate_queues(queue, passed)
                        return queue
            queue = <Queue *>queue.link.next
        if not some_ready:
            break
    return lingering


cdef void _add_small_heads(
    Core *core, Lane *lane, ClientBatch **batches, uint32_t *count, uint64_t size, uint64_t room
) noexcept nogil:
    """Add small heads of other front-ends to the same wire batch, as far as a body and the request have space."""
    cdef uint32_t most = merge_room(core, flow_of(batches[0].front_end, lane.drain.leader))
    cdef Queue *queue = <Queue *>lane.intake.queues.first
    cdef Queue *following
    cdef uint32_t left = lane.intake.queues.length
    # re-encoding may lengthen both deltas of a record: a third of the space is kept for that
    cdef uint64_t limit = min(<uint64_t>CYP_BLOCK_BYTES, room) * 2 // 3
    if lane.refusal.merge_max:
        limit = min(limit, <uint64_t>lane.refusal.merge_max)
    cdef FrontEnd *first = batches[0].front_end
    while left and count[0] < most and queue != NULL:
        left -= 1
        following = <Queue *>queue.link.next
        if queue.front_end != first and queue.front_end.settings.acks == first.settings.acks \
                and queue.front_end.idempotent == first.idempotent \
                and queue.front_end.settings.retries == first.settings.retries \
                and queue.front_end.codec == first.codec and queue.front_end.level == first.level \
                and not queue.intake.head.refusal.unmergeable and not queue.refusal.isolated \
                and not (queue.intake.head.intake.state == BATCH_LINGERING and _front_end_finishes(queue.intake.head)) \
                and size + _peek_bytes(queue.intake.head) <= limit:
            if _close_head(core, queue) and size + queue.intake.head.intake.bytes <= limit:
                size += queue.intake.head.intake.bytes
                queue.drain.deficit -= queue.intake.head.intake.bytes
                batches[count[0]] = pop_head(queue)
                count[0] += 1
        queue = following
        if lane.intake.queues.first == NULL:
            break
