"""Heirs: what takes the place of a batch that may have been appended and is refused now."""

from libc.stdint cimport int32_t, uint32_t

from cyproducer.sender.model cimport Core, Partition, Wire


cdef void place_heir(Partition *partition, Wire *wire) noexcept nogil
cdef bint step_back(Partition *partition, Wire *wire) noexcept nogil
cdef void end_heir(Core *core, Wire *wire, int32_t error, uint32_t refused) noexcept nogil
