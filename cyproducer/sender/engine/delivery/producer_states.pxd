"""Declares the requests that ask a broker whether it has the state of a producer, see producer_states.pyx."""

from libc.stdint cimport uint8_t, uint32_t

from cyproducer.sender.engine.state.model cimport Core, Node, Lane, Request


cdef bint may_send_again(Lane *lane) noexcept nogil
cdef Request *states_request(Core *core, Node *node) noexcept nogil
cdef bint on_states_response(Core *core, Node *node, const uint8_t *body, uint32_t size) noexcept nogil
cdef void forget_asked(Node *node) noexcept nogil
