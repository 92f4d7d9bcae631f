"""Declares allocating and freeing the sender's tables, see tables.pyx."""

from cyproducer.sender.engine.state.model cimport Core
from cyproducer.shm.geometry cimport StateGeometry
from libc.stdint cimport uint8_t


cdef object core_new(Core *core)
cdef void core_state(Core *core, uint8_t *base, StateGeometry *geometry) noexcept
cdef void begin_state(Core *core, StateGeometry *geometry) noexcept
cdef void core_free(Core *core) noexcept
