"""A connection to a broker: writing, reading, closing."""

from libc.stdint cimport int32_t, uint8_t, uint32_t

from cyproducer.sender.model cimport Core, Node, Request


cdef void enqueue(Node *node, Request *request) noexcept nogil
cdef void flush_out(Core *core, Node *node) noexcept nogil
cdef void on_socket(Core *core, Node *node, uint32_t events) noexcept nogil
cdef void close_connection(Core *core, Node *node, int32_t reason) noexcept nogil
cdef void check_timeouts(Core *core) noexcept nogil
