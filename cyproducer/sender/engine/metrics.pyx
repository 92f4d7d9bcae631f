"""Counts what Kafka's producer counts, in shared memory: for each front-end its share, and once more for all of them.

Everything here is for each batch, each request, or rarer. What happens to a batch is counted for the front-ends that
contribute to it: in the region of their outcomes. What happens to a connection is counted for the sender only: in the
snapshot. A successor continues both; it begins with no connection. Totals never fall, except that those of a topic end
when it gives its number back. An event that is counted at the moment of a kill may be missing in a part of them. What a
front-end has counted itself is added to the sum when it ends, by the sender or its successor: a kill in between may add
one sensor twice.

The rules are those of SenderMetrics, SelectorMetrics and NetworkClient in Kafka: a batch counts in each request, also
when it is sent again.
"""


cdef enum:
    WHOLE = 1000000                 # the compression rate of a batch that is not compressed, in millionths


# What one batch of a request adds to the metrics.
ctypedef struct Sent:
    uint64_t size                   # bytes in the request
    uint64_t records
    uint64_t rate                   # of its compression, in millionths
    uint64_t queued_ns
    uint64_t largest                # bytes of its largest record; 0: not known


cdef void begin_sender_metrics(cyp_sender_metrics *metrics) noexcept nogil:
    """Prepare the metrics of a new sender, or those that a predecessor has left: it has taken its connections along."""
    metrics.windows.window_ns = metrics.ended.windows.window_ns = CYP_SAMPLE_WINDOW_NS
    metrics.windows.samples = metrics.ended.windows.samples = CYP_SAMPLES
    store_relaxed(&metrics.connections, 0)
    store_relaxed(&metrics.in_flight, 0)


cdef cyp_topic_metrics *_row(cyp_topic_metrics *rows, uint32_t room, const Topic *topic) noexcept nogil:
    """Return the topic's row of a table with `room` rows and one more for topics that find no row."""
    cdef cyp_topic_metrics *row = _find_row(rows, room, topic.number, <uint64_t>topic.number + 1)
    if row == NULL:
        row = _find_row(rows, room, topic.number, 0)
        if row != NULL:
            store_release(&row.key, <uint64_t>topic.number + 1)
            CRASHPOINT(b"metrics.topic-entered")
    if row != NULL:
        return row
    store_release(&rows[room].key, CYP_METRICS_OTHER)
    return &rows[room]


cdef cyp_topic_metrics *_find_row(
    cyp_topic_metrics *rows, uint32_t room, uint32_t number, uint64_t key
) noexcept nogil:
    """Return the first of the rows for topic `number` that has this key; NULL if none has it."""
    cdef uint32_t probe
    for probe in range(<uint32_t>CYP_TOPIC_PROBES):
        if load_relaxed(&rows[(number + probe) & (room - 1)].key) == key:
            return &rows[(number + probe) & (room - 1)]
    return NULL


cdef void forget_topic(Core *core, uint32_t number) noexcept nogil:
    """Clear what is counted of a topic that gives its number back: the number's next topic begins at 0."""
    cdef FrontEnd *front_end = core.front_end.first
    _clear_row(_find_row(core.metrics.topics, CYP_SENDER_TOPICS, number, <uint64_t>number + 1))
    while front_end != NULL:
        _clear_row(_find_row(front_end.share_metrics.topics, CYP_CLIENT_TOPICS, number, <uint64_t>number + 1))
        front_end = front_end.front_end.next


cdef void _clear_row(cyp_topic_metrics *row) noexcept nogil:
    if row != NULL:
        memset(row.sensors, 0, sizeof(row.sensors))
        CRASHPOINT(b"metrics.topic-cleared")
        store_release(&row.key, 0)  # pairs with the acquire in topic_readings: a reader may see some sensors as 0


