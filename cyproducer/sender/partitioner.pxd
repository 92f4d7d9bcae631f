"""Which partition records without a key go to: chosen once, published for all front-ends."""

from libc.stdint cimport uint64_t

from cyproducer.sender.model cimport Core, Partition, Topic


cdef void choose_sticky(Core *core, Topic *topic) noexcept nogil
cdef void leave_stuck(Core *core) noexcept nogil
cdef void drained(Core *core, Partition *partition, uint64_t size) noexcept nogil
