"""Declares the functions for flows: a flow is what one front-end has for one broker, see flows.pyx."""

from cyproducer.sender.engine.state.model cimport Backlog, ClientBatch, Core, Flow, FrontEnd, Node, Lane, WireBatch
from libc.stdint cimport int32_t, uint32_t


cdef Flow *new_flow(FrontEnd *front_end, Node *node) noexcept nogil
cdef void free_flows(FrontEnd *front_end) noexcept nogil
cdef void list_backlog(Backlog *backlog, Lane *lane, Flow *flow) noexcept nogil
cdef void unlist_backlog(Backlog *backlog) noexcept nogil
cdef bint is_walk_done(const Core *core, Flow *flow) noexcept nogil
cdef Backlog *next_backlog(const Core *core, Flow *flow) noexcept nogil
cdef void keep_position(Flow *flow, Backlog *backlog) noexcept nogil
cdef void go_to_next_flow(Node *node) noexcept nogil
cdef void charge_bytes(const Core *core, Flow *flow, uint32_t size) noexcept nogil
cdef void begin_with(const Core *core, Flow *flow) noexcept nogil
cdef void begin_backoff(Lane *lane) noexcept nogil
cdef void leave_backoff(Lane *lane) noexcept nogil
cdef void end_backoffs(Core *core, Node *node) noexcept nogil
cdef void set_leader(Core *core, Lane *lane, Node *leader, int32_t epoch) noexcept nogil
cdef void move_lane(Core *core, Lane *lane, Node *leader) noexcept nogil
cdef void charge_new(Core *core, WireBatch *wire, FrontEnd *front_end) noexcept nogil
cdef void discharge(WireBatch *wire) noexcept nogil
cdef bint may_begin(const Core *core, const Flow *flow) noexcept nogil
cdef uint32_t split_room(const Core *core, ClientBatch *batch) noexcept nogil
cdef uint32_t range_room(const Core *core, ClientBatch *batch, uint32_t entries) noexcept nogil
cdef uint32_t merge_room(const Core *core, const Flow *flow) noexcept nogil


cdef inline Flow *flow_of(FrontEnd *front_end, Node *node) noexcept nogil:
    """Return the front-end's flow at the broker. Without memory for a new one, return the broker's common flow."""
    if node.index < front_end.flow_capacity and front_end.flows[node.index] != NULL:
        return front_end.flows[node.index]
    return new_flow(front_end, node)
