"""Declares the decisions about lanes that are slow to acknowledge, see slow_lanes.pyx."""

from libc.stdint cimport int32_t, uint64_t

from cyproducer.sender.engine.state.model cimport (
    REQUEST_PRODUCE,
    WIRE_IN_FLIGHT,
    Core,
    Lane,
    Node,
    Request,
    WireBatch,
)
from cyproducer.sender.engine.state.states cimport CONNECTION_READY, DOUBT_ALONE, DOUBT_NONE, DOUBT_SHARED


cdef enum:
    SURE_MIN = 4                    # late trials after which a lane is certainly slow


cdef inline bint is_tried(const Lane *lane) noexcept nogil:
    """Return whether the lane has a request of its own on the slow connection: it may be slow, or not."""
    return lane.leader.broker != NULL and (lane.doubt == DOUBT_SHARED or lane.late_answers < SURE_MIN)


cdef inline bint trials_wait(const Node *broker) noexcept nogil:
    """Return whether trials must wait: the slow connection waits for the answer to a lane that is slow."""
    cdef const Request *request = broker.slow.sent_head
    return broker.latency.trials_wait_ns and request != NULL and request.kind == REQUEST_PRODUCE \
        and request.wires[0].lane.doubt == DOUBT_ALONE


cdef inline bint has_trials(const Node *broker) noexcept nogil:
    """Return whether the slow connection must be left to trials: they are running, or about to begin."""
    return broker.latency.alarmed and (broker.trials_end_ns or broker.latency.trials_wait_ns)


cdef inline bint is_held(const Lane *lane) noexcept nogil:
    """Return whether the lane waits until nothing of it is in flight.

    Either it then moves to the slow connection, or something is in flight there. The latter is only possible if its
    partition has had another leader meanwhile.
    """
    cdef const Node *slow = lane.leader.slow
    cdef const WireBatch *wire = lane.wire_head
    if slow == NULL or not lane.in_flight:
        return False
    if lane.doubt != DOUBT_NONE and slow.state == CONNECTION_READY \
            and not (lane.doubt == DOUBT_SHARED and trials_wait(lane.leader)):
        return True
    while wire != NULL and slow.in_flight:
        if wire.state == WIRE_IN_FLIGHT and wire.request.node == slow:
            return True
        wire = wire.next
    return False


cdef uint64_t late_at(const Core *core, const Node *node) noexcept nogil
cdef bint delays_others(const Node *node) noexcept nogil
cdef void note_late(Core *core, Node *node) noexcept nogil
cdef bint is_late(const Node *node) noexcept nogil
cdef bint may_ask(Core *core, Node *broker) noexcept nogil
cdef void judge_slow_answer(Core *core, Node *broker) noexcept nogil
cdef void judge_answer(Core *core, Node *node, Request *request) noexcept nogil
cdef void note_opened(Node *node) noexcept nogil
cdef void note_ended(Core *core, Node *node) noexcept nogil
cdef void set_broker(Core *core, Lane *lane, Node *broker, int32_t epoch) noexcept nogil
cdef void settle_doubts(Core *core, Node *broker) noexcept nogil
