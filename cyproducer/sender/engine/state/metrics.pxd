"""Declares the counting of the sender's metrics, see metrics.pyx."""

from libc.stdint cimport int32_t, uint32_t, uint64_t

from cyproducer.sender.engine.state.model cimport (
    Core,
    FrontEnd,
    Node,
    Request,
    Topic,
    WireBatch,
)
from cyproducer.shm.layout cimport cyp_sender_metrics

cdef void forget_topic(Core *core, uint32_t number) noexcept nogil
cdef void begin_sender_metrics(cyp_sender_metrics *metrics) noexcept nogil
cdef void count_produce(Core *core, WireBatch **wires, uint32_t count) noexcept nogil
cdef void count_retry(Core *core, WireBatch *wire) noexcept nogil
cdef void count_errors(Core *core, FrontEnd *front_end, const Topic *topic, uint64_t records) noexcept nogil
cdef void count_split(Core *core, WireBatch *wire) noexcept nogil
cdef void count_request(Core *core, Node *node, const Request *request) noexcept nogil
cdef void count_unanswered(Core *core, int32_t change) noexcept nogil
cdef void count_written(Core *core, Node *node, uint64_t size) noexcept nogil
cdef void count_read(Core *core, Node *node, uint64_t size) noexcept nogil
cdef void count_response(Core *core, Node *node, const Request *request, uint64_t size) noexcept nogil
cdef void count_throttle(Core *core, int32_t throttle_ms) noexcept nogil
cdef void count_connection(Core *core, int32_t change) noexcept nogil
cdef void count_established(Core *core) noexcept nogil
cdef void count_authentication(Core *core, bint again, bint failed, uint64_t took_ns) noexcept nogil
cdef void count_select(Core *core, uint64_t waited_ns) noexcept nogil
cdef void count_work(Core *core, uint64_t worked_ns) noexcept nogil
cdef void enter_node(Core *core, Node *node) noexcept nogil
cdef void keep_totals(Core *core, FrontEnd *front_end) noexcept nogil
