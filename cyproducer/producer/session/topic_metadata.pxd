"""Declares TopicTable, what a front-end knows of topics and partitions, see topic_metadata.pyx."""

from libc.stdint cimport uint32_t, uint64_t

from cyproducer.producer.arena.arena cimport Arena, is_alive
from cyproducer.producer.arena.topic_table cimport Topic
from cyproducer.shm.protocol cimport load_acquire
from cyproducer.shm.native cimport SnapshotReader


cdef class TopicTable:
    cdef Arena arena
    cdef Topic cached_topic
    cdef str cached_name
    cdef const uint64_t *published          # number of changes of the snapshot so far
    cdef uint64_t seen_version              # how many of those changes this table has read
    cdef uint32_t snapshot_epoch
    cdef SnapshotReader snapshot
    cdef readonly dict by_name              # the topics in use
    cdef dict by_number                     # the same, keyed by the sender's numbers
    cdef dict names                         # number -> name: the last one that was looked up
    cdef readonly uint64_t rows_read        # how many rows of the snapshot were read, for tests
    cdef readonly set waiters               # for metadata
    cdef dict refusals                      # topics that the sender has refused, with its reason

    cdef int open(self, SnapshotReader snapshot) except -1
    cdef int forget_cached(self) except -1
    cdef Topic cache(self, str name)
    cdef bint recall(self, object name) noexcept
    cdef bint read_changes(self) except -1
    cdef int look_up(self, str name) except -1
    cdef int notify_waiters(self) except -1
    cdef int _read_rows(self, uint64_t position, uint64_t end) except -1
    cdef bint renew(self, Topic topic) except -1
    cdef int _drop(self, Topic topic) except -1
    cdef int _read_row(self, Topic topic) except -1
    cdef object _update(self, Topic topic, tuple row)


cdef TopicTable make_topic_table(Arena arena)


cdef inline bint is_current(TopicTable topics) noexcept:
    """Return whether the session can be used, and its table has read all metadata that the sender has published."""
    # acquire: pairs with cyp_change_publish; the changes announced before are seen
    return is_alive(topics.arena) and topics.seen_version == load_acquire(topics.published)
