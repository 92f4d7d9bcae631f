"""Checks, in the debug build, what must hold between two iterations of the loop.

Every batch, wire batch, contributor and body is in exactly one place, and every count is the length of its list.
"""


cdef void _check_activity(Core *core) noexcept nogil:
    cdef FrontEnd *front_end = core.front_end.first
    cdef uint32_t index, active = 0, listed = 0, due = 0
    while front_end != NULL:
        active += front_end.loop.active
        due += front_end.loop.deadline_place != 0
        check(core.front_end.tagged[front_end.tag] == front_end,
              b"Core.front_end.tagged maps the index of an epoll tag to its front-end")
        check(not front_end.loop.active or not front_end.front_ends.detached, b"an ended front-end is not active")
        check(front_end.loop.deadline_place != 0
              or (front_end.intake.linger_head == NULL and front_end.outcome.age_head == NULL),
              b"a front-end with a deadline is in the heap")
        front_end = front_end.front_end.next
    front_end = core.loop.active
    while front_end != NULL:
        listed += 1
        front_end = front_end.loop.active_next
    check(listed == active, b"the list of active front-ends holds each once")
    check(due == core.loop.deadline_count, b"the heap of deadlines holds attached front-ends only")
    for index in range(core.loop.deadline_count):
        check(core.loop.deadlines[index].loop.deadline_place == index + 1,
              b"a front-end knows its place in the heap")
        check(core.loop.deadlines[index].loop.deadline_ns
              >= core.loop.deadlines[(index - 1) // 2 if index else 0].loop.deadline_ns,
              b"no deadline in the heap is earlier than that of its parent node")


cdef void _check_topics(Core *core) noexcept nogil:
    cdef uint32_t index, free_topics = 0, free_rows = 0
    for index in range(core.topics.count):
        free_topics += core.topics.table[index].topics.free
        check(not core.topics.table[index].topics.free or core.topic_rows[index].generation & 1,
              b"a number without a name has an odd generation")
        check(core.topics.table[index].topics.free or core.topic_rows[index].generation
              == core.topics.table[index].generation + core.topics.table[index].topic_numbers.retired,
              b"the generation of a name is odd only while its number is retired")
    check(free_topics == core.topics.free_topic_count, b"free_topics has the numbers without a name")
    for index in range(core.topics.lane_count):
        free_rows += core.topics.lanes[index] == NULL
        check(core.topics.lanes[index] == NULL or core.topics.lanes[index].index == index, b"a lane knows its row")
    check(free_rows == core.topics.free_row_count, b"free_rows has the rows without a lane")


cdef void _check_transactions(Core *core) noexcept nogil:
    cdef uint32_t index, lanes = 0, listed = 0
    cdef Lane *lane
    cdef Lane *found
    cdef Transaction *transaction
    for index in range(core.topics.lane_count):
        lanes += core.topics.lanes[index] != NULL and core.topics.lanes[index].transaction != NULL
    for index in range(core.transactions.end):
        transaction = &core.transactions.table[index]
        check(transaction.used == (transaction.row.used != 0), b"the row of a transactional producer is in use")
        lane = transaction.lanes if transaction.used else NULL
        while lane != NULL:
            listed += 1
            found = lane.ordinary.topics.transactional
            while found != NULL and found != lane:
                found = found.topics.next_transactional
            check(lane.transaction == transaction and found == lane, b"the lane of a transaction is in both lists")
            check(not lane.wire.unresolved or current_copy(transaction).phase >= CYP_TRANSACTION_READY,
                  b"a producer without a producer id has no batch on its way")
            lane = lane.topics.next_of_transaction
    check(lanes == listed, b"every lane of a transaction is in the list of its transaction")


cdef void check_core(Core *core) noexcept nogil:
    cdef uint32_t index, wires = 0, contributors = 0, bodies = 0, front_ends = 0, reserved = 0
    cdef uint64_t live = 0, assigned = 0, queued = 0, ranges = 0, split = 0
    cdef FrontEnd *front_end = core.front_end.first
    while front_end != NULL:
        live += front_end.intake.live
        split += _check_front_end(core, front_end)
        front_ends += 1
        check(front_end.front_end.next == NULL or front_end.front_end.next.front_end.previous == front_end,
              b"the front-ends are doubly linked")
        check(not front_end.front_ends.detached or front_end.intake.live or front_end.front_ends.ending,
              b"an ended front-end has left the list")
        front_end = front_end.front_end.next
    check(front_ends == core.front_end.count, b"front_end_count is the length of their list")
    _check_activity(core)
    check(live == core.intake.live_batches, b"live_batches is the sum over the front-ends")
    cdef uint32_t *used = <uint32_t *>calloc(core.connection.node_count + 1, sizeof(uint32_t))
    if used == NULL:
        return
    _check_topics(core)
    _check_transactions(core)
    for index in range(core.topics.lane_count):
        if core.topics.lanes[index] != NULL:
            _check_partition(core.topics.lanes[index], used, &wires, &contributors, &bodies, &queued)
    for index in range(core.connection.node_count):
        _check_node(core.connection.nodes[index])
        check(used[index] == core.connection.nodes[index].drain.used.entries,
              b"Node.drain.used counts the entries of the broker")
    free(used)
    for index in range(CYP_CONTRIBUTORS_MAX):
        if core.contributor_batches[index] != NULL:
            ranges += 1
            assigned += not core.contributor_batches[index].parts.split
            check(core.contributor_batches[index].intake.state == BATCH_ASSIGNED, b"a contributor's batch is ASSIGNED")
            check(core.contributor_batches[index].slot == core.contributors[index].slot
                  and core.contributor_batches[index].generation == core.contributors[index].generation,
                  b"a contributor names its batch as it was assigned")
    check(ranges <= contributors, b"every contributor belongs to a wire; after a takeover some have no batch")
    for index in range(CYP_ENTRIES_MAX):
        reserved += core.wires[index].drain.reserved
    check(reserved == core.drain.reserved_wire_count, b"reserved_wire_count counts the entries taken from the reserve")
    check(wires + core.wire.free_wire_count == CYP_ENTRIES_MAX, b"every entry is free or unresolved")
    check(contributors + core.wire.free_contributor_count == CYP_CONTRIBUTORS_MAX, b"every contributor is free or used")
    check(bodies + core.wire.free_body_count == CYP_BODIES_MAX, b"every body is free or used")
    check(queued + assigned + split == live, b"every live batch is queued or assigned")


cdef uint32_t _check_front_end(Core *core, FrontEnd *front_end) noexcept nogil:
    """Check the batches of a front-end. Return how many of them are split."""
    cdef uint32_t split = 0, promised = 0
    cdef ClientBatch *batch = front_end.intake.linger_head
    cdef uint32_t unreported = 0, live = 0, chunks = 0, held = 0, slot, lingering = 0
    cdef uint64_t size = 0
    while batch != NULL:
        check(batch.intake.state == BATCH_LINGERING, b"only LINGERING batches are in the linger list")
        check(batch.intake.linger_next == NULL or batch.intake.linger_next.intake.linger_previous == batch,
              b"the linger list is doubly linked")
        lingering += 1
        batch = batch.intake.linger_next
    for slot in range(front_end.slot_count):
        batch = &front_end.batches[slot]
        held += front_end.chunk_held[slot]
        if batch.intake.state == BATCH_NONE:
            continue
        live += 1
        size += batch.intake.bytes
        chunks += batch.intake.chunks
        lingering -= batch.intake.state == BATCH_LINGERING
        check(batch.slot == slot and batch.front_end == front_end, b"a batch is in the row of its head slot")
        check((batch.intake.chunks > 0) == (batch.intake.state >= BATCH_CLOSED),
              b"a batch has its measured chunks once it is sealed")
        check(not batch.outcome.reported or batch.intake.state == BATCH_ASSIGNED,
              b"only an assigned batch stays after its RESULT")
        # The SENT word is stored before the first byte is written. If the sender is gone, its front-end takes a
        # batch without that word for one that was never sent.
        if batch.parts.split:
            split += 1
            promised += batch.parts.reserved_extents
            _check_split(core, batch)
        elif batch.intake.state == BATCH_ASSIGNED and batch.wire.batch.entry.attempts \
                and not front_end.front_ends.detached:
            check(front_end.sent[slot] == batch.generation + 1, b"a batch with an attempt has its SENT word")
    check(live == front_end.intake.live, b"live counts the front-end's batches")
    check(size == front_end.intake.bytes_live, b"bytes_live is the sum over the front-end's batches")
    check(chunks == held, b"every held chunk belongs to one live batch")
    check(lingering == 0, b"every LINGERING batch is in the linger list")
    batch = front_end.outcome.age_head
    while batch != NULL:
        check(batch.intake.state != BATCH_NONE, b"a batch in the age list is not NONE")
        check(
            not batch.outcome.reported or front_end.settings.acks == 0,
            b"only acks=0 stays in the age list after its RESULT",
        )
        unreported += 1
        batch = batch.outcome.age_next
    check(unreported <= front_end.intake.live, b"batches in the age list are live")
    check(promised == front_end.parts.extents_reserved, b"extents_reserved is the sum over the split batches")
    check(promised <= front_end.parts.free_extent_count, b"every promised row of the table of extents is free")
    return split


cdef void _check_split(Core *core, ClientBatch *batch) noexcept nogil:
    """Check that each record of a split batch has a result, or is in a part."""
    cdef WireBatch *wire = next_part(core, batch, NULL)
    cdef uint32_t parts = 0, records = batch.parts.resolved_count
    check(batch.intake.state == BATCH_ASSIGNED and batch.wire.batch == NULL,
          b"a split batch is assigned to its parts alone")
    while wire != NULL:
        parts += 1
        records += wire.entry.count
        wire = next_part(core, batch, wire)
    check(parts == batch.parts.pending, b"parts counts the unresolved parts of a batch")
    # after a takeover it is not known which results of a reported batch there are
    check(batch.outcome.reported or records == batch.intake.count,
          b"every record of a split batch is in one part, or has its result")


cdef void _check_node(Node *node) noexcept nogil:
    """Check that the node's rings have their counts and that its requests are in flight."""
    cdef uint32_t requests = 0
    cdef uint64_t size = 0
    cdef Request *request = node.connection.sent_head
    _check_lanes(node)
    _check_flows(node)
    while request != NULL:
        check(request.connection.finished, b"a request that waits for its response is written in full")
        _check_request(node, request)
        requests += 1
        size += request.produce.total
        request = request.connection.next
    request = node.connection.out_head
    while request != NULL:
        check(not request.connection.finished, b"a request in the output list is not written in full")
        _check_request(node, request)
        requests += 1
        size += request.produce.total
        request = request.connection.next
    check(size == node.connection.in_flight_bytes, b"in_flight_bytes is the size of the requests of a connection")
    check(requests == node.connection.in_flight, b"in_flight counts the requests of a connection")
    check(node.connection.state != CONNECTION_CLOSED or requests == 0, b"a closed connection has no requests")


cdef void _check_flows(Node *node) noexcept nogil:
    """Check the ring of flows and their rings of backlogs."""
    cdef Flow *flow = <Flow *>node.drain.flows.first
    cdef Backlog *backlog
    cdef uint32_t kind, _flow, _backlog
    _check_ring(&node.drain.flows)
    for _flow in range(node.drain.flows.length):
        check(flow.node == node, b"a flow is in the ring of its broker")
        check(has_backlog(flow), b"a flow in the ring has a backlog")
        for kind in range(2):
            _check_ring(&flow.backlogs[kind])
            backlog = <Backlog *>flow.backlogs[kind].first
            for _backlog in range(flow.backlogs[kind].length):
                check(backlog.flow == flow and backlog.kind == kind, b"a backlog is in the ring that its fields name")
                check(backlog.lane.drain.leader == node and backlog.lane.drain.listed == LIST_READY,
                      b"a backlog's partition is ready at the flow's broker")
                backlog = <Backlog *>backlog.link.next
        flow = <Flow *>flow.link.next


cdef void _check_lanes(Node *node) noexcept nogil:
    """Check the rings of the lanes that only linger, and of those that back off."""
    cdef Link *link = node.drain.lingering.first
    cdef uint32_t _lane
    _check_ring(&node.drain.lingering)
    for _lane in range(node.drain.lingering.length):
        check((<Lane *>link).drain.leader == node and (<Lane *>link).drain.listed == LIST_LINGERING,
              b"a lane is in the ring that `listed` names")
        link = link.next
    link = node.drain.backing_off.first
    _check_ring(&node.drain.backing_off)
    for _lane in range(node.drain.backing_off.length):
        check((<LaneLink *>link).lane.drain.leader == node and (<LaneLink *>link).lane.drain.backs_off,
              b"a lane in the ring of its leader's lanes that back off says so")
        link = link.next


cdef void _check_ring(const Ring *ring) noexcept nogil:
    """Check that the ring is doubly linked and has its counted length."""
    cdef const Link *link = ring.first
    cdef uint32_t length = 0
    while link != NULL:
        length += 1
        check(link.next.previous == link, b"a ring is doubly linked")
        link = link.next
        if link == ring.first:
            break
    check(length == ring.length, b"the length of a ring is counted")


cdef void _check_request(Node *node, const Request *request) noexcept nogil:
    cdef uint32_t index
    cdef Node *leader
    for index in range(request.produce.wire_count):
        check(request.produce.wires[index].wire.state == WIRE_IN_FLIGHT
              and request.produce.wires[index].wire.request == request,
              b"the wires of a request are in flight with it")
        leader = request.produce.wires[index].lane.drain.leader
        check(leader == node or first_connection(leader) != first_connection(node),
              b"a lane stays on its connection to a broker while it has something in flight there")


cdef void _check_ranges(Lane *lane) noexcept nogil:
    """Check that no two wires have a sequence of one epoch in common: a broker takes the second for a duplicate.

    While an epoch is awaited, the wires of a lane may have several epochs and be in another order than their sequences.
    Fragments are not checked: they are sent alone, under sequences that the broker may expect (idempotence.pyx).
    """
    cdef WireBatch *wire = lane.wire.head
    cdef WireBatch *other
    while wire != NULL and lane.idempotence.bumping:
        other = wire.wire.next
        while other != NULL:
            check(not wire.idempotent or not other.idempotent or wire.idempotence.fragment or other.idempotence.fragment
                  or wire.entry.producer_id != other.entry.producer_id
                  or wire.entry.producer_epoch != other.entry.producer_epoch
                  or <uint32_t>wire.entry.base_sequence + wire.entry.count <= <uint32_t>other.entry.base_sequence
                  or <uint32_t>other.entry.base_sequence + other.entry.count <= <uint32_t>wire.entry.base_sequence,
                  b"no two wires of a lane have a sequence of one epoch in common")
            other = other.wire.next
        wire = wire.wire.next


cdef void _check_partition(
    Lane *lane, uint32_t *used, uint32_t *wires, uint32_t *contributors, uint32_t *bodies, uint64_t *queued
) noexcept nogil:
    cdef uint32_t ready = 0, queues = 0, queued_here, unresolved = 0, waiting = 0, in_flight = 0
    cdef Queue *queue = <Queue *>lane.intake.queues.first
    cdef ClientBatch *batch
    cdef WireBatch *wire = lane.wire.head
    cdef uint64_t sequence = 0
    _check_ring(&lane.intake.queues)
    while queues < lane.intake.queues.length:
        check(queue != NULL and queue.intake.head != NULL, b"a queue in the ring is not empty")
        check((queue.drain.backlog.flow != NULL) == (lane.drain.leader != NULL and not lane.drain.backs_off
                                                     and queue.intake.head.intake.state != BATCH_LINGERING),
              b"a queue with a ready head is a backlog of its front-end's flow")
        queues += 1
        queued_here = 0
        batch = queue.intake.head
        while batch != NULL:
            check(batch.intake.state == BATCH_LINGERING or batch.intake.state == BATCH_DUE
                  or batch.intake.state == BATCH_CLOSED,
                  b"a queued batch is not assigned")
            ready += batch.intake.state != BATCH_LINGERING
            check(batch.queue == queue, b"a batch is in its own queue")
            check(batch.intake.next != NULL or queue.intake.tail == batch, b"the tail is the last")
            queued_here += 1
            batch = batch.intake.next
        check(queued_here == queue.intake.length, b"length counts the queue's batches")
        queued[0] += queued_here
        queue = <Queue *>queue.link.next
    check(ready == lane.intake.ready, b"ready counts the queued batches that do not linger")
    while wire != NULL:
        check(wire.lane == lane, b"a wire is in its partition's list")
        check(wire.refusal.unreported <= wire.wire.contributor_count, b"no contributor is reported twice")
        check(wire.entry.state == CYP_ENTRY_ASSIGNED, b"an unresolved wire's entry is ASSIGNED")
        if wire.idempotent and not lane.idempotence.bumping:
            check(wire.entry.producer_id == lane.idempotence.producer_id
                  and wire.entry.producer_epoch == lane.idempotence.producer_epoch,
                  b"wires have their partition's epoch")
            check(wire.entry.base_sequence >= sequence, b"sequences increase along the list")
            sequence = wire.entry.base_sequence + wire.entry.count
            check(sequence <= lane.idempotence.next_sequence, b"next_sequence is not below the end of any wire")
        check(wire.wire.next == NULL or wire.wire.next.wire.previous == wire, b"the list of wires is doubly linked")
        unresolved += 1
        check((wire.drain.flow != NULL) == (lane.drain.leader != NULL), b"a wire is counted at the leader of its lane")
        if wire.drain.flow != NULL:
            used[first_connection(wire.drain.flow.node).index] += 1
        waiting += wire.wire.state == WIRE_WAITING
        in_flight += wire.wire.state == WIRE_IN_FLIGHT
        contributors[0] += wire.wire.contributor_count
        bodies[0] += wire.wire.body != NULL
        wire = wire.wire.next
    _check_ranges(lane)
    check(unresolved == lane.wire.unresolved, b"unresolved counts the wires")
    check(waiting == lane.wire.waiting and in_flight == lane.wire.in_flight, b"waiting and in_flight count the wires")
    check(in_flight <= UNRESOLVED_MAX, b"at most five batches of a lane are in flight")
    wires[0] += unresolved
    check(lane.drain.leader == NULL or lane.drain.leader.pool.first == NULL
          or lane.drain.leader.connection.state != CONNECTION_CLOSED,
          b"no lane goes by a further connection that is closed")
    if lane.drain.leader == NULL:
        check(lane.drain.listed == LIST_NONE, b"a partition without a leader is in no ring")
    elif lane.intake.ready or lane.wire.waiting:
        check(lane.drain.listed == LIST_READY, b"a partition with something to send counts as ready")
        check((lane.drain.retries.flow != NULL) == (lane.wire.waiting > 0 and not lane.drain.backs_off),
              b"wires that wait are a backlog")
    else:
        check(lane.drain.listed == (LIST_LINGERING if queues else LIST_NONE),
              b"a lane is in the ring that matches its state")
