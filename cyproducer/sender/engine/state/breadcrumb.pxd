"""Stores in the state header which front-end's memory the sender reads, for the supervisor to see after a crash."""

from cyproducer.sender.engine.state.model cimport Core, FrontEnd
from cyproducer.shm.atomics cimport store_relaxed, store_relaxed32
from libc.stdint cimport uint32_t


cdef inline void touch(Core *core, FrontEnd *front_end, uint32_t slot) noexcept nogil:
    """Note that the following code reads memory that this front-end can write."""
    store_relaxed32(&core.state_header.breadcrumb_slot, slot)
    store_relaxed(&core.state_header.breadcrumb_attach, front_end.attach_id)


cdef inline void untouch(Core *core) noexcept nogil:
    """Note that the following code reads no memory of a front-end."""
    store_relaxed(&core.state_header.breadcrumb_attach, 0)
