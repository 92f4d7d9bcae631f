"""Delivery timeouts."""

from cyproducer.sender.model cimport Core


cdef void expire(Core *core) noexcept nogil
