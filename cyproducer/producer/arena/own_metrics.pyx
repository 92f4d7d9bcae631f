"""Counts what only the front-end knows: waits, failed calls, flushes. It outlives the sessions of a producer.

The numbers since the producer was made are private. What has happened since the attachment is in the arena as well,
where the sender reads it for the sum over all front-ends. All methods run with the GIL held, so there is one writer.
"""

cimport cython
from libc.stdint cimport uint32_t
from libc.string cimport memset

from cyproducer.shm.protocol cimport monotonic_ns
from cyproducer.shm.protocol cimport (
    CYP_OWN_BUFFER_WAIT, CYP_OWN_ERRORS, CYP_OWN_EXHAUSTED, CYP_OWN_FLUSH, CYP_OWN_METADATA_WAIT, CYP_OWN_TIMES,
    CYP_SAMPLE_WINDOW_NS, CYP_SAMPLES,
)
from cyproducer.shm.protocol cimport load_relaxed, store_relaxed
from cyproducer.shm.protocol cimport sensor_record
from cyproducer.shm.native cimport front_end_readings
from cyproducer.shm.native cimport fork_page


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
        self.process = fork_page()[0]
        self.shared = shared

    cdef bint is_shared(self) noexcept:
        """Return whether to count in the arena as well. In a forked child the arena is not mapped."""
        return self.shared != NULL and fork_page()[0] == self.process

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

    cdef void note_waiting(self, uint64_t calls) noexcept:
        """Store how many calls wait for memory, for the sender."""
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
