"""Records that the broker refuses, and front-ends that change theirs."""

from libc.stdint cimport int32_t, uint32_t

from cyproducer.sender.model cimport Core, Partition, Wire


cdef void accuse(Core *core, Wire *wire, uint32_t record) noexcept nogil
cdef void acquit(Core *core, Wire *wire) noexcept nogil
cdef void fail(Core *core, Wire *wire, int32_t error) noexcept nogil
cdef bint verify(Core *core, Wire *wire) noexcept nogil
cdef void reject_changed(Core *core, Wire *wire) noexcept nogil
cdef void release_reported(Core *core, Wire *wire) noexcept nogil
cdef void withdraw_offenders(Core *core, Partition *partition) noexcept nogil
