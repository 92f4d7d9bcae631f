"""Declares writing to, reading from, and closing a connection to a broker, see connection.pyx."""

from libc.stdint cimport UINT64_MAX, int32_t, uint8_t, uint32_t, uint64_t

from cyproducer.sender.engine.state.model cimport Core, Node, Request
from cyproducer.sender.engine.state.ready cimport oldest_request


cdef enum:
    SILENT_NS = 1000000000          # a broker that answers nothing for so long counts as silent


cdef Node *new_node(Core *core, int32_t broker_id) noexcept nogil
cdef void enqueue(Core *core, Node *node, Request *request) noexcept nogil
cdef void flush_out(Core *core, Node *node) noexcept nogil
cdef void on_socket(Core *core, Node *node, uint32_t events) noexcept nogil
cdef void close_connection(Core *core, Node *node, int32_t reason) noexcept nogil
cdef void check_timeouts(Core *core) noexcept nogil
cdef void confirm_late(Core *core, Node *node) noexcept nogil


cdef inline uint64_t silent_at(const Node *node) noexcept nogil:
    """Return from when on the broker counts as silent; UINT64_MAX if it is not asked anything."""
    cdef const Request *request = oldest_request(node)
    if request == NULL:
        return UINT64_MAX
    # a broker that throttles does not read what was sent meanwhile
    return max(max(request.sent_ns, node.answered_ns), node.muted_until_ns) + SILENT_NS
