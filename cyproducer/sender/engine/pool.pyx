"""Chooses by which of the connections to a broker a batch, or a request of the control plane, goes.

A broker handles the requests of a connection one after another. A request that waits for a slow follower, for a disk or
for the log of transactions delays all requests behind it. So a broker has one connection, and up to
connections_per_broker while requests wait for each other. Each connection is a Node of its own: the first one is the
node of the broker, and the further ones are in its list (NodePool).

 - Order. A lane goes by another connection of its broker only if nothing of it is in flight. So the broker sees its
   sequences in order, and a connection that ends fails its own requests only.
 - Ordinary lanes share requests, so they stay together until a connection is late: its first request takes much longer
   than usual, or the last one did. Then they go by the first connection that is not late. A lane with something in
   flight is held until it can go. Of the lanes in a late request, those with the most late answers in a row stay, and
   every second one of these leaves, too. So a few requests later a slow lane has its connection for itself.
 - A request of a transaction contains nothing else, and neither does one of the control plane. They go by the first
   connection on which nothing is unanswered, or else by that whose oldest request is the youngest.
 - Another connection is requested if all are late, and a lane is late for the second time in a row; or if
   WAITS_MIN requests of transactions in a row wait behind an old one. When no connection was late for QUIET_NS, the
   ordinary lanes return to the first one, and the control plane closes those that are idle.

All of this is private to this process: a successor begins with one connection.
"""


cdef enum:
    LATE_MIN_NS = 25000000          # no answer is late before
    LATE_FACTOR = 4                 # an answer is late after this multiple of the usual time
    ANSWERS_MIN = 8                 # before so many answers the usual time is not known
    LATE_COUNTED = 200              # late answers of a lane in a row that are counted
    LATE_TWICE = 2
    NONE_STAYS = 255                # NodePool.stays_from: above LATE_COUNTED
    QUEUED_NS = 2000000             # a request of a transaction waits if the oldest one before it is older than this
    WAITS_MIN = 4
    QUIET_NS = 10000000000
    WANTED_EVERY_NS = 100000000     # the control plane is asked for another connection at most this often
    LEAVING_MAX = 256               # lanes that are moved at a time


cdef void add_to_pool(Node *first, Node *node) noexcept nogil:
    """Add a node for a further connection to the broker with this first connection."""
    cdef Node *last = first
    while last.pool.next != NULL:
        last = last.pool.next
    last.pool.next = node
    node.pool.first = first


# ------------------------------------------------------------ lateness
#
# The time counts from when a request is the first one of its connection, because a broker handles the requests of a
# connection one after another. The average of Produce requests falls faster than it rises, and late answers do not
# count: a slow partition that is in many requests must not raise it. But if the broker was late on all connections that
# it may have, it is slow itself.


cdef inline uint64_t _late_after_ns(const Node *first) noexcept nogil:
    """Return after which time an answer of the broker is late."""
    return max(<uint64_t>LATE_MIN_NS, LATE_FACTOR * first.pool.usual_ns)


cdef inline uint64_t _handled_since(const Node *node, const Request *request) noexcept nogil:
    """Return since when the request is the first one of its connection, and the broker does not throttle."""
    return max(max(request.connection.sent_ns, node.connection.answered_ns), node.connection.muted_until_ns)


cdef uint64_t late_at(const Node *node) noexcept nogil:
    """Return when the answer to the first request is, or was, late; UINT64_MAX if that is not known."""
    cdef const Node *first = first_connection(<Node *>node)
    cdef const Request *request = node.connection.sent_head
    if request == NULL or node.connection.state != CONNECTION_READY or first.pool.answers < ANSWERS_MIN:
        return UINT64_MAX
    return _handled_since(node, request) + _late_after_ns(first)


cdef void count_answer(Core *core, Node *node, const Request *request) noexcept nogil:
    """Count the time that the answer took. This must be called before the answer is handled."""
    cdef Node *first = first_connection(node)
    cdef uint64_t taken = core.loop.now - min(_handled_since(node, request), core.loop.now)
    cdef bint late = first.pool.answers >= ANSWERS_MIN and taken > _late_after_ns(first)
    if request.kind != REQUEST_PRODUCE:
        return
    node.pool.late = _count_late(request, late)
    if late:
        first.pool.late_ns = core.loop.now
    first.pool.answers = min(first.pool.answers + 1, <uint32_t>ANSWERS_MIN)
    if first.pool.usual_ns == 0 or late and _is_slow(core, first):
        first.pool.usual_ns = taken
    elif taken < first.pool.usual_ns:
        first.pool.usual_ns -= (first.pool.usual_ns - taken) // 8
    elif not late:
        first.pool.usual_ns += (taken - first.pool.usual_ns) // 32


