"""What became of the batches, see completion.pyx."""

from libc.stdint cimport int32_t, int64_t, uint32_t, uint64_t

from cyproducer.producer.futures cimport Batch
from cyproducer.producer.metadata cimport Metadata
from cyproducer.shm.layout cimport cyp_outcome, cyp_outcomes_header


cdef class Completion(Metadata):
    cdef uint64_t process                   # fork_token() of the process that made it
    cdef const cyp_outcomes_header *outcomes
    cdef const cyp_outcome *outcome_ring
    cdef uint64_t outcome_head
    cdef list finished                      # batches whose waiters and callbacks are not told yet
    cdef readonly object successor          # the Session that has inherited from this one, or None
    cdef readonly object memory_queue       # deque of waiters for memory, first come first served
    cdef readonly object delivery           # the callback thread, None before the first callback
    cdef readonly object ready              # deque of batches whose callbacks are to be called
    cdef readonly long long watched         # batches with callbacks and without an outcome
    cdef readonly bint orphaned             # its producer is gone, futures may be left
    cdef readonly long long failures        # batches
    cdef readonly long long blocked_ns      # spent waiting for memory

    cpdef int drain(self) except -1
    cdef int _apply(self, const cyp_outcome *outcome) except -1
    cdef int _settle(self, uint32_t slot, int32_t error, int64_t base_offset, int64_t append_time) except -1
    cdef int _fail(self, object batches, int32_t code) except -1
    cdef int _tell(self) except -1
