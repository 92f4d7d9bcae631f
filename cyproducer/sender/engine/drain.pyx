"""Makes requests of the batches that are ready, like Sender.sendProducerData in Kafka's producer.

It is fair at three levels:

 - Front-ends with batches for a broker share its requests by deficit round robin (flows.pyx), whether their batches are
   in one partition or in thousands.
 - The partitions of a front-end are visited round-robin: a request continues where the last one stopped (Kafka's
   drainIndex).
 - Front-ends in a partition share it by deficit round robin over their queues.

Work that is postponed because a request has no space, or for lack of time for compression, keeps its round-robin
position at every level. A small request also takes batches that still linger, since it costs no further request. It
does not take a full batch that its front-end is compressing.
"""

from libc.stdint cimport UINT64_MAX, int16_t, int64_t, uint8_t, uint32_t, uint64_t

from cyproducer.sender.engine.delivery.epoch cimport next_to_settle, settle_epoch
from cyproducer.sender.engine.delivery.isolation cimport move_to_isolation
from cyproducer.sender.engine.delivery.oversized_requests cimport is_suspect, request_limit
from cyproducer.sender.engine.delivery.parts cimport (
    PART_DONE,
    PART_MALFORMED,
    PART_NO_ROOM,
    PartCode,
    divide_by_size,
    encode_part,
    exceeds_limit,
)
from cyproducer.sender.engine.delivery.producer_ids cimport want_producer_id
from cyproducer.sender.engine.delivery.producer_states cimport may_send_again, states_request
from cyproducer.sender.engine.delivery.rejection cimport reject_changed
from cyproducer.sender.engine.delivery.requests cimport produce_overhead, produce_request
from cyproducer.sender.engine.delivery.wire_batches cimport any_idempotent, assign, is_retrying, stamp
from cyproducer.sender.engine.intake.accumulator cimport put_back, rotate_ring, seal, take_head
from cyproducer.sender.engine.intake.compression cimport (
    may_compress,
    must_postpone,
    must_postpone_wire,
    sent_bytes,
    wire_bytes,
)
from cyproducer.sender.engine.intake.sticky_partitioner cimport note_drained
from cyproducer.sender.engine.network.connection cimport enqueue, flush_out
from cyproducer.sender.engine.network.slow_lanes cimport has_trials, is_held, is_tried, late_at, settle_doubts
from cyproducer.sender.engine.state.flows cimport (
    begin_backoff,
    begin_with,
    charge_bytes,
    end_backoffs,
    flow_of,
    go_to_next_flow,
    is_walk_done,
    keep_position,
    may_begin,
    merge_room,
    next_backlog,
)
from cyproducer.sender.engine.state.events cimport EVENT_WORK
from cyproducer.sender.engine.state.model cimport (
    BATCH_CLOSED,
    BATCH_LINGERING,
    DRAIN_ALL_BELOW_BYTES,
    MERGE_BELOW_BYTES,
    MERGE_MAX,
    UNRESOLVED_MAX,
    WIRE_IN_FLIGHT,
    WIRES_PER_REQUEST_MAX,
    Backlog,
    ClientBatch,
    Core,
    Flow,
    FrontEnd,
    Node,
    Lane,
    Queue,
    Request,
    Transaction,
    WireBatch,
)
from cyproducer.sender.engine.state.metrics cimport count_produce, count_work
from cyproducer.sender.engine.state.outcomes cimport push_event
from cyproducer.sender.engine.state.ready cimport lane_producer_id, note_timer, relist
from cyproducer.sender.engine.state.states cimport (
    CONNECTION_CLOSED,
    CONNECTION_READY,
    DOUBT_ALONE,
    DOUBT_NONE,
    DOUBT_SHARED,
)
from cyproducer.sender.engine.state.transactions cimport may_send
from cyproducer.sender.engine.state.window cimport window_room
from cyproducer.shm.clock cimport monotonic_ns
from cyproducer.shm.crash cimport CRASHPOINT
from cyproducer.shm.layout cimport CYP_BLOCK_BYTES, CYP_READY
from cyproducer.shm.slot cimport slot_glance
from cyproducer.shm.word cimport word_bytes, word_continues, word_state


cdef enum:
    QUANTUM_BYTES = 65536           # per queue and round: the size of a default batch
    # the broker may have forgotten a producer that was silent for this long (producer.id.expiration.ms)
    IDLE_SECONDS = 3600
    TRIAL_EVERY = 4                 # requests with lanes that are surely slow, of which one has a single lane


