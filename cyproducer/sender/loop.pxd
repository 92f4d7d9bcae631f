"""The native loop."""

from cyproducer.sender.front_ends cimport FrontEnds
from libc.stdint cimport uint64_t


cdef class Loop(FrontEnds):
    cdef dict _watched              # fd -> True
    cdef list _ready                # watched descriptors of the last turn

    cdef bint _turn(self, uint64_t deadline_ns) except -1
