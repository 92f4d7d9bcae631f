"""Declares the front-ends of a sender and the regions that it shares with them, see front_ends.pyx."""

from cyproducer.sender.engine.state.model cimport Core, FrontEnd
from cyproducer.shm.geometry cimport FrontEndGeometry
from cyproducer.shm.region cimport Region
from cyproducer.shm.snapshot cimport SnapshotWriter
from libc.stdint cimport uint32_t, uint64_t


cdef class FrontEnds:
    cdef Core core
    cdef readonly SnapshotWriter snapshot
    cdef readonly Region state
    cdef readonly list refused      # attach ids of the predecessor's front-ends that could not be taken over
    cdef readonly bint is_closed
    cdef dict topic_numbers         # topic name -> its number
    cdef dict _regions              # attach id -> (arena, outcomes)
    cdef dict _addresses            # attach id -> its FrontEnd, as an integer
    cdef object _unmapping          # deque of (arena, outcomes, address of the FrontEnd) that are being unmapped
    cdef list _gone                 # attach ids that were unmapped since the last take_gone()

    cdef object free_number(self, uint32_t number)
    cdef object _take_over(self, object predecessor_state)
    cdef object _take_over_front_end(self, object former)
    cdef object _close_arena(self, FrontEnd *front_end)
    cdef object _begin_transactional(self, FrontEnd *front_end, dict settings)
    cdef object _restore_transactional(self, FrontEnd *front_end, dict settings)
    cdef object _forgo_transaction(self, FrontEnd *front_end)
    cdef object _leave_transaction(self, FrontEnd *front_end)
    cdef object _enlist(self, FrontEnd *front_end, Region arena, Region outcomes)
    cdef FrontEnd *_find(self, uint64_t attach_id) except? NULL
    cdef object unmap_ended(self)
