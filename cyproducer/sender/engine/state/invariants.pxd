"""Declares the check of the engine's invariants, see invariants.pyx."""

from cyproducer.sender.engine.state.model cimport Core


cdef void check_core(Core *core) noexcept nogil
