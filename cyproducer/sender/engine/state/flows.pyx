"""Shares each broker's requests, and the rows of the state region, among front-ends.

A flow is what one front-end has for one broker. Requests are shared by deficit round robin. A flow sends up to
QUANTUM_BYTES, then the next flow follows. So a front-end with a backlog in thousands of partitions gets no larger part
of a request than one with a single batch. A flow has two rings of backlogs and takes from them alternately: queues with
new batches, and partitions with wire batches that are sent again. Partitions that back off are in neither ring. They
are checked all together: 8,000 of them every 8 ms.

The entries are shared in two halves. Any flow may use the first half; the second half is a reserve. With N entries and
n brokers a broker may take up to N / 2 / (n + 1) of the reserve. Each of its m flows may take 1 / (m + 1) of that, and
at least one entry. So brokers that do not answer cannot use up the entries, in whatever order they take them:

    a broker that answers finds       N / 2 / (n + 1) entries: 682 of 8,192 with five brokers, 40 with a hundred
    each flow of a broker finds       its part of these, even if the other flows of the broker use up the first half
    the only flow of a sender finds   at least N / 2 = 4,096 entries; five requests of 512 partitions need 2,560

The first half is given out without conditions, and the reserve consists of the entries that are still free. So no
deadlock is possible. A batch that is sent in parts takes an entry for each part, under the same rule.

After a takeover, a sender does not know which entries its predecessor took from the reserve. It counts entries as taken
from the reserve when their partition gets a leader, if more entries are in use than the first half and the counted
ones. For each broker it counts at most the broker's part. So the numbers above hold after any number of takeovers.

Bodies, and more than one contributor for an entry, are only needed for merging. Merging is optional: a broker that uses
its part of one half of these rows merges nothing until more than half of them are free. One free contributor is kept
for each free entry. Merged batches get only contributors beyond these.
"""

from libc.stdint cimport UINT64_MAX, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, realloc
from libc.string cimport memset

from cyproducer.sender.engine.state.model cimport (
    BACKLOG_NEW,
    BACKLOG_RETRIES,
    MERGE_MAX,
    Backlog,
    ClientBatch,
    Core,
    Flow,
    FrontEnd,
    Node,
    Lane,
    Queue,
    Usage,
    WireBatch,
)
from cyproducer.sender.engine.state.ready cimport delist, note_timer, relist, relist_queue
from cyproducer.shm.layout cimport CYP_BODIES_MAX, CYP_CONTRIBUTORS_MAX, CYP_ENTRIES_MAX, CYP_NONE


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
    if node.index >= front_end.flow_capacity:
        capacity = 2 * (node.index + 4)
        grown = <Flow **>realloc(front_end.flows, capacity * sizeof(Flow *))
        if grown == NULL:
            return &node.common
        memset(grown + front_end.flow_capacity, 0, (capacity - front_end.flow_capacity) * sizeof(Flow *))
        front_end.flows = grown
        front_end.flow_capacity = capacity
    if front_end.flows[node.index] == NULL:
        front_end.flows[node.index] = <Flow *>calloc(1, sizeof(Flow))
        if front_end.flows[node.index] == NULL:
            return &node.common
        front_end.flows[node.index].front_end = front_end
        front_end.flows[node.index].node = node
        node.users += 1
    return front_end.flows[node.index]


cdef void free_flows(FrontEnd *front_end) noexcept nogil:
    """Free the flows of a front-end that is being freed. None of its batches is queued or assigned."""
    cdef uint32_t index
    for index in range(front_end.flow_capacity):
        if front_end.flows[index] != NULL:
            front_end.flows[index].node.users -= 1
            free(front_end.flows[index])
    free(front_end.flows)


# ---------------------------------------------------------------- round robin


cdef void list_backlog(Backlog *backlog, Lane *lane, Flow *flow) noexcept nogil:
    """Take the backlog out of its ring and append it to its ring of `flow`. If `flow` is NULL, only take it out."""
    cdef Backlog *first
    if backlog.flow != NULL:
        unlist_backlog(backlog)
    if flow == NULL:
        return
    backlog.kind = BACKLOG_RETRIES if backlog == &lane.retries else BACKLOG_NEW
    backlog.lane = lane
    backlog.flow = flow
    if flow.counts[0] + flow.counts[1] == 0:
        _enlist_flow(flow)
    flow.counts[backlog.kind] += 1
    first = flow.rings[backlog.kind]
    if first == NULL:
        backlog.next = backlog
        backlog.previous = backlog
        flow.rings[backlog.kind] = backlog
        return
    backlog.next = first
    backlog.previous = first.previous
    first.previous.next = backlog
    first.previous = backlog


