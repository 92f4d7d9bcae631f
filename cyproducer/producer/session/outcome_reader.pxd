"""Declares the part of a session that reads the outcomes of batches, see outcome_reader.pyx."""

from libc.stdint cimport int32_t, int64_t, uint32_t, uint64_t

from cyproducer.producer.results.futures cimport Batch
from cyproducer.producer.session.topic_metadata cimport Metadata
from cyproducer.shm.layout cimport cyp_outcome, cyp_outcomes_header


cdef class OutcomeReader(Metadata):
    cdef const cyp_outcomes_header *outcomes
    cdef const cyp_outcome *outcome_ring
    cdef uint64_t outcome_head
    cdef list finished                      # batches whose waiters and callbacks are not notified yet
    cdef readonly object successor          # the Session that has taken over the unsent batches, or None
    cdef readonly object memory_queue       # deque of waiters for memory, first come first served
    cdef readonly object delivery           # the callback thread, None before the first callback
    cdef readonly object ready              # deque of batches whose callbacks are to be called
    cdef readonly long long watched         # batches with callbacks and without an outcome
    cdef readonly bint orphaned             # its producer is gone; futures may still exist
    cdef readonly long long failures        # batches that failed
    cdef readonly long long blocked_ns      # spent waiting for memory

    cpdef int drain(self) except -1
    cdef int _apply(self, const cyp_outcome *outcome) except -1
    cdef int _explain(self, uint32_t slot, const cyp_outcome *outcome) except -1
    cdef int _settle(self, uint32_t slot, int32_t error, int64_t base_offset, int64_t append_time) except -1
    cdef int _fail(self, object batches, int32_t code) except -1
    cdef int _notify_finished(self) except -1
