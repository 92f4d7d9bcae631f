"""Declares the native loop, see loop.pyx."""

from cyproducer.sender.engine.front_ends cimport FrontEnds
from cyproducer.sender.engine.state.model cimport Core
from libc.stdint cimport uint64_t


cdef class Loop:
    cdef readonly FrontEnds front_ends
    cdef Core *core                 # of the front-ends
    cdef dict _watched              # fd -> True
    cdef list _ready                # watched descriptors that were ready in the last call of run()

    cdef bint _turn(self, uint64_t deadline_ns) except -1
