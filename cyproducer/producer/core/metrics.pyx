"""Counts what this process does, and reads what the sender counts for it."""


# ------------------------------------------------------------ own metrics
#
# Counts what only the front-end knows: waits, failed calls, flushes. It outlives the sessions of a producer.
#
# The numbers since the producer was made are private. What has happened since the attachment is in the arena as well,
# where the sender reads it for the sum over all front-ends. All methods run with the GIL held, so there is one writer.


@cython.final
@cython.auto_pickle(False)
cdef class OwnMetrics:
    """The counts of one producer in one process. Values are nanoseconds or records."""

    def __cinit__(self):
        memset(&self.all, 0, sizeof(self.all))
        self.all.windows.window_ns = CYP_SAMPLE_WINDOW_NS
        self.all.windows.samples = CYP_SAMPLES
        self.client, self.topics = [], {}

    def configure(self, settings):
        """Use the windows of these settings."""
        self.all.windows.window_ns = <uint64_t>settings.metrics_sample_window_ms * 1000000
        self.all.windows.samples = <uint64_t>settings.metrics_num_samples

    cdef void share(self, cyp_own_metrics *shared) noexcept:
        """Count in the arena as well from here on."""
        shared.windows = self.all.windows
        self.sentinel = fork_page()
        self.process = self.sentinel[0]
        self.shared = shared

    cdef bint is_shared(self) noexcept:
        """Return whether to count in the arena as well. In a forked child the arena is not mapped."""
        return self.shared != NULL and self.sentinel[0] == self.process

    cdef void unshare(self, const cyp_own_metrics *shared) noexcept:
        """Stop counting in the arena to which `shared` belongs."""
        if self.shared == shared:
            self.shared = NULL

    cdef void record(self, int sensor, uint64_t value) noexcept:
        """Record an event that the sender does not count."""
        cdef uint64_t now = monotonic_ns()
        sensor_record(&self.all.sensors[sensor], &self.all.windows, value, now)
        if self.is_shared():
            sensor_record(&self.shared.sensors[sensor], &self.shared.windows, value, now)

    cdef void fail(self, long long records) noexcept:
        """Count records with an error that the sender counts too, or cannot count any more because it is gone."""
        sensor_record(&self.all.sensors[CYP_OWN_ERRORS], &self.all.windows, <uint64_t>max(records, 0), monotonic_ns())

    def count_refused(self, bint exhausted=False):
        """Count a call that raised, so that its records are not queued. `exhausted`: for lack of memory."""
        self.record(CYP_OWN_ERRORS, 1)
        if exhausted:
            self.record(CYP_OWN_EXHAUSTED, 1)

    def add_buffer_wait(self, uint64_t waited_ns):
        """Add the time that one call has waited for memory."""
        self.record(CYP_OWN_BUFFER_WAIT, waited_ns)

    def add_flush(self, uint64_t took_ns):
        """Add the time of one flush()."""
        self.record(CYP_OWN_FLUSH, took_ns)

    def add_metadata_wait(self, uint64_t waited_ns):
        """Add the time that one call has waited for metadata."""
        self.record(CYP_OWN_METADATA_WAIT, waited_ns)

    def add_time(self, uint32_t which, uint64_t took_ns):
        """Add the time of one call for transactions: `which` is its index in TIMES of metric_table.py."""
        if which >= CYP_OWN_TIMES:
            raise IndexError(which)
        store_relaxed(&self.all.times[which], load_relaxed(&self.all.times[which]) + took_ns)
        if self.is_shared():
            store_relaxed(&self.shared.times[which], load_relaxed(&self.shared.times[which]) + took_ns)

    cdef void set_waiting_calls(self, uint64_t calls) noexcept:
        """Store how many calls wait for memory, for the metric of the sender."""
        if self.is_shared():
            store_relaxed(&self.shared.waiting, calls)

    cdef list own_readings(self):
        """Return the readings since the producer was made."""
        return front_end_readings(&self.all, &self.all.windows)

    def keep(self, list client, dict topics):
        """Add the totals of a session that ends: readings of the sender's sensors for the client and for topics."""
        self.client = _added(self.client, client)
        for name, found in topics.items():
            self.topics[name] = _added(self.topics.get(name, []), found)


cdef list _added(list former, list found):
    """Return [total, count] of each sensor with the readings added."""
    if not former:
        former = [[0, 0]] * len(found)
    return [[known[0] + reading[0], known[1] + reading[1]] for known, reading in zip(former, found)]


# ------------------------------------------------------------ metric counts
#
# Reads what the sender counts for a process, and adds what the process counts itself.
#
# The sender writes its counts into the outcomes region and the snapshot. The counts of the process are those of its
# SessionOwner (OwnMetrics), which the arenas of all its sessions use.


@cython.final
@cython.no_gc_clear
@cython.auto_pickle(False)
cdef class MetricCounts:
    """The counts of one session."""

    def __init__(self, *args):
        raise TypeError("MetricCounts cannot be created directly: a session creates it")

    cdef int open(self, Region outcomes, SnapshotReader snapshot) except -1:
        """Use the counters in the regions of this session, which the caller keeps mapped. The arena is open."""
        self.snapshot = snapshot
        self.share = <const cyp_share_metrics *>(outcomes.base + self.arena.geometry.metrics_offset)
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
