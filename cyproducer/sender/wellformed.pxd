"""Does a sealed batch hold records? See wellformed.pyx."""

from cyproducer.sender.model cimport Batch


cdef bint well_formed(Batch *batch) noexcept nogil
