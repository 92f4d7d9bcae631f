"""Declares the check of delivery timeouts, see expiry.pyx."""

from cyproducer.sender.engine.state.model cimport Core, FrontEnd


cdef void expire(Core *core, FrontEnd *front_end) noexcept nogil
