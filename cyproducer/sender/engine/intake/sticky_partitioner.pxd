"""Declares the choice of partitions for records without a key, see sticky_partitioner.pyx."""

from cyproducer.sender.engine.state.model cimport Core, Topic, WireBatch


cdef void choose_sticky(Core *core, Topic *topic) noexcept nogil
cdef void note_load(Core *core, Topic *topic) noexcept nogil
cdef void publish_shares(Core *core) noexcept nogil
cdef void leave_stuck(Core *core) noexcept nogil
cdef void note_drained(Core *core, const WireBatch *wire) noexcept nogil
