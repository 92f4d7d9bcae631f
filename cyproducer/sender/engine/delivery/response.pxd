"""Declares the handling of Produce responses, see response.pyx."""

from libc.stdint cimport uint8_t, uint32_t

from cyproducer.sender.engine.state.model cimport Core, Node, Request


cdef bint on_produce_response(
    Core *core, Node *node, Request *request, const uint8_t *body, uint32_t size
) noexcept nogil
