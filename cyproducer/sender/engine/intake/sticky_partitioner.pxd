"""Declares the choice of partitions for records without a key, see sticky_partitioner.pyx."""

from libc.stdint cimport uint64_t

from cyproducer.sender.engine.state.model cimport Core, Lane, Topic


cdef void choose_sticky(Core *core, Topic *topic) noexcept nogil
cdef void note_load(Core *core, Topic *topic) noexcept nogil
cdef void publish_shares(Core *core) noexcept nogil
cdef void leave_stuck(Core *core) noexcept nogil
cdef void note_drained(Core *core, Lane *lane, uint64_t size) noexcept nogil
