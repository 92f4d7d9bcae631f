"""Declares OutcomeReader, which reads the outcomes of a session's batches, see outcome_reader.pyx."""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t

from cyproducer.producer.arena.arena cimport Arena
from cyproducer.producer.results.futures cimport Batch
from cyproducer.producer.session.topic_metadata cimport TopicTable
from cyproducer.shm.protocol cimport cyp_extent, cyp_outcome, cyp_outcomes_header
from cyproducer.shm.native cimport Region


cdef class OutcomeReader:
    cdef Arena arena
    cdef TopicTable topics
    cdef const cyp_outcomes_header *header
    cdef const cyp_outcome *ring
    cdef const cyp_extent *extents
    cdef uint64_t head
    cdef list finished                      # batches whose waiters and callbacks are not notified yet
    cdef readonly long long failures        # results that were errors: of batches, and of parts of batches
    cdef readonly int32_t first_error       # the first of them since watch(); 0: none

    cdef int open(self, Region outcomes) except -1
    cdef int take(self) except -1
    cdef int settle(self, uint32_t slot, int32_t error, int64_t base_offset, int64_t append_time) except -1
    cdef int fail(self, object batches, int32_t code) except -1
    cdef list take_finished(self)
    cdef int take_over(self, OutcomeReader former) except -1
    cdef void _count_failure(self, int32_t error) noexcept
    cdef int _apply(self, const cyp_outcome *outcome) except -1
    cdef int _read_details(self, uint32_t slot, const cyp_outcome *outcome) except -1
    cdef int _explain(self, uint32_t slot, const cyp_outcome *outcome) except -1
    cdef long long _failed_records(self, uint32_t slot) except -1
    cdef str _said(self, uint32_t place, int32_t error, int32_t cause)
    cdef str _text(self, uint32_t place)
    cdef int _take_extents(self, uint32_t slot, uint32_t at) except -1
    cdef int _note_refused(self, Batch batch, uint32_t slot) except -1


cdef OutcomeReader make_outcome_reader(Arena arena, TopicTable topics)