cdef void _enlist_flow(Flow *flow) noexcept nogil:
    """Append the flow to the ring of its node; its deficit starts at 0."""
    cdef Node *node = flow.node
    flow.deficit = 0
    node.flow_count += 1
    if node.flows == NULL:
        flow.next = flow
        flow.previous = flow
        node.flows = flow
        return
    flow.next = node.flows
    flow.previous = node.flows.previous
    node.flows.previous.next = flow
    node.flows.previous = flow


cdef void unlist_backlog(Backlog *backlog) noexcept nogil:
    """Take the backlog out of its ring. A flow without a backlog leaves the ring of its node."""
    cdef Flow *flow = backlog.flow
    cdef uint8_t kind = backlog.kind
    backlog.flow = NULL
    flow.counts[kind] -= 1
    if flow.postponed[kind] == backlog:
        flow.postponed[kind] = NULL
    if backlog.next == backlog:
        flow.rings[kind] = NULL
    else:
        backlog.previous.next = backlog.next
        backlog.next.previous = backlog.previous
        if flow.rings[kind] == backlog:
            flow.rings[kind] = backlog.next
    if flow.counts[0] + flow.counts[1]:
        return
    flow.node.flow_count -= 1
    if flow.next == flow:
        flow.node.flows = NULL
    else:
        flow.previous.next = flow.next
        flow.next.previous = flow.previous
        if flow.node.flows == flow:
            flow.node.flows = flow.next


cdef bint is_walk_done(const Core *core, Flow *flow) noexcept nogil:
    """Return whether this walk is done with the flow: every backlog was visited, or it may take no more entries."""
    cdef uint8_t kind
    if flow.walk != core.walk:
        flow.walk = core.walk
        for kind in range(2):
            flow.left[kind] = flow.counts[kind]
            if flow.postponed[kind] != NULL:
                flow.rings[kind] = flow.postponed[kind]
                flow.postponed[kind] = NULL
    return not _offers(core, flow, BACKLOG_RETRIES) and not _offers(core, flow, BACKLOG_NEW)


cdef inline bint _offers(const Core *core, const Flow *flow, uint8_t kind) noexcept nogil:
    """Return whether the flow's ring of this kind has a backlog for this walk."""
    return flow.left[kind] > 0 and flow.rings[kind] != NULL and (kind == BACKLOG_RETRIES or may_begin(core, flow))


cdef Backlog *next_backlog(const Core *core, Flow *flow) noexcept nogil:
    """Return the flow's next backlog, from its two rings alternately. is_walk_done() must be false."""
    cdef uint8_t kind = flow.next_kind if _offers(core, flow, flow.next_kind) else flow.next_kind ^ 1
    cdef Backlog *found = flow.rings[kind]
    flow.next_kind = kind ^ 1
    flow.left[kind] -= 1
    flow.rings[kind] = found.next
    return found


cdef void keep_position(Flow *flow, Backlog *backlog) noexcept nogil:
    """Keep the round-robin position of a backlog that was postponed: the next walk starts at the first such backlog."""
    if backlog.flow == flow and flow.postponed[backlog.kind] == NULL:
        flow.postponed[backlog.kind] = backlog


cdef void go_to_next_flow(Node *node) noexcept nogil:
    """Go on to the node's next flow and allow it QUANTUM_BYTES more, less its debt."""
    node.flows = node.flows.next
    node.flows.deficit = min(node.flows.deficit + QUANTUM_BYTES, <int64_t>QUANTUM_BYTES)


cdef void charge_bytes(const Core *core, Flow *flow, uint32_t size) noexcept nogil:
    """Charge the flow for `size` bytes that it has in the request that is being made."""
    flow.deficit = max(flow.deficit - <int64_t>size, <int64_t>-DEBT_MAX_BYTES)
    flow.served = core.walk


cdef void begin_with(const Core *core, Flow *flow) noexcept nogil:
    """Start the next request with this flow, because something of it had to be left out of this request.

    If nothing of it is in this request, it may send in the next one in spite of a debt.
    """
    if flow.counts[0] + flow.counts[1]:
        flow.node.flows = flow
        if flow.served != core.walk:
            flow.deficit = max(flow.deficit, 1)


cdef void begin_backoff(Lane *lane) noexcept nogil:
    """Take the partition's backlogs out of their rings until the first check after `retry_at_ns`."""
    cdef Node *node = lane.leader
    cdef Lane *first = node.backing_off
    if lane.backs_off:
        return
    if first == NULL:
        lane.next_backing_off = lane
        lane.previous_backing_off = lane
        node.backing_off = lane
        node.backoff_ends_ns = UINT64_MAX
    else:
        lane.next_backing_off = first
        lane.previous_backing_off = first.previous_backing_off
        first.previous_backing_off.next_backing_off = lane
        first.previous_backing_off = lane
    lane.backs_off = True
    node.backing_off_count += 1
    node.backoff_ends_ns = min(node.backoff_ends_ns, _check_at(node, lane.retry_at_ns))
    _relist_all(lane)


