"""Topic, see topics.pyx."""

from libc.stdint cimport int32_t, uint32_t, uint64_t

from cyproducer.producer.append cimport Chain


cdef class Topic:
    cdef readonly str name
    cdef readonly bytes leaders             # one byte a partition: 1 = has a leader
    cdef Chain *chains                      # one per partition
    cdef uint32_t number                    # the sender's
    cdef int32_t allocated
    cdef readonly int32_t partition_count   # 0: not known (any more)
    cdef readonly int32_t error             # Kafka's code of the topic's metadata
    cdef int32_t own                        # partition for records without a key; -1: the published one

    cdef bint grow(self, int32_t partition_count) noexcept


cdef Topic make_topic(str name)


cdef int32_t pick_partition(Topic topic, uint64_t *random) noexcept