# A request that is being made.
ctypedef struct Draft:
    int16_t acks
    Transaction *transaction        # of its batches; NULL: they are in no transaction
    uint32_t count
    uint64_t size
    uint64_t room                   # bytes that it may have; only its first wire batch may exceed this
    uint8_t doubt                   # a request of the slow connection has lanes with this LaneDoubt only
    uint32_t most                   # wire batches that it may have
    WireBatch *wires[WIRES_PER_REQUEST_MAX]


cdef void drain_all(Core *core) noexcept nogil:
    """Make the requests that the brokers can take now, and write them."""
    cdef Node *node
    cdef uint32_t index
    cdef uint64_t began, late_ns
    for index in range(core.node_count):
        settle_doubts(core, core.nodes[index])
    for index in range(core.node_count):
        # a different node is first in each iteration: the first ones may use up the time for compression
        node = core.nodes[(core.totals.turns + index) % core.node_count]
        while _drain(core, node):
            began = monotonic_ns()
            flush_out(core, node)
            count_work(core, monotonic_ns() - began)
        late_ns = late_at(core, node)
        if core.now < late_ns != UINT64_MAX:
            note_timer(core, late_ns)


cdef bint _drain(Core *core, Node *node) noexcept nogil:
    """Make the next request for the node. Return True if there is one to write."""
    cdef Request *request
    if node.state != CONNECTION_READY:
        if node.state == CONNECTION_CLOSED and not node.work_reported and (node.ready_count or node.lingering_count):
            node.work_reported = True
            push_event(core, EVENT_WORK, node.index, 0, 0)
        return False
    if node.muted_until_ns > core.now:
        note_timer(core, node.muted_until_ns)
        return False
    end_backoffs(core, node)
    if node.lone_in_flight or (node.lone_waits and node.in_flight):
        return False
    node.lone_waits = False
    if node.broker == NULL and _drain_batches(core, node, DOUBT_NONE):
        return True
    if node.broker != NULL and _drain_batches(core, node, DOUBT_SHARED):
        return True
    if node.broker != NULL and not has_trials(node.broker) and _drain_batches(core, node, DOUBT_ALONE):
        return True
    request = states_request(core, node)
    if request != NULL:
        enqueue(core, node, request)
        CRASHPOINT(b"drain.state-asked")
    return request != NULL


cdef bint _drain_batches(Core *core, Node *node, uint8_t doubt) noexcept nogil:
    """Make the next Produce request for the node, on a slow connection of lanes with this doubt. Return True if so."""
    cdef int16_t acks
    cdef uint32_t step
    for step in range(3):
        if _is_full(core, node) or not node.ready_count:
            break
        acks = <int16_t>((node.next_acks + step) % 3) - 1
        if core.acks_seen >> (acks + 1) & 1 and _drain_request(core, node, acks, doubt):
            node.next_acks = <uint8_t>((node.next_acks + step + 1) % 3)  # no value of acks blocks the others
            return True
    return False


cdef bint saturated(Core *core) noexcept nogil:
    """Return whether no broker can take a request now. Then no batch can be sent before one of the sockets is ready."""
    cdef uint32_t index, full = 0
    cdef Node *node
    for index in range(core.node_count):
        node = core.nodes[index]
        if node.id < 0 and node.state == CONNECTION_CLOSED:
            continue
        if node.broker != NULL and node.broker.doubted == NULL:
            continue  # no lane goes by it
        if node.state != CONNECTION_READY or not _is_full(core, node):
            return False
        full += 1
    return full > 0


cdef inline bint _is_full(const Core *core, const Node *node) noexcept nogil:
    """Return whether the broker takes no request before it has read or answered another one."""
    cdef uint32_t most = core.max_in_flight if node.broker == NULL else 1
    return node.out_head != NULL or node.in_flight >= most or window_room(core, node) == 0


