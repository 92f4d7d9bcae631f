"""Produce requests: framing, without touching the payload."""

from libc.stdint cimport uint32_t

from cyproducer.sender.model cimport Core, Node, Request, Wire


cdef Request *new_request(
    Core *core, uint32_t byte_capacity, uint32_t iov_capacity, uint32_t wire_capacity
) noexcept nogil
cdef void free_request(Core *core, Request *request) noexcept nogil
cdef void recycle(Core *core, Request *request) noexcept nogil
cdef void recycle_all(Core *core, Request *request) noexcept nogil
cdef Request *produce_request(Core *core, Node *node, Wire **wires, uint32_t count) noexcept nogil
cdef uint32_t produce_overhead(Wire *wire) noexcept nogil