cdef void _count_sent(
    cyp_client_metrics *client, cyp_topic_metrics *row, const cyp_windows *windows, const Sent *sent, uint64_t now
) noexcept nogil:
    sensor_record(&client.sensors[CYP_CLIENT_BATCH_SIZE], windows, sent.size, now)
    sensor_record(&client.sensors[CYP_CLIENT_COMPRESSION], windows, sent.rate, now)
    sensor_record(&client.sensors[CYP_CLIENT_QUEUE_TIME], windows, sent.queued_ns, now)
    if sent.largest:
        sensor_record(&client.sensors[CYP_CLIENT_RECORD_SIZE], windows, sent.largest, now)
    sensor_record(&row.sensors[CYP_TOPIC_RECORDS], windows, sent.records, now)
    sensor_record(&row.sensors[CYP_TOPIC_BYTES], windows, sent.size, now)
    sensor_record(&row.sensors[CYP_TOPIC_COMPRESSION], windows, sent.rate, now)


cdef void count_produce(Core *core, WireBatch **wires, uint32_t count) noexcept nogil:
    """Count the batches of a Produce request that was just made (Kafka's updateProduceRequestMetrics)."""
    cdef uint32_t index
    cdef uint64_t records = 0
    cdef FrontEnd *drawn = NULL
    for index in range(count):
        records += wires[index].entry.count
        _count_wire(core, wires[index], &drawn)
        CRASHPOINT(b"metrics.batch-counted")
    sensor_record(&core.metrics.client.sensors[CYP_CLIENT_RECORDS], &core.metrics.windows, records, core.loop.now)
    while drawn != NULL:
        sensor_record(
            &drawn.share_metrics.client.sensors[CYP_CLIENT_RECORDS], &drawn.share_metrics.windows,
            drawn.metrics.drawn_records, core.loop.now
        )
        drawn.metrics.drawn_records = 0
        drawn = drawn.metrics.drawn_next
    CRASHPOINT(b"metrics.request-counted")


cdef void _count_wire(Core *core, WireBatch *wire, FrontEnd **drawn) noexcept nogil:
    """Count one batch for the sender and for its contributors, whose front-ends are put into the list `drawn`.

    A contributor's size is its share of the bytes on the wire. The shares add up to the size of the batch.
    """
    cdef Topic *topic = wire.lane.topic
    cdef uint64_t bytes_all = 0, bytes_before = 0, born_ns = core.loop.now, given = 0, upto
    cdef uint32_t row
    cdef ClientBatch *batch
    cdef FrontEnd *front_end
    cdef Sent whole, part
    whole.size = (
        BATCH_HEADER_BYTES + (wire.entry.length if wire.compression.packed == NULL else wire.compression.packed_bytes)
    )
    whole.rate = WHOLE
    if wire.compression.packed != NULL and wire.entry.length:
        whole.rate = <uint64_t>wire.compression.packed_bytes * WHOLE // wire.entry.length
    whole.records = wire.entry.count
    whole.largest = 0
    row = wire.entry.contributors
    while row != CYP_NONE:
        batch = core.contributor_batches[row]
        if batch != NULL:
            bytes_all += batch.intake.bytes
            born_ns = min(born_ns, batch.intake.born_ns)
            whole.largest = max(whole.largest, <uint64_t>batch.intake.largest)
        if wire.partial:
            break  # the others are ranges of the same batch
        row = core.contributors[row].next
    whole.queued_ns = core.loop.now - born_ns
    _count_sent(
        &core.metrics.client, _row(core.metrics.topics, CYP_SENDER_TOPICS, topic), &core.metrics.windows, &whole,
        core.loop.now,
    )
    row = wire.entry.contributors
    while row != CYP_NONE:
        batch = core.contributor_batches[row]
        if batch != NULL:
            front_end = batch.front_end
            bytes_before += batch.intake.bytes
            upto = whole.size * bytes_before // bytes_all if bytes_all else 0
            part = whole
            part.size = upto - given
            part.records = wire.entry.count if wire.partial else core.contributors[row].count
            part.queued_ns = core.loop.now - min(core.loop.now, batch.intake.born_ns)
            part.largest = batch.intake.largest
            given = upto
            _count_sent(
                &front_end.share_metrics.client, _row(front_end.share_metrics.topics, CYP_CLIENT_TOPICS, topic),
                &front_end.share_metrics.windows, &part, core.loop.now,
            )
            if part.records and front_end.metrics.drawn_records == 0:
                front_end.metrics.drawn_next = drawn[0]
                drawn[0] = front_end
            front_end.metrics.drawn_records += part.records
        if wire.partial:
            break
        row = core.contributors[row].next


