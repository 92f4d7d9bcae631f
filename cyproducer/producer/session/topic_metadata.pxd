"""Declares what a front-end knows of topics and partitions, see topic_metadata.pyx."""

from libc.stdint cimport uint32_t, uint64_t

from cyproducer.producer.arena.arena cimport Arena
from cyproducer.producer.arena.topic_table cimport Topic
from cyproducer.shm.snapshot cimport SnapshotReader


cdef enum:
    ENDED = 2       # equals no token: tokens are odd, and a forked child reads 0 from the fork page


cdef class Metadata(Arena):
    cdef const uint64_t *sentinel           # equals `token` as long as the session may be used
    cdef uint64_t token
    cdef uint64_t process                   # fork_token() of the process that made it
    cdef Topic cached_topic
    cdef str cached_name
    cdef const uint64_t *published          # number of changes of the snapshot so far
    cdef uint64_t seen_version              # how many of those changes this session has read
    cdef uint32_t snapshot_epoch
    cdef readonly object attachment
    cdef readonly dict topics
    cdef SnapshotReader snapshot
    cdef dict by_number                     # the topics in use, keyed by the sender's numbers
    cdef readonly uint64_t rows_read        # how many rows of the snapshot were read, for tests
    cdef readonly set metadata_waiters
    cdef readonly list unsent_lists         # UnsentBatches of earlier sessions that are not in this arena yet

    cdef Topic find_topic(self, str name)
    cdef bint recall(self, object name) noexcept
    cdef int _read_changes(self, uint64_t position, uint64_t end) except -1
    cdef int _look_up(self, str name) except -1
    cdef int _read_row(self, Topic topic) except -1
    cdef object _update(self, Topic topic, tuple row)
    cdef int take_over(self) except -1