cdef bint _drain_request(Core *core, Node *node, int16_t acks, uint8_t doubt) noexcept nogil:
    """Make one Produce request of batches with these acks. Return False if there is none."""
    cdef Draft draft
    cdef WireBatch *wire
    cdef Request *request
    cdef uint32_t index
    cdef bint lone
    draft.acks = acks
    draft.count = 0
    draft.size = 0
    draft.doubt = doubt
    draft.most = WIRES_PER_REQUEST_MAX
    if doubt == DOUBT_ALONE and node.next_correlation_id % TRIAL_EVERY == 0:
        draft.most = 1
    draft.room = min(window_room(core, node), request_limit(core, node))
    _collect_ready(core, node, &draft)
    if draft.count == 0:
        return False
    lone = is_suspect(draft.wires[0])
    if not lone:
        _collect_lingering(core, node, &draft)
    for index in range(draft.count):
        draft.wires[index].lane.collected = False
    request = produce_request(core, node, draft.wires, draft.count)
    if request == NULL:
        for index in range(draft.count):
            relist(draft.wires[index].lane)
        return False
    request.lone = node.lone_in_flight = lone
    for index in range(draft.count):
        wire = draft.wires[index]
        wire.state = WIRE_IN_FLIGHT
        wire.request = request
        wire.lane.in_flight += 1
        wire.lane.waiting -= 1
        relist(wire.lane)
        note_drained(core, wire)
    count_produce(core, draft.wires, draft.count)
    enqueue(core, node, request)
    CRASHPOINT(b"drain.queued")
    return True


cdef void _collect_ready(Core *core, Node *node, Draft *draft) noexcept nogil:
    """Go through the flows by deficit round robin until the request is full, or every flow was visited."""
    cdef uint32_t idle = 0
    cdef bint postponed
    cdef Flow *flow
    cdef Flow *left_out = NULL      # the first flow of this walk of which something did not fit
    cdef Backlog *backlog
    cdef WireBatch *wire
    core.walk += 1
    while node.flows != NULL and idle <= node.flow_count and draft.count < draft.most \
            and draft.size < draft.room:
        flow = node.flows
        if node.flow_count == 1:
            flow.deficit = max(flow.deficit, 1)  # a single flow gets no debt
        if flow.deficit <= 0 or is_walk_done(core, flow):
            # the others may have nothing: a flow that only has a debt is visited again in this walk
            idle = idle + 1 if is_walk_done(core, flow) else 0
            go_to_next_flow(node)
            continue
        idle = 0
        postponed = False
        backlog = next_backlog(core, flow)
        wire = _take_from(core, backlog.lane, draft, &postponed)
        if wire != NULL:
            charge_bytes(core, wire.flow if wire.flow != NULL else flow, wire_bytes(wire))
        if postponed and (left_out == NULL or (left_out.served == core.walk and flow.served != core.walk)):
            left_out = flow
        if postponed or (wire != NULL and wire.flow != flow):
            keep_position(flow, backlog)
        if wire != NULL and is_suspect(wire):
            break
    if left_out != NULL:
        begin_with(core, left_out)


cdef void _collect_lingering(Core *core, Node *node, Draft *draft) noexcept nogil:
    """Add batches to a small request: go once through the partitions that only have lingering batches."""
    cdef uint32_t left = node.lingering_count
    cdef bint postponed = False
    cdef Lane *lane
    cdef WireBatch *wire
    while left and node.lingering != NULL and draft.count < draft.most \
            and draft.size < DRAIN_ALL_BELOW_BYTES:
        left -= 1
        lane = node.lingering
        node.lingering = lane.next
        wire = _take_from(core, lane, draft, &postponed)
        if wire != NULL and wire.flow != NULL:
            charge_bytes(core, wire.flow, wire_bytes(wire))


cdef WireBatch *_take_from(Core *core, Lane *lane, Draft *draft, bint *postponed) noexcept nogil:
    """Add the partition's next wire batch to the request and return it; NULL if none can be sent now.

    Set `postponed` if one is postponed for lack of space in the request, or of time for compression.
    """
    cdef uint64_t room = 0
    cdef WireBatch *wire = NULL
    # a wire batch that was collected still counts as waiting: a second visit would take it again
    if lane.collected or lane.doubt != draft.doubt and lane.leader.broker != NULL or is_held(lane):
        return NULL
    if lane.other_lane != NULL and lane.other_lane.collected:
        lane.goes_first = True
        return NULL
    if draft.count and (lane.transaction != draft.transaction or is_tried(lane)):
        postponed[0] = True  # a request is of one transaction, or of none; a trial has a single lane
        return NULL
    if draft.size < draft.room:
        room = draft.room - draft.size
    if lane.other_lane != NULL and lane.other_lane.goes_first and _is_beside(lane, lane.other_lane) \
            and not (draft.count and is_tried(lane.other_lane)):
        wire = _next_wire(core, lane.other_lane, draft.acks, room, draft.count == 0, postponed)
        lane.other_lane.goes_first = postponed[0] and wire == NULL
    if wire == NULL and not postponed[0]:
        wire = _next_wire(core, lane, draft.acks, room, draft.count == 0, postponed)
    if wire == NULL:
        return NULL
    wire = _ready_to_send(core, wire)
    if wire == NULL:
        return NULL
    wire.lane.collected = True
    if is_tried(wire.lane):
        draft.most = 1
    draft.transaction = lane.transaction
    draft.wires[draft.count] = wire
    draft.count += 1
    draft.size += wire_bytes(wire) + produce_overhead(wire)
    return wire


