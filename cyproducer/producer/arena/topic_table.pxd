"""Declares Topic, a topic with its partitions' open batches, see topic_table.pyx."""

from libc.stdint cimport int32_t, uint8_t, uint32_t, uint64_t

from cyproducer.producer.arena.append cimport Chain
from cyproducer.shm.protocol cimport cyp_topic_row


# How partitions for records without a key are drawn.
cdef enum Weights:
    WEIGHTS_EQUAL = 0           # each partition that has a leader equally
    WEIGHTS_SHARES = 1          # by the share that the sender publishes (KIP-794)
    WEIGHTS_NOT_AVOIDED = 2     # equally, without the partitions that the sender avoids


cdef class Topic:
    cdef readonly str name
    cdef readonly bytes leaders             # one byte per partition: 1 = has a leader
    cdef const uint8_t *shares              # in the snapshot, one CYP_SHARE byte per partition
    cdef Chain *chains                      # one per partition
    cdef const cyp_topic_row *row           # in the snapshot
    cdef uint32_t number                    # the sender's topic number
    cdef uint32_t generation                # of the number, when it was looked up
    cdef uint32_t id                        # both, as in slot rows
    cdef int32_t allocated
    cdef readonly int32_t partition_count   # 0: not known
    cdef readonly int32_t error             # Kafka's code of the topic's metadata
    cdef double compression_ratio           # estimated: compressed bytes per byte of records
    cdef uint32_t raw_limit                 # bytes of records that compress to batch_size; 0: only batch_size counts
    cdef uint32_t raw_most                  # bytes of records that this process compresses in time; 0: not known
    cdef uint32_t refused_bytes             # the smallest batch that the topic has refused as too large; 0: none
    cdef int32_t own                        # partition for records without a key; -1: see Arena.sticky_partition
    cdef uint64_t own_bytes                 # of batches that it had since it was drawn
    cdef uint64_t own_ns                    # when it was drawn

    cdef bint grow(self, int32_t partition_count) noexcept
    cdef void renumber(self, uint32_t generation) noexcept


cdef Topic make_topic(str name, uint32_t number, uint32_t generation, const cyp_topic_row *row)


cdef int32_t pick_partition(Topic topic, Weights weights, uint64_t *random) noexcept
