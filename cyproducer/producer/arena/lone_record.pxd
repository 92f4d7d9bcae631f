"""Declares the writing of a record that needs a batch of its own, see lone_record.pyx."""

from libc.stdint cimport int32_t, int64_t, uint8_t

from cyproducer.producer.arena.arena cimport Arena
from cyproducer.producer.arena.topic_table cimport Topic
from cyproducer.producer.results.futures cimport Batch
from cyproducer.record.encode cimport RecordView


cdef int write_alone(
    Arena arena, Topic topic, int32_t partition, int64_t timestamp, const RecordView *record, const uint8_t *packed,
    Py_ssize_t packed_bytes, Batch batch,
) except -1
