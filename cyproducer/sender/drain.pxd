"""Sender.sendProducerData: from what is ready to requests."""

from libc.stdint cimport uint64_t

from cyproducer.sender.model cimport Core, Node


cdef bint drain(Core *core, Node *node) noexcept nogil
cdef bint saturated(Core *core) noexcept nogil
