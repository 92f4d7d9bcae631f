"""Declares Topic, a topic with its partitions' open batches, see topic_table.pyx."""

from libc.stdint cimport int32_t, uint8_t, uint32_t, uint64_t

from cyproducer.producer.arena.append cimport Chain


cdef class Topic:
    cdef readonly str name
    cdef readonly bytes leaders             # one byte per partition: 1 = has a leader
    cdef const uint8_t *shares              # in the snapshot, one CYP_SHARE byte per partition
    cdef Chain *chains                      # one per partition
    cdef uint32_t number                    # the sender's topic number
    cdef int32_t allocated
    cdef readonly int32_t partition_count   # 0: not known
    cdef readonly int32_t error             # Kafka's code of the topic's metadata
    cdef int32_t own                        # partition for records without a key; -1: see Arena.sticky_partition

    cdef bint grow(self, int32_t partition_count) noexcept


cdef Topic make_topic(str name, uint32_t number)


cdef int32_t pick_partition(Topic topic, bint adaptive, uint64_t *random) noexcept
