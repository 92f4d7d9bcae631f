"""Reads what the sender counts for a process, and adds what the process counts itself.

The sender writes its counts into the outcomes region and the snapshot. The counts of the process are those of its arena
(OwnMetrics), which the arenas of a producer's sessions hand on.
"""

cimport cython

from cyproducer.producer.arena.arena cimport Arena, is_alive
from cyproducer.producer.arena.own_metrics cimport OwnMetrics
from cyproducer.producer.results.native_only cimport native_only
from cyproducer.shm.protocol cimport CYP_CLIENT_SENSORS, CYP_CLIENT_TOPICS, CYP_OWN_ERRORS, cyp_sender_metrics
from cyproducer.shm.native cimport readings, sender_counts, topic_readings

from cyproducer import metric_table


@cython.final
@cython.no_gc_clear
@cython.auto_pickle(False)
cdef class MetricCounts:
    """The counts of one session."""

    def __init__(self, *args):
        raise TypeError("MetricCounts cannot be created directly: a session creates it")

    cdef int open(self, object settings, Region outcomes, SnapshotReader snapshot) except -1:
        """Use the counters in the regions of this session, which the caller keeps mapped. The arena is open."""
        self.snapshot = snapshot
        self.share = <const cyp_share_metrics *>(outcomes.base + self.arena.geometry.metrics_offset)
        self.arena.own.configure(settings)
        self.arena.own.share(&self.arena.port.arena.metrics)
        return 0

    cdef int take_over(self, MetricCounts former) except -1:
        """Continue the counts of the session before this one."""
        self.arena.own = former.arena.own
        if self.share != NULL:
            self.arena.own.share(&self.arena.port.arena.metrics)
        return 0

    cdef int close(self) except -1:
        """Keep the totals that the sender has counted so far. It does not matter how the session ends."""
        cdef const cyp_share_metrics *share = self.share
        if share != NULL:
            self.share = NULL
            self.arena.own.unshare(&self.arena.port.arena.metrics)
            self.arena.own.keep(
                readings(share.client.sensors, CYP_CLIENT_SENSORS, &share.windows),
                topic_readings(share.topics, CYP_CLIENT_TOPICS, &share.windows, self.snapshot.rows),
            )
        return 0

    def read(self):
        """Return what is counted for this process and for its sender, see metric_table.py; without own gauges."""
        cdef const cyp_share_metrics *share = self.share
        cdef OwnMetrics own = self.arena.own
        found = metric_table.nothing()
        topics = {}
        if share != NULL and is_alive(self.arena):
            found["client"] = readings(share.client.sensors, CYP_CLIENT_SENSORS, &share.windows)
            topics = topic_readings(share.topics, CYP_CLIENT_TOPICS, &share.windows, self.snapshot.rows)
            found.update(sender_counts(
                <const cyp_sender_metrics *>(self.snapshot.region.base + self.snapshot.geometry.metrics_offset)
            ))
        found["client"] = metric_table.with_totals(found["client"], own.client)
        for name in {*topics, *own.topics}:
            found["topics"][name] = metric_table.with_totals(topics.get(name), own.topics.get(name))
        found["own"] = own.own_readings()
        found["errors"] = found["own"][CYP_OWN_ERRORS]
        return found


cdef MetricCounts make_metric_counts(Arena arena):
    cdef MetricCounts counts = MetricCounts.__new__(MetricCounts)
    counts.arena = arena
    return counts


native_only(MetricCounts)
