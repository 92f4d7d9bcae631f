"""The front-ends of a sender and the regions that are shared with them."""

from cyproducer.sender.model cimport Core, FrontEnd
from cyproducer.shm.geometry cimport FrontEndGeometry
from cyproducer.shm.region cimport Region
from cyproducer.shm.snapshot cimport SnapshotWriter
from libc.stdint cimport uint64_t


cdef class FrontEnds:
    cdef Core core
    cdef readonly SnapshotWriter snapshot
    cdef readonly Region state
    cdef readonly list refused      # attach ids of a former sender's that could not be adopted
    cdef dict _regions              # attach id -> (arena, outcomes)
    cdef list _gone                 # attach ids that were unmapped and not yet asked for
    cdef bint _closed

    cdef object _adopt_all(self, object legacy)
    cdef object _adopt_one(self, object former)
    cdef object _enlist(self, FrontEnd *front_end, Region arena, Region outcomes)
    cdef FrontEnd *_find(self, uint64_t attach_id) noexcept
    cdef object _bury(self)
