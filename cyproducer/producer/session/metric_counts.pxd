"""Declares MetricCounts, which reads what a session's sender counts, see metric_counts.pyx."""

from cyproducer.producer.arena.arena cimport Arena
from cyproducer.shm.protocol cimport cyp_share_metrics
from cyproducer.shm.native cimport Region
from cyproducer.shm.native cimport SnapshotReader


cdef class MetricCounts:
    cdef Arena arena
    cdef SnapshotReader snapshot
    cdef const cyp_share_metrics *share     # what the sender counts for this process; NULL: it is not attached

    cdef int open(self, object settings, Region outcomes, SnapshotReader snapshot) except -1
    cdef int take_over(self, MetricCounts former) except -1
    cdef int close(self) except -1


cdef MetricCounts make_metric_counts(Arena arena)
