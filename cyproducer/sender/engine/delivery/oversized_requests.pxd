"""Declares the handling of requests that make a broker close the connection, see oversized_requests.pyx."""

from libc.stdint cimport int32_t, uint64_t

from cyproducer.sender.engine.state.model cimport Core, Node, Request, WireBatch


cdef bint is_suspect(const WireBatch *wire) noexcept nogil
cdef uint64_t request_limit(const Core *core, Node *node) noexcept nogil
cdef void note_answer(Node *node, const Request *request) noexcept nogil
cdef void note_break(Core *core, Node *node, Request *request, int32_t reason) noexcept nogil