cdef uint8_t _count_late(const Request *request, bint late) noexcept nogil:
    """Count a late or prompt answer for the lanes of the request. Return the most late answers in a row of one.

    Every second lane that has so many leaves its connection.
    """
    cdef uint32_t index
    cdef uint8_t most = 0
    cdef bint leaves = False
    cdef Lane *lane
    for index in range(request.produce.wire_count):
        lane = request.produce.wires[index].lane
        lane.pool.late = <uint8_t>min(lane.pool.late + 1, LATE_COUNTED) if late else 0
        lane.pool.leaves = False
        most = max(most, lane.pool.late)
    for index in range(request.produce.wire_count if late else 0):
        lane = request.produce.wires[index].lane
        if lane.pool.late == most:
            lane.pool.leaves = leaves
            leaves = not leaves
    return most


cdef bint _is_slow(const Core *core, const Node *first) noexcept nogil:
    """Return whether the broker was late on all connections that it may have."""
    cdef uint32_t count = 0
    cdef const Node *node = first
    while node != NULL and node.pool.late:
        count += 1
        node = node.pool.next
    return count >= core.settings.connections_per_broker


# ------------------------------------------------------------ choice


cdef Node *shortest_queue(Core *core, Node *first) noexcept nogil:
    """Return the broker's connection that a request waits least for. If it waits long, request another connection."""
    cdef Node *node = first
    cdef Node *best = first
    cdef uint64_t least = UINT64_MAX, waited
    cdef const Request *request
    while node != NULL and least:
        request = oldest_request(node)
        waited = node.connection.in_flight > 0
        if request != NULL:
            waited = max(core.loop.now, request.connection.sent_ns + 1) - request.connection.sent_ns
        if node.connection.state == CONNECTION_READY and waited < least:
            best, least = node, waited
        node = node.pool.next
    if least < QUEUED_NS or least == UINT64_MAX:
        first.pool.waits = 0
        return best
    first.pool.waits += 1
    if first.pool.waits >= WAITS_MIN:
        _want_another(core, first)
    return best


cdef void _want_another(Core *core, Node *first) noexcept nogil:
    """Request another connection, unless one is being made or the broker has as many as it may have, or throttles."""
    cdef const Node *node = first
    cdef uint32_t count = 0
    if first.connection.muted_until_ns > core.loop.now:
        return
    while node != NULL:
        if node.connection.state != CONNECTION_READY and node.connection.state != CONNECTION_CLOSED:
            return
        count += node.connection.state == CONNECTION_READY
        node = node.pool.next
    if count < core.settings.connections_per_broker and core.loop.now >= first.pool.wanted_ns + WANTED_EVERY_NS:
        first.pool.wanted_ns = core.loop.now
        push_event(core, EVENT_REQUESTS_WAIT, first.index, 0, 0)


cdef void choose_connections(Core *core, Node *node) noexcept nogil:
    """Let the lanes with something to send leave this connection if they wait less at another one."""
    node.pool.target = NULL
    if node.connection.state != CONNECTION_READY:
        return
    end_backoffs(core, node)
    if not node.drain.ready_count:
        return
    _choose_target(core, node)
    if node.pool.target != NULL:
        _move_ready(core, node, node.pool.target)
    if core.transactions.end and (node.connection.in_flight or node.pool.first != NULL):
        _move_ready(core, node, NULL)


cdef void _choose_target(Core *core, Node *node) noexcept nogil:
    """Set by which connection the ordinary lanes of this one go from now on, and which of them stay."""
    cdef Node *first = first_connection(node)
    cdef Node *other = first
    cdef bint waits = late_at(node) <= core.loop.now and _others_wait(node)
    node.pool.stays_from = NONE_STAYS
    if waits:
        first.pool.late_ns = core.loop.now
    elif core.loop.now >= first.pool.late_ns + QUIET_NS:
        node.pool.late = 0
        if node != first and first.connection.state == CONNECTION_READY:
            node.pool.target = first
        return
    elif node.pool.late:
        node.pool.stays_from = node.pool.late
    else:
        return
    while other != NULL:
        if other.connection.state == CONNECTION_READY and not other.pool.late and late_at(other) > core.loop.now:
            node.pool.target = other
            return
        other = other.pool.next
    if waits and _is_late_again(node) or not waits and node.pool.late >= LATE_TWICE and _any_leaves(node):
        _want_another(core, first)


cdef bint _others_wait(const Node *node) noexcept nogil:
    """Return whether other lanes than that of the first request have something to send, or share the request."""
    cdef const Request *request = node.connection.sent_head
    cdef const Lane *lane
    if request.produce.wire_count != 1:
        return True
    lane = request.produce.wires[0].lane
    return node.drain.ready_count > <uint32_t>(lane.drain.leader == node and lane.drain.listed == LIST_READY)