cdef inline uint64_t _check_at(const Node *node, uint64_t wanted_ns) noexcept nogil:
    """Return when the ring is checked next: the interval grows with the number of partitions, as all are checked."""
    return max(wanted_ns, node.backoff_checked_ns + node.backing_off_count * <uint64_t>BACKOFF_CHECK_NS)


cdef void leave_backoff(Lane *lane) noexcept nogil:
    """Take a partition that backs off out of its ring. The caller lists its backlogs, if it has some."""
    cdef Node *node = lane.leader
    lane.backs_off = False
    node.backing_off_count -= 1
    if lane.next_backing_off == lane:
        node.backing_off = NULL
        return
    lane.previous_backing_off.next_backing_off = lane.next_backing_off
    lane.next_backing_off.previous_backing_off = lane.previous_backing_off
    if node.backing_off == lane:
        node.backing_off = lane.next_backing_off


cdef void end_backoffs(Core *core, Node *node) noexcept nogil:
    """List the backlogs of partitions whose backoff is over, and note when the ring must be checked next."""
    cdef Lane *lane = node.backing_off
    cdef Lane *following
    cdef uint64_t earliest = UINT64_MAX
    cdef bint last = False
    if lane == NULL:
        return
    if node.backoff_ends_ns <= core.now:
        node.backoff_checked_ns = core.now
        while not last:
            following = lane.next_backing_off
            last = following == node.backing_off
            if lane.retry_at_ns <= core.now:
                leave_backoff(lane)
                _relist_all(lane)
            else:
                earliest = min(earliest, lane.retry_at_ns)
            lane = following
        node.backoff_ends_ns = _check_at(node, earliest)
    if node.backing_off != NULL:
        note_timer(core, node.backoff_ends_ns)


cdef void _relist_all(Lane *lane) noexcept nogil:
    """Update the lists of the partition's retries and queues."""
    cdef Queue *queue = lane.ring
    cdef uint32_t _index
    relist(lane)
    for _index in range(lane.queue_count):
        relist_queue(queue)
        queue = queue.next


cdef void set_leader(Core *core, Lane *lane, Node *leader, int32_t epoch) noexcept nogil:
    """Set the lane's leader (NULL: none) and its epoch (-1: not known).

    A retry backoff concerns the old leader, so another leader or a newer epoch ends it, as
    ProducerBatch.hasLeaderChangedForTheOngoingRetry in Kafka.
    """
    cdef bint newer = leader != NULL and epoch > lane.leader_epoch
    if leader != NULL:
        lane.leader_epoch = epoch
    if leader != lane.leader:
        if leader != NULL:
            lane.retry_at_ns = 0
        move_lane(core, lane, leader)
    elif newer:
        lane.retry_at_ns = 0
        if lane.backs_off:
            leave_backoff(lane)
            _relist_all(lane)


cdef void move_lane(Core *core, Lane *lane, Node *leader) noexcept nogil:
    """Change the lane's leader, or its connection. Its batches wait for that one, and its rows are counted there."""
    cdef Queue *queue = lane.ring
    cdef uint32_t _index
    cdef WireBatch *wire = lane.wire_head
    cdef FrontEnd *front_end
    while wire != NULL:
        discharge(wire)
        wire = wire.next
    if lane.backs_off:
        leave_backoff(lane)
    if lane.retries.flow != NULL:
        unlist_backlog(&lane.retries)
    for _index in range(lane.queue_count):
        if queue.backlog.flow != NULL:
            unlist_backlog(&queue.backlog)
        queue = queue.next
    delist(lane)
    lane.leader = leader
    wire = lane.wire_head
    while wire != NULL:
        front_end = NULL
        if wire.entry.contributors != CYP_NONE and core.contributor_batches[wire.entry.contributors] != NULL:
            front_end = core.contributor_batches[wire.entry.contributors].front_end
        charge(core, wire, front_end)
        wire = wire.next
    _relist_all(lane)


# ---------------------------------------------------------------- shares


cdef void charge_new(Core *core, WireBatch *wire, FrontEnd *front_end) noexcept nogil:
    """Count the rows of a wire batch whose entry has just been taken from the free list, like `charge`."""
    wire.reserved = core.free_wire_count < CYP_ENTRIES_MAX // 2
    core.reserved_wire_count += wire.reserved
    charge(core, wire, front_end)


