"""The native loop."""

from cyproducer.sender.model cimport Core, FrontEnd
from cyproducer.shm.region cimport Region
from cyproducer.shm.snapshot cimport SnapshotWriter
from libc.stdint cimport uint64_t


cdef class Loop:
    cdef Core core
    cdef readonly SnapshotWriter snapshot
    cdef readonly Region state
    cdef dict _regions              # attach id -> (arena, outcomes)
    cdef dict _watched              # fd -> True
    cdef list _ready                # watched descriptors of the last turn
    cdef bint _closed

    cdef bint _turn(self, uint64_t deadline_ns) except -1
    cdef FrontEnd *_find(self, uint64_t attach_id) noexcept
    cdef object _bury(self)
