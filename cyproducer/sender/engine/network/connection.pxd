"""Declares writing to, reading from, and closing a connection to a broker, see connection.pyx."""

from libc.stdint cimport int32_t, uint8_t, uint32_t

from cyproducer.sender.engine.state.model cimport Core, Node, Request


cdef Node *new_node(Core *core, int32_t broker_id) noexcept nogil
cdef void enqueue(Core *core, Node *node, Request *request) noexcept nogil
cdef void flush_out(Core *core, Node *node) noexcept nogil
cdef void on_socket(Core *core, Node *node, uint32_t events) noexcept nogil
cdef void close_connection(Core *core, Node *node, int32_t reason) noexcept nogil
cdef void check_timeouts(Core *core) noexcept nogil
cdef void confirm_late(Core *core, Node *node) noexcept nogil
