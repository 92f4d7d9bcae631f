"""Gives Python the readings of sensors: (total, count, sum, events, max, elapsed ns), see metrics.h.

The first two numbers are those since the start, the next three those of the windows. The last one is the time by which
a rate of the windows is divided. cyproducer/metric_table.py makes Kafka's metrics from them.
"""

from libc.stdint cimport int32_t, uint32_t, uint64_t
from libc.string cimport memset

from cyproducer.shm.atomics cimport load_acquire, load_acquire32, load_relaxed, load_relaxed32
from cyproducer.shm.clock cimport monotonic_ns
from cyproducer.shm.layout cimport (
    CYP_METRICS_NODES,
    CYP_METRICS_OTHER,
    CYP_NETWORK_SENSORS,
    CYP_NODE_SENSORS,
    CYP_OWN_SENSORS,
    CYP_OWN_TIMES,
    CYP_SAMPLES_MAX,
    CYP_TOPIC_NAME_BYTES,
    CYP_TOPIC_SENSORS,
    cyp_own_metrics,
    cyp_sender_metrics,
    cyp_sensor,
    cyp_share_metrics,
    cyp_topic_metrics,
    cyp_topic_row,
    cyp_windows,
)
from cyproducer.shm.snapshot cimport topic_is_valid

#: metrics_num_samples is at most this.
SAMPLES_MAX = CYP_SAMPLES_MAX - 1
#: The size in bytes of what an outcomes region ends with, rounded up to pages.
SHARE_BYTES = (sizeof(cyp_share_metrics) + 4095) // 4096 * 4096


cdef list readings(const cyp_sensor *sensors, int count, const cyp_windows *windows):
    """Return the readings of `count` sensors that lie one after another, as they are now."""
    cdef cyp_reading reading
    cdef uint64_t now = monotonic_ns()
    cdef int index
    found = []
    for index in range(count):
        sensor_read(&sensors[index], windows.window_ns, windows.samples, now, &reading)
        found.append(
            (reading.total, reading.count, reading.sum, reading.events, reading.max, reading.elapsed_ns)
        )
    return found


cdef list front_end_readings(const cyp_own_metrics *own, const cyp_windows *windows):
    """Return the readings of what a front-end counts itself. Those of times have totals only."""
    cdef uint32_t index
    found = readings(own.sensors, CYP_OWN_SENSORS, windows)
    for index in range(CYP_OWN_TIMES):
        found.append((load_relaxed(&own.times[index]), 0, 0, 0, 0, 1_000_000))
    return found


cdef dict topic_readings(
    const cyp_topic_metrics *rows, uint32_t room, const cyp_windows *windows, const cyp_topic_row *topics
):
    """Return {name: readings} of a table with `room` rows and one more. `topics`: the rows of the snapshot."""
    cdef uint32_t index
    cdef uint64_t key
    found = {}
    for index in range(room + 1):
        key = load_acquire(&rows[index].key)  # pairs with the release in _row of the sender
        if key == 0:
            continue
        name = "(other)"
        if key != CYP_METRICS_OTHER:
            name = _name_of(&topics[key - 1])
            if name is None:
                continue  # the number is being given back
        found[name] = readings(rows[index].sensors, CYP_TOPIC_SENSORS, windows)
    return found


cdef str _name_of(const cyp_topic_row *row):
    """Return the name of a row of the snapshot; None if it has none."""
    cdef uint32_t generation = load_acquire32(&row.generation)  # pairs with cyp_topic_keep
    cdef uint32_t size = load_relaxed32(&row.name_bytes)
    cdef bytes name = row.name[:min(size, <uint32_t>CYP_TOPIC_NAME_BYTES)]
    if generation & 1 or not topic_is_valid(row, generation):
        return None
    return name.decode(errors="replace")


cdef dict sender_counts(const cyp_sender_metrics *metrics):
    """Return what concerns the connections of a sender: {"network", "nodes", "gauges"}, see metric_table.py."""
    cdef uint32_t index
    cdef uint64_t key, since = load_relaxed(&metrics.metadata_ns), now = monotonic_ns()
    nodes = {}
    for index in range(<uint32_t>CYP_METRICS_NODES + 1):
        key = load_acquire(&metrics.nodes[index].key)  # pairs with the release in enter_node of the sender
        if key:
            name = "node-other" if key == CYP_METRICS_OTHER else f"node-{<int32_t>key}"
            nodes[name] = readings(metrics.nodes[index].sensors, CYP_NODE_SENSORS, &metrics.windows)
    return {
        "network": readings(metrics.network, CYP_NETWORK_SENSORS, &metrics.windows),
        "nodes": nodes,
        "gauges": {
            "connections": load_relaxed(&metrics.connections),
            "in-flight": load_relaxed(&metrics.in_flight),
            "metadata-age": (now - min(since, now)) / 1e9 if since else None,
        },
    }


cdef class SensorProbe:
    """One sensor in private memory, for tests with a clock of their own (ns)."""

    cdef cyp_sensor sensor
    cdef cyp_windows windows

    def __cinit__(self, uint64_t window_ns, uint64_t samples):
        memset(&self.sensor, 0, sizeof(self.sensor))
        self.windows.window_ns = window_ns
        self.windows.samples = samples

    def record(self, uint64_t value, uint64_t now):
        """Record an event."""
        sensor_record(&self.sensor, &self.windows, value, now)

    def read(self, uint64_t now):
        """Return the reading at this time."""
        cdef cyp_reading reading
        sensor_read(&self.sensor, self.windows.window_ns, self.windows.samples, now, &reading)
        return reading.total, reading.count, reading.sum, reading.events, reading.max, reading.elapsed_ns