cdef void _count_records(
    Core *core, FrontEnd *front_end, const Topic *topic, int client_sensor, int topic_sensor, uint64_t records
) noexcept nogil:
    """Record `records` in two sensors of the front-end, or of the sender if that is NULL."""
    if front_end == NULL:
        sensor_record(&core.metrics.client.sensors[client_sensor], &core.metrics.windows, records, core.loop.now)
        if topic != NULL:
            sensor_record(
                &_row(core.metrics.topics, CYP_SENDER_TOPICS, topic).sensors[topic_sensor], &core.metrics.windows,
                records, core.loop.now,
            )
        return
    sensor_record(
        &front_end.share_metrics.client.sensors[client_sensor], &front_end.share_metrics.windows, records, core.loop.now
    )
    if topic != NULL:
        sensor_record(
            &_row(front_end.share_metrics.topics, CYP_CLIENT_TOPICS, topic).sensors[topic_sensor],
            &front_end.share_metrics.windows, records, core.loop.now,
        )


cdef void count_retry(Core *core, WireBatch *wire) noexcept nogil:
    """Count the records of a batch that waits to be sent again (Kafka's reenqueueBatch)."""
    cdef uint32_t row = wire.entry.contributors
    cdef ClientBatch *batch
    _count_records(core, NULL, wire.lane.topic, CYP_CLIENT_RETRIES, CYP_TOPIC_RETRIES, wire.entry.count)
    while row != CYP_NONE:
        batch = core.contributor_batches[row]
        if batch != NULL:
            _count_records(
                core, batch.front_end, wire.lane.topic, CYP_CLIENT_RETRIES, CYP_TOPIC_RETRIES,
                core.contributors[row].count,
            )
        row = core.contributors[row].next
    CRASHPOINT(b"metrics.retry-counted")


cdef void count_errors(Core *core, FrontEnd *front_end, const Topic *topic, uint64_t records) noexcept nogil:
    """Count records that failed. `topic` may be NULL, and so may the front-end."""
    _count_records(core, NULL, topic, CYP_CLIENT_ERRORS, CYP_TOPIC_ERRORS, records)
    if front_end != NULL:
        _count_records(core, front_end, topic, CYP_CLIENT_ERRORS, CYP_TOPIC_ERRORS, records)


cdef void count_split(Core *core, WireBatch *wire) noexcept nogil:
    """Count a batch that is split because the broker says that it is too large."""
    cdef uint32_t row = wire.entry.contributors
    cdef ClientBatch *batch
    _count_records(core, NULL, NULL, CYP_CLIENT_SPLITS, 0, 1)
    while row != CYP_NONE:
        batch = core.contributor_batches[row]
        if batch != NULL:
            _count_records(core, batch.front_end, NULL, CYP_CLIENT_SPLITS, 0, 1)
        if wire.partial:
            break  # the others are ranges of the same batch
        row = core.contributors[row].next


# ---------------------------------------------------------------- connections

cdef inline void _record(Core *core, int network_sensor, uint64_t value) noexcept nogil:
    sensor_record(&core.metrics.network[network_sensor], &core.metrics.windows, value, core.loop.now)


cdef inline void _record_node(Core *core, Node *node, int node_sensor, uint64_t value) noexcept nogil:
    sensor_record(&node.metrics.row.sensors[node_sensor], &core.metrics.windows, value, core.loop.now)


cdef void find_node_row(Core *core, Node *node) noexcept nogil:
    """Find the row of a node, whose broker's id may have changed."""
    cdef uint64_t key = <uint64_t>1 << 32 | <uint32_t>node.id, found
    cdef uint32_t index
    for index in range(CYP_METRICS_NODES):
        found = load_relaxed(&core.metrics.nodes[index].key)
        if found == 0:
            store_release(&core.metrics.nodes[index].key, key)
            CRASHPOINT(b"metrics.node-entered")
        if found == 0 or found == key:
            node.metrics.row = &core.metrics.nodes[index]
            return
    node.metrics.row = &core.metrics.nodes[CYP_METRICS_NODES]
    store_release(&node.metrics.row.key, CYP_METRICS_OTHER)


cdef void count_request(Core *core, Node *node, const Request *request) noexcept nogil:
    """Count a request of any kind that is written in full."""
    _record(core, CYP_NETWORK_REQUESTS, request.produce.total)
    _record_node(core, node, CYP_NODE_REQUESTS, request.produce.total)


