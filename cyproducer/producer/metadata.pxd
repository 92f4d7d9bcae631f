"""What a front-end knows of the cluster, see metadata.pyx."""

from libc.stdint cimport uint32_t, uint64_t

from cyproducer.producer.arena cimport Arena
from cyproducer.producer.topics cimport Topic


cdef class Metadata(Arena):
    cdef const uint64_t *sentinel           # equals `token` as long as the session may be used
    cdef uint64_t token
    cdef Topic cached_topic
    cdef str cached_name
    cdef const uint64_t *published          # of the snapshot
    cdef uint64_t seen_version
    cdef uint32_t snapshot_epoch
    cdef readonly object attachment
    cdef readonly dict topics
    cdef readonly str last_error            # the sender's last trouble with the cluster
    cdef readonly int brokers
    cdef readonly set metadata_waiters
    cdef readonly list inherited            # of Estate: what earlier sessions left and is not in this arena yet

    cdef Topic find_topic(self, str name)
    cdef bint recall(self, object name) noexcept
    cdef object _update(self, Topic topic, tuple row)
    cdef int take_over(self) except -1
