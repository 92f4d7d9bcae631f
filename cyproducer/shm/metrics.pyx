"""Gives Python the readings of sensors: (total, count, sum, events, max, elapsed ns), see metrics.h.

The first two numbers are those since the start, the next three those of the windows. The last one is the time by which
a rate of the windows is divided. cyproducer/metric_table.py makes Kafka's metrics from them.
"""


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
    cdef uint32_t generation = load_acquire32(&row.generation)  # pairs with cyp_topic_publish
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