cdef void count_unanswered(Core *core, int32_t change) noexcept nogil:
    """Change the number of requests in flight."""
    store_relaxed(&core.metrics.in_flight, load_relaxed(&core.metrics.in_flight) + <uint64_t>change)


cdef void count_written(Core *core, Node *node, uint64_t size) noexcept nogil:
    """Count a write to a socket."""
    _record(core, CYP_NETWORK_IO, 1)
    _record(core, CYP_NETWORK_SENT, size)
    _record_node(core, node, CYP_NODE_SENT, size)


cdef void count_read(Core *core, Node *node, uint64_t size) noexcept nogil:
    """Count a read from a socket."""
    _record(core, CYP_NETWORK_IO, 1)
    _record(core, CYP_NETWORK_RECEIVED, size)
    _record_node(core, node, CYP_NODE_RECEIVED, size)


cdef void count_response(Core *core, Node *node, const Request *request, uint64_t size) noexcept nogil:
    """Count a response with `size` bytes, of a Produce request also the time that it took.

    Kafka measures no latency with acks=0, because the broker does not answer.
    """
    cdef uint64_t took
    _record(core, CYP_NETWORK_RESPONSES, size)
    _record_node(core, node, CYP_NODE_RESPONSES, size)
    if request.kind == REQUEST_PRODUCE and request.acks != 0:
        took = core.loop.now - min(core.loop.now, request.connection.sent_ns)
        _record(core, CYP_NETWORK_LATENCY, took)
        _record_node(core, node, CYP_NODE_LATENCY, took)


cdef void count_throttle(Core *core, int32_t throttle_ms) noexcept nogil:
    """Count the throttle time of a response; 0 counts, too."""
    _record(core, CYP_NETWORK_THROTTLE, <uint64_t>max(throttle_ms, 0) * 1000000)


cdef void count_connection(Core *core, int32_t change) noexcept nogil:
    """Count a connection that was opened (1) or closed (-1)."""
    store_relaxed(&core.metrics.connections, load_relaxed(&core.metrics.connections) + <uint64_t>change)
    if change < 0:
        _record(core, CYP_NETWORK_CLOSED, 1)


cdef void count_established(Core *core) noexcept nogil:
    """Count a connection that the broker has taken."""
    _record(core, CYP_NETWORK_CREATED, 1)


cdef void count_authentication(Core *core, bint again, bint failed, uint64_t took_ns) noexcept nogil:
    """Count a connection that was authenticated, or was not; `again`: it had been authenticated before."""
    if again:
        _record(core, CYP_NETWORK_REAUTH_FAILED if failed else CYP_NETWORK_REAUTHENTICATED, took_ns)
    else:
        _record(core, CYP_NETWORK_AUTH_FAILED if failed else CYP_NETWORK_AUTHENTICATED, 1)


cdef void count_select(Core *core, uint64_t waited_ns) noexcept nogil:
    """Count a wait for the sockets."""
    _record(core, CYP_NETWORK_SELECT, waited_ns)


cdef void count_work(Core *core, uint64_t worked_ns) noexcept nogil:
    """Count the time for which sockets were read or written."""
    _record(core, CYP_NETWORK_WORK, worked_ns)


cdef void keep_totals(Core *core, FrontEnd *front_end) noexcept nogil:
    """Keep what a front-end that ends has counted itself, which a predecessor may have begun.

    The front-end may have written anything there.
    """
    cdef uint64_t index
    cdef uint64_t *kept
    for index in range(load_relaxed(&front_end.share_metrics.own_kept), CYP_OWN_SENSORS + CYP_OWN_TIMES):
        if index < CYP_OWN_SENSORS:
            sensor_add_totals(&core.metrics.ended.sensors[index], &front_end.header.metrics.sensors[index])
        else:
            kept = &core.metrics.ended.times[index - CYP_OWN_SENSORS]
            store_relaxed(
                kept, load_relaxed(kept) + load_relaxed(&front_end.header.metrics.times[index - CYP_OWN_SENSORS])
            )
        store_release(&front_end.share_metrics.own_kept, index + 1)
        CRASHPOINT(b"metrics.totals-kept")
