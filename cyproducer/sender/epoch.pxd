"""Drain-then-bump: how a partition goes on in a higher epoch."""

from cyproducer.sender.model cimport Core, Partition, Wire


cdef void want_producer_id(Core *core, Partition *partition) noexcept nogil
cdef bint settle_epoch(Core *core, Partition *partition) noexcept nogil
cdef bint dispel_doubt(Partition *partition) noexcept nogil
cdef Wire *next_to_settle(Partition *partition) noexcept nogil
