"""Declares the unsent batches of a session whose sender is gone, see unsent_batches.pyx."""

from libc.stdint cimport int64_t, uint32_t, uint64_t

from cyproducer.producer.arena.arena cimport Arena
from cyproducer.producer.arena.topic_table cimport Topic
from cyproducer.producer.results.futures cimport Batch
from cyproducer.producer.session.outcome_reader cimport OutcomeReader
from cyproducer.producer.session.topic_metadata cimport TopicTable


cdef class UnsentBatches:
    cdef Arena source                       # the arena that holds the records; only read
    cdef object attachment                  # keeps the arena mapped
    cdef uint64_t lifetime_ns               # delivery_timeout_ms
    cdef readonly dict topics               # name -> deque of (slot, batch), in the order of their records
    cdef readonly long long count           # batches

    cdef int add(self, uint32_t slot, Batch batch) except -1
    cdef bint move(self, Arena target, TopicTable known, Topic topic, list failed) except -1
    cdef int _copy(self, Arena target, Topic topic, uint32_t slot, Batch batch) except -1
    cdef bint _copy_chunks(self, Arena target, uint32_t slot, uint32_t *first) noexcept
    cdef int _publish(self, Arena target, Topic topic, uint32_t slot, uint32_t head, Batch batch) noexcept
    cdef uint64_t _born_ns(self, uint32_t slot) noexcept
    cdef int _count_failed(self, uint32_t slot) except -1


cdef void revoke(Arena arena) noexcept
cdef long long keep_unsent(
    object session, TopicTable topics, OutcomeReader outcomes, UnsentBatches unsent
) except -1
cdef long long chain_bytes(Arena arena, uint32_t slot) noexcept
cdef long long chain_records(Arena arena, uint32_t slot) noexcept
cdef long long pending_records(Arena arena) noexcept