cdef void charge(Core *core, WireBatch *wire, FrontEnd *front_end) noexcept nogil:
    """Count the rows of a wire batch at the leader of its partition, for its first contributor (NULL: not known)."""
    cdef Node *node = wire.lane.leader
    if node == NULL:
        wire.flow = NULL
        return
    if not wire.reserved and _exceeds_half(core) and node.used.reserved < _part(core, CYP_ENTRIES_MAX):
        wire.reserved = True  # the predecessor took it from the reserve
        core.reserved_wire_count += 1
    wire.flow = &node.common if front_end == NULL else flow_of(front_end, node)
    _count(&wire.flow.used, wire)
    _count(&node.used, wire)


cdef inline bint _exceeds_half(const Core *core) noexcept nogil:
    """Return whether more entries are in use than the half plus the reserved ones: only after a takeover."""
    return CYP_ENTRIES_MAX - core.free_wire_count > CYP_ENTRIES_MAX // 2 + core.reserved_wire_count


cdef void _count(Usage *used, const WireBatch *wire) noexcept nogil:
    used.entries += 1
    used.reserved += wire.reserved
    used.bodies += wire.body != NULL
    used.extras += _extras(wire)
    used.parts += wire.partial


cdef void discharge(WireBatch *wire) noexcept nogil:
    """Stop counting the rows of a wire batch at its broker."""
    if wire.flow != NULL:
        _uncount(&wire.flow.used, wire)
        _uncount(&wire.flow.node.used, wire)
        wire.flow = NULL


cdef void _uncount(Usage *used, const WireBatch *wire) noexcept nogil:
    used.entries -= 1
    used.reserved -= wire.reserved
    used.bodies -= wire.body != NULL
    used.extras -= _extras(wire)
    used.parts -= wire.partial


cdef inline uint32_t _extras(const WireBatch *wire) noexcept nogil:
    return wire.contributor_count - 1 if wire.contributor_count else 0


cdef bint may_begin(const Core *core, const Flow *flow) noexcept nogil:
    """Return whether the flow may take one more entry."""
    cdef uint32_t part
    if core.free_wire_count > CYP_ENTRIES_MAX // 2:
        return True
    part = _part(core, CYP_ENTRIES_MAX)
    return flow.node.used.reserved < part \
        and flow.used.reserved < max(<uint32_t>1, part // (flow.node.users + 1))


cdef uint32_t split_room(const Core *core, ClientBatch *batch) noexcept nogil:
    """Return how many entries the parts of the batch may take now.

    Two are allowed in any case if no other batch of the flow has parts. So a front-end can always split one batch at
    each broker, and the batches that wait for its parts can be split later.
    """
    cdef Node *node = batch.queue.lane.leader
    cdef uint32_t room = 0, half = CYP_ENTRIES_MAX // 2, part = _part(core, CYP_ENTRIES_MAX)
    cdef Flow *flow
    if core.free_wire_count > half:
        room = core.free_wire_count - half
    if node == NULL:
        return room
    flow = flow_of(batch.front_end, node)
    if flow.used.parts <= batch.parts:
        room = max(room, <uint32_t>2)
    if node.used.reserved < part:
        room += min(part - node.used.reserved, max(<uint32_t>1, part // (node.users + 1)) - min(
            flow.used.reserved, max(<uint32_t>1, part // (node.users + 1))
        ))
    return min(room, core.free_wire_count)


cdef uint32_t range_room(const Core *core, ClientBatch *batch, uint32_t entries) noexcept nogil:
    """Return how many contributors the parts of the batch may take now, if these are `entries` entries."""
    cdef Node *node = batch.queue.lane.leader
    if node == NULL or merge_room(core, flow_of(batch.front_end, node)) == 1:
        return entries
    return core.free_contributor_count - (core.free_wire_count - entries)


cdef inline uint32_t _part(const Core *core, uint32_t rows) noexcept nogil:
    """Return the part of half of a table that each broker may use."""
    return rows // 2 // (core.node_count + 1)


cdef uint32_t merge_room(const Core *core, const Flow *flow) noexcept nogil:
    """Return how many contributors the flow's next entry may have; 1 means that it must not be merged."""
    cdef uint32_t rows = CYP_CONTRIBUTORS_MAX - CYP_ENTRIES_MAX
    cdef uint32_t spare = 0
    if core.free_contributor_count > core.free_wire_count:
        spare = core.free_contributor_count - core.free_wire_count
    if spare <= rows // 2 and flow.node.used.extras >= _part(core, rows):
        return 1
    if core.free_body_count <= CYP_BODIES_MAX // 2 and flow.node.used.bodies >= _part(core, CYP_BODIES_MAX):
        return 1
    return 1 + min(spare, <uint32_t>MERGE_MAX - 1)