cdef inline bint _is_beside(const Lane *lane, const Lane *other) noexcept nogil:
    """Return whether the other lane of the partition may go by the same connection now."""
    return other.leader == lane.leader and not is_held(other) \
        and (other.doubt == lane.doubt or lane.leader.broker == NULL)


cdef WireBatch *_ready_to_send(Core *core, WireBatch *wire) noexcept nogil:
    """Write the records and the header of the wire batch. Return it, or its first part if its topic refuses its size.

    Return NULL if it cannot be sent: its front-end has changed its records, or there is no memory.
    """
    cdef Lane *lane = wire.lane
    cdef WireBatch *before
    cdef PartCode code
    while True:
        code = encode_part(core, wire) if wire.partial and wire.copy == NULL else PART_DONE
        if code == PART_NO_ROOM:
            note_timer(core, core.now + core.retry_backoff_ns)
            return NULL
        if code == PART_MALFORMED or not stamp(core, wire):
            reject_changed(core, wire)
            return NULL
        if not exceeds_limit(core, wire):
            return wire
        before = wire.previous
        code = divide_by_size(core, wire)
        if code == PART_MALFORMED:
            reject_changed(core, wire)
            return NULL
        if code != PART_DONE:
            return wire  # the broker refuses it, and it is tried again
        wire = before.next if before != NULL else lane.wire_head


cdef WireBatch *_next_wire(
    Core *core, Lane *lane, int16_t acks, uint64_t room, bint alone, bint *postponed
) noexcept nogil:
    """Return the partition's next wire batch for a request with `room` free bytes; NULL if none can be sent now.

    `alone`: the request is empty, so the wire batch may exceed its space. Set `postponed` if a wire batch is postponed
    for lack of space in the request, or of time for compression.
    """
    cdef WireBatch *wire
    cdef bint settling
    if lane.transaction != NULL and not may_send(lane):
        return NULL
    if lane.retry_at_ns > core.now:
        begin_backoff(lane)
        note_timer(core, lane.leader.backoff_ends_ns)
        return NULL
    if lane.isolation_pending:
        move_to_isolation(core, lane)
    settling = lane.bumping and not settle_epoch(core, lane)
    if settling or lane.waiting:
        # retries go one by one and in order: the broker must never see a later sequence first
        if lane.in_flight or not may_send_again(lane):
            return NULL
        wire = next_to_settle(lane) if settling else lane.wire_head
        if wire == NULL or wire.acks != acks:
            return NULL
        if is_suspect(wire) and (not alone or lane.leader.in_flight):
            lane.leader.lone_waits = True
            postponed[0] = True
            return NULL
        postponed[0] = not _fits(wire, room, alone) or must_postpone_wire(core, wire)
        return NULL if postponed[0] else wire
    if lane.acknowledged and core.now - lane.acknowledged_ns > <uint64_t>IDLE_SECONDS * 1000000000 \
            and not any_idempotent(lane):
        lane.acknowledged = False
    return _new_wire(core, lane, acks, room, alone, postponed)


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
    if lane.unresolved >= (1 if lane.isolation else UNRESOLVED_MAX):
        return NULL
    queue = _next_queue(core, lane, acks, postponed)
    if queue == NULL:
        return NULL
    idempotent = queue.front_end.idempotent
    if idempotent and not lane.acknowledged and any_idempotent(lane):
        return NULL  # only one until the broker has acknowledged this producer id and epoch
    if idempotent and is_retrying(lane):
        return NULL  # the broker remembers five batches: with more it forgets the earlier attempt
    if idempotent and lane_producer_id(core, lane) < 0:
        want_producer_id(core, lane)
        return NULL
    if not _close_head(core, queue):
        return NULL
    if not alone and queue.head.bytes + 400 > room and sent_bytes(queue.head) + 400 > room:
        postponed[0] = True
        lane.ring = queue  # it keeps its round-robin position
        return NULL
    batches[0] = take_head(queue)
    queue.deficit -= batches[0].bytes
    CRASHPOINT(b"drain.head-taken")
    count = 1
    size = batches[0].bytes
    # a merged batch must be compressed here, even if the front-ends have offered compressed records
    if size < MERGE_BELOW_BYTES and not batches[0].solo and not lane.isolation and lane.transaction == NULL \
            and may_compress(core, batches[0].front_end):
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


