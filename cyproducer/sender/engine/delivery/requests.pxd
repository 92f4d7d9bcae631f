"""Declares how Produce requests are built, see requests.pyx."""

from libc.stdint cimport int16_t, int32_t, uint8_t, uint32_t

from cyproducer.sender.engine.state.model cimport Core, Node, Request, WireBatch


cdef inline int32_t next_correlation_id(Node *node) noexcept nogil:
    cdef int32_t correlation_id = node.next_correlation_id
    node.next_correlation_id = (correlation_id + 1) & 0x7fffffff
    return correlation_id


cdef inline uint8_t *put16(uint8_t *at, int32_t value) noexcept nogil:
    """Write two bytes, big-endian. Return the position after them."""
    at[0] = <uint8_t>(value >> 8)
    at[1] = <uint8_t>value
    return at + 2


cdef inline uint8_t *put32(uint8_t *at, uint32_t value) noexcept nogil:
    """Write four bytes, big-endian. Return the position after them."""
    at[0] = <uint8_t>(value >> 24)
    at[1] = <uint8_t>(value >> 16)
    at[2] = <uint8_t>(value >> 8)
    at[3] = <uint8_t>value
    return at + 4


cdef uint8_t *put_request_header(Core *core, Request *request, int16_t api, bint flexible) noexcept nogil
cdef Request *new_request(
    Core *core, uint32_t byte_capacity, uint32_t iov_capacity, uint32_t wire_capacity
) noexcept nogil
cdef void free_request(Core *core, Request *request) noexcept nogil
cdef void recycle(Core *core, Request *request) noexcept nogil
cdef void recycle_all(Core *core, Request *request) noexcept nogil
cdef Request *produce_request(Core *core, Node *node, WireBatch **wires, uint32_t count) noexcept nogil
cdef uint32_t produce_overhead(WireBatch *wire) noexcept nogil
