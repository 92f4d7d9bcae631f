"""Declares draining: making requests of the batches that are ready, see drain.pyx."""

from libc.stdint cimport uint64_t

from cyproducer.sender.engine.state.model cimport Core, Node


cdef void drain_all(Core *core) noexcept nogil
cdef bint saturated(Core *core) noexcept nogil