cdef bint _is_late_again(const Node *node) noexcept nogil:
    """Return whether a lane of the first request, which is late, was late before, or it is one of the control plane."""
    cdef const Request *request = node.connection.sent_head
    cdef uint32_t index
    for index in range(request.produce.wire_count):
        if request.produce.wires[index].lane.pool.late:
            return True
    return request.produce.wire_count == 0


cdef inline bint is_leaving(const Lane *lane) noexcept nogil:
    """Return whether the lane leaves its connection, and is held until nothing of it is in flight."""
    cdef const Node *node = lane.drain.leader
    return node.pool.target != NULL and (lane.pool.late < node.pool.stays_from or lane.pool.leaves)


# ------------------------------------------------------------ lanes


cdef void _move_ready(Core *core, Node *node, Node *target) noexcept nogil:
    """Move the lanes that have something to send, and nothing in flight, to another connection.

    target  NULL: those of transactions only, to the connection that each of them waits least for
    """
    cdef Lane *lanes[LEAVING_MAX]
    cdef uint32_t count = LEAVING_MAX, index
    cdef Node *wanted
    while count == LEAVING_MAX:
        count = _find_free(node, lanes, target == NULL)
        for index in range(count):
            wanted = target if target != NULL else shortest_queue(core, first_connection(node))
            if wanted == node:
                return
            if lanes[index].drain.leader == node:  # it may be among them several times
                lanes[index].pool.leaves = False
                move_lane(core, lanes[index], wanted)


cdef uint32_t _find_free(Node *node, Lane **lanes, bint transactional) noexcept nogil:
    """Find lanes that leave the connection and have nothing in flight. Return how many were found: LEAVING_MAX at most.

    transactional  the lanes of transactions, whether or not they leave it because it is late
    """
    cdef Flow *flow = <Flow *>node.drain.flows.first
    cdef Backlog *backlog
    cdef uint32_t count = 0, _flow, _backlog
    cdef int kind
    for _flow in range(node.drain.flows.length):
        for kind in range(2):
            if transactional and flow.front_end != NULL and flow.front_end.transaction == NULL:
                break
            backlog = <Backlog *>flow.backlogs[kind].first
            for _backlog in range(flow.backlogs[kind].length):
                if not backlog.lane.wire.in_flight \
                        and (backlog.lane.transaction != NULL if transactional else is_leaving(backlog.lane)):
                    lanes[count] = backlog.lane
                    count += 1
                    if count == LEAVING_MAX:
                        return count
                backlog = <Backlog *>backlog.link.next
        flow = <Flow *>flow.link.next
    return count


cdef bint _any_leaves(const Node *node) noexcept nogil:
    """Return whether a lane with something to send would leave the connection, which was late, if there was another."""
    cdef const Flow *flow = <const Flow *>node.drain.flows.first
    cdef const Backlog *backlog
    cdef uint32_t _flow, _backlog
    cdef int kind
    for _flow in range(node.drain.flows.length):
        for kind in range(2):
            backlog = <const Backlog *>flow.backlogs[kind].first
            for _backlog in range(flow.backlogs[kind].length):
                if backlog.lane.pool.late < node.pool.late or backlog.lane.pool.leaves:
                    return True
                backlog = <const Backlog *>backlog.link.next
        flow = <const Flow *>flow.link.next
    return False


cdef void set_broker(Core *core, Lane *lane, Node *broker, int32_t epoch) noexcept nogil:
    """Set the lane's leader (NULL: none) and its epoch. It stays on its connection to this broker.

    The broker may have been the leader before, too. If something is in flight to it since then, the lane goes by that
    connection again.
    """
    cdef Node *leader = broker
    cdef const WireBatch *wire = lane.wire.head
    if broker != NULL and first_connection(lane.drain.leader) == broker:
        leader = lane.drain.leader
    elif broker != NULL and broker.pool.next != NULL:
        while wire != NULL:
            if wire.wire.state == WIRE_IN_FLIGHT and first_connection(wire.wire.request.connection.node) == broker:
                leader = wire.wire.request.connection.node
            wire = wire.wire.next
    if first_connection(leader) != first_connection(lane.drain.leader):
        lane.pool.late = 0
        lane.pool.leaves = False
    set_leader(core, lane, leader, epoch)


cdef void leave_connection(Core *core, Node *node) noexcept nogil:
    """Let the lanes of a further connection that has ended go by the first one. Nothing of them is in flight."""
    cdef uint32_t index
    cdef Lane *lane
    node.pool.late = 0
    node.pool.target = NULL
    if node.pool.first == NULL:
        node.pool.answers = 0
        node.pool.usual_ns = 0
        return
    for index in range(core.topics.lane_count):
        lane = core.topics.lanes[index]
        if lane != NULL and lane.drain.leader == node:
            move_lane(core, lane, node.pool.first)