cdef bint _close_head(Core *core, Queue *queue) noexcept nogil:
    """Seal the queue's head if it is still open. Return False if the queue has no head any more."""
    while queue.head != NULL and queue.head.state != BATCH_CLOSED:
        if seal(core, queue.head):
            return True
        # malformed: seal has removed it from the queue
    return queue.head != NULL


cdef uint64_t _peek_bytes(ClientBatch *batch) noexcept nogil:
    """Return the batch's size in bytes, so far if it is open. A chain of several chunks counts as a full batch."""
    cdef uint64_t word
    if batch.state == BATCH_CLOSED:
        return batch.bytes
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
    cdef Queue *queue = lane.ring
    cdef Queue *lingering = NULL
    cdef Queue *passed = NULL
    cdef uint32_t left, _round
    cdef bint some_ready = False
    if queue == NULL:
        return NULL
    for _round in range(1 + core.max_request_size // QUANTUM_BYTES):
        left = lane.queue_count
        while left:
            left -= 1
            if queue.front_end.acks == acks and (lane.isolation or not queue.isolated) \
                    and may_begin(core, flow_of(queue.front_end, lane.leader)):
                if queue.head.state == BATCH_LINGERING:
                    # without time to compress the batch, its front-end may go on filling it
                    if lingering == NULL and may_compress(core, queue.front_end) \
                            and not _front_end_finishes(queue.head):
                        lingering = queue
                elif must_postpone(core, queue.head):
                    if passed == NULL:
                        passed = queue
                    postponed[0] = True
                else:
                    some_ready = True
                    queue.deficit = min(queue.deficit + QUANTUM_BYTES, <int64_t>core.max_request_size + QUANTUM_BYTES)
                    if lane.queue_count == 1:
                        queue.deficit = <int64_t>queue.head.bytes  # a single queue gets no debt
                    if queue.deficit >= <int64_t>queue.head.bytes:
                        lane.ring = queue.next
                        if passed != NULL and passed != queue:  # by then its front-end may have compressed it
                            rotate_ring(queue, passed)
                        return queue
            queue = queue.next
        if not some_ready:
            break
    return lingering


cdef void _add_small_heads(
    Core *core, Lane *lane, ClientBatch **batches, uint32_t *count, uint64_t size, uint64_t room
) noexcept nogil:
    """Add small heads of other front-ends to the same wire batch, as far as a body and the request have space."""
    cdef uint32_t most = merge_room(core, flow_of(batches[0].front_end, lane.leader))
    cdef Queue *queue = lane.ring
    cdef Queue *following
    cdef uint32_t left = lane.queue_count
    # re-encoding may lengthen both deltas of a record: a third of the space is kept for that
    cdef uint64_t limit = min(<uint64_t>CYP_BLOCK_BYTES, room) * 2 // 3
    if lane.merge_max:
        limit = min(limit, <uint64_t>lane.merge_max)
    cdef FrontEnd *first = batches[0].front_end
    while left and count[0] < most and queue != NULL:
        left -= 1
        following = queue.next
        if queue.front_end != first and queue.front_end.acks == first.acks \
                and queue.front_end.idempotent == first.idempotent and queue.front_end.retries == first.retries \
                and queue.front_end.codec == first.codec and queue.front_end.level == first.level \
                and not queue.head.solo and not queue.isolated \
                and not (queue.head.state == BATCH_LINGERING and _front_end_finishes(queue.head)) \
                and size + _peek_bytes(queue.head) <= limit:
            if _close_head(core, queue) and size + queue.head.bytes <= limit:
                size += queue.head.bytes
                queue.deficit -= queue.head.bytes
                batches[count[0]] = take_head(queue)
                count[0] += 1
        queue = following
        if lane.ring == NULL:
            break
