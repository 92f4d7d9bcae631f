"""Declares the requests for producer ids, and what happens if the brokers refuse one, see producer_ids.pyx."""

from libc.stdint cimport int32_t

from cyproducer.sender.engine.state.model cimport Core, Lane


cdef void want_producer_id(Core *core, Lane *lane) noexcept nogil
cdef void refuse_producer_id(Core *core, int32_t error) noexcept nogil
