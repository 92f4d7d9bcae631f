"""Handles requests that make a broker close the connection: they are larger than its socket.request.max.bytes.

The closed connection is the only sign of this, and all requests in flight on that connection are lost with it. If the
broker closed the connection twice while a batch was in flight, this batch may be the cause (is_suspect). Then it is
sent alone, with nothing else in flight, and after growing pauses. So it causes no other request to be lost, and it gets
a response if it is not the cause. If a request of several such batches is lost, the size of requests to that broker is
halved for an hour, since possibly only their sum is too large.

Such a batch fails with REQUEST_TOO_LARGE if its request is larger than every request that the broker has answered, and
the connection was closed several times while it was alone: three times if other requests were answered in between, else
ten times. That is no proof that the broker did not append it, so this error is an OutcomeUnknownError.
"""

from libc.errno cimport ECONNRESET, EPIPE
from libc.stdint cimport int32_t, uint32_t, uint64_t

from cyproducer.sender.engine.delivery.wire_batches cimport give_up
from cyproducer.sender.engine.state.client_codes cimport CODE_OUTCOME_UNKNOWN, CODE_REQUEST_TOO_LARGE
from cyproducer.sender.engine.state.events cimport CLOSE_BY_PEER
from cyproducer.sender.engine.state.model cimport (
    REQUEST_PRODUCE,
    WIRE_IN_FLIGHT,
    ClientBatch,
    Core,
    Node,
    Request,
    WireBatch,
)
from cyproducer.sender.engine.state.outcomes cimport report
from cyproducer.shm.layout cimport CYP_BLOCK_BYTES, CYP_NONE


cdef enum:
    SUSPECT_BREAKS = 2
    LONE_BREAKS_MIN = 3         # if other requests were answered in between
    LONE_BREAKS_MAX = 10
    BREAKS_KEPT = 100           # the counters stop here
    NODE_LIMIT_SECONDS = 3600


cdef bint is_suspect(const WireBatch *wire) noexcept nogil:
    """Return whether the batch must be sent alone."""
    return wire.breaks >= SUSPECT_BREAKS


cdef uint64_t request_limit(const Core *core, Node *node) noexcept nogil:
    """Return the limit in bytes for a request of several batches to this broker. Remove a limit that is too old."""
    if node.limit and core.now - node.limited_ns > <uint64_t>NODE_LIMIT_SECONDS * 1000000000:
        node.limit = 0
    return min(<uint64_t>core.max_request_size, node.limit) if node.limit else core.max_request_size


cdef void note_answer(Node *node, const Request *request) noexcept nogil:
    """Record that the broker has answered a Produce request."""
    node.answers += 1
    node.largest_answered = max(node.largest_answered, request.total)
    if request.lone:
        node.lone_in_flight = False


cdef void note_break(Core *core, Node *node, Request *request, int32_t reason) noexcept nogil:
    """Record that the connection was closed for `reason` before the request got a response.

    This must be called before the request's wire batches are prepared for their next attempt.
    """
    cdef uint32_t index
    cdef WireBatch *wire
    cdef bint all_suspects = True
    if request.kind != REQUEST_PRODUCE or not request.started:
        return
    if reason != CLOSE_BY_PEER and reason != ECONNRESET and reason != EPIPE:
        return
    for index in range(request.wire_count):
        wire = request.wires[index]
        if wire.state != WIRE_IN_FLIGHT or wire.request != request:
            continue
        if wire.breaks == 0:
            wire.lone_breaks = 0
        wire.breaks = min(wire.breaks + 1, <uint32_t>BREAKS_KEPT)
        all_suspects = all_suspects and is_suspect(wire)
        if request.lone:
            _note_lone_break(core, node, request, wire)
    if all_suspects and request.wire_count > 1:
        node.limit = min(request_limit(core, node), max(request.total // 2, <uint64_t>CYP_BLOCK_BYTES))
        node.limited_ns = core.now


cdef void _note_lone_break(Core *core, Node *node, Request *request, WireBatch *wire) noexcept nogil:
    if wire.lone_breaks == 0:
        wire.answers_before = node.answers
    wire.lone_breaks = min(wire.lone_breaks + 1, <uint32_t>BREAKS_KEPT)
    if wire.entry.length <= CYP_BLOCK_BYTES or request.total <= node.largest_answered:
        return  # its size is not the cause
    if wire.lone_breaks >= LONE_BREAKS_MAX \
            or (wire.lone_breaks >= LONE_BREAKS_MIN and node.answers > wire.answers_before):
        _fail(core, wire)


cdef void _fail(Core *core, WireBatch *wire) noexcept nogil:
    """Report REQUEST_TOO_LARGE to the contributors that have no outcome yet, then end the entry as unknown."""
    cdef uint32_t row = wire.entry.contributors
    cdef ClientBatch *batch
    if wire.partial:
        wire.unsure = True  # the attempt had begun
        give_up(core, wire, CODE_REQUEST_TOO_LARGE)
        return
    while row != CYP_NONE:
        batch = core.contributor_batches[row]
        row = core.contributors[row].next
        if batch != NULL and not batch.reported:
            report(core, batch, CODE_REQUEST_TOO_LARGE)
            wire.unreported -= 1
    wire.unsure = True  # the attempt had begun
    give_up(core, wire, CODE_OUTCOME_UNKNOWN)
