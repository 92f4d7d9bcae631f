"""Writes Produce requests and reads their responses."""


# ------------------------------------------------------------ cursor
#
# Reads the fields of a response with bounds checks: big-endian integers, arrays, strings, tagged fields.


# A read position. A read beyond the end sets `bad`; it and every later read return 0.
ctypedef struct Cursor:
    const uint8_t *at
    const uint8_t *end
    bint bad


cdef inline uint64_t get_int(Cursor *cursor, int size) noexcept nogil:
    """Return a big-endian unsigned integer of `size` bytes."""
    cdef uint64_t value = 0
    cdef int index
    if cursor.bad or cursor.end - cursor.at < size:
        cursor.bad = True
        return 0
    for index in range(size):
        value = value << 8 | cursor.at[index]
    cursor.at += size
    return value


cdef inline uint32_t get_compact(Cursor *cursor) noexcept nogil:
    """Return an unsigned varint."""
    cdef uint32_t value = 0
    cdef const uint8_t *after
    if cursor.bad:
        return 0
    after = get_uvarint(cursor.at, cursor.end, &value)
    if after == NULL:
        cursor.bad = True
        return 0
    cursor.at = after
    return value


cdef inline uint32_t get_count(Cursor *cursor, bint flexible) noexcept nogil:
    """Return the number of elements of an array; 0 for a null array. A number above the bytes left is an error."""
    cdef uint32_t count = get_compact(cursor) if flexible else <uint32_t>get_int(cursor, 4)
    if flexible:
        count = count - 1 if count else 0
    elif count == 0xffffffffU:
        count = 0
    if count > <uint64_t>(cursor.end - cursor.at):
        cursor.bad = True
        return 0
    return count


cdef inline const uint8_t *get_text(Cursor *cursor, bint flexible, uint32_t *length) noexcept nogil:
    """Return the start of a (nullable) string; NULL on an error. Set `length`, which is 0 for a null string."""
    cdef uint32_t size = get_compact(cursor) if flexible else <uint32_t>get_int(cursor, 2)
    cdef const uint8_t *text = cursor.at
    if flexible:
        size = size - 1 if size else 0
    elif size == 0xffff:
        size = 0
    length[0] = 0
    if cursor.bad or <uint64_t>(cursor.end - cursor.at) < size:
        cursor.bad = True
        return NULL
    cursor.at += size
    length[0] = size
    return text


cdef inline const uint8_t *get_bytes(Cursor *cursor, uint32_t size) noexcept nogil:
    """Return the start of the next `size` bytes; NULL on an error."""
    cdef const uint8_t *found = cursor.at
    if cursor.bad or <uint64_t>(cursor.end - cursor.at) < size:
        cursor.bad = True
        return NULL
    cursor.at += size
    return found


cdef inline const uint8_t *find_tag(Cursor *cursor, uint32_t wanted, uint32_t *length) noexcept nogil:
    """Skip the tagged fields at the end of a flexible struct, and return the one with the number `wanted`.

    Set `length`. Return NULL, with a `length` of 0, if the field is missing.
    """
    cdef uint32_t count = get_compact(cursor), number, size, _index
    cdef const uint8_t *found = NULL
    length[0] = 0
    for _index in range(count):
        number = get_compact(cursor)
        size = get_compact(cursor)
        if cursor.bad or <uint64_t>(cursor.end - cursor.at) < size:
            cursor.bad = True
            length[0] = 0
            return NULL
        if number == wanted:
            found, length[0] = cursor.at, size
        cursor.at += size
    return found


cdef inline void skip_tags(Cursor *cursor) noexcept nogil:
    """Skip the tagged fields at the end of a flexible struct."""
    cdef uint32_t _length
    find_tag(cursor, 0, &_length)


# ------------------------------------------------------------ requests
#
# Builds Produce requests without reading or copying the records.
#
# A request consists of one private buffer (frame, request header, topic names, batch headers) and an iovec that
# interleaves the buffer with the front-ends' chunks. So records go straight to the socket from the memory where send()
# has put them. The versions of Produce are 3 to 13; from FLEXIBLE_FROM on they have compact lengths and tagged fields.
# From TOPIC_IDS_FROM on a topic id takes the place of the topic name.


cdef inline int32_t next_correlation_id(Node *node) noexcept nogil:
    cdef int32_t correlation_id = node.produce.next_correlation_id
    node.produce.next_correlation_id = (correlation_id + 1) & 0x7fffffff
    return correlation_id


cdef inline uint8_t *put16(uint8_t *at, int32_t value) noexcept nogil:
    """Write two bytes, big-endian. Return the position after them."""
    at[0] = <uint8_t>(value >> 8)
    at[1] = <uint8_t>value
    return at + 2


cdef inline uint8_t *put32(uint8_t *at, uint32_t value) noexcept nogil:
    """Write four bytes, big-endian. Return the position after them."""
    at[0] = <uint8_t>(value >> 24)
    at[1] = <uint8_t>(value >> 16)
    at[2] = <uint8_t>(value >> 8)
    at[3] = <uint8_t>value
    return at + 4


cdef enum:
    TOPIC_ID_BYTES = 16
    IMPLICIT_FROM = 12              # such a request adds its partitions to the transaction (KIP-890)
    # frame 4, request header 8 + client id 2 + tags 1, transactional id's length 2, acks 2, timeout 4, topic count 5,
    # tags 1
    REQUEST_FIXED = 32
    # topic name length 3, partition count 5, tags 2; partition 4, records length 5, tags 1
    WIRE_FIXED = 24
    # limits of what is kept for later requests: how many, and the buffer size and iovecs of each
    SPARE_MAX = 16
    SPARE_BYTES_MAX = 65536
    SPARE_PIECES_MAX = 1024


cdef uint32_t produce_overhead(WireBatch *wire) noexcept nogil:
    """Return the bytes that the wire batch adds to a request besides its records."""
    return WIRE_FIXED + BATCH_HEADER_BYTES + max(wire.lane.topic.name_bytes, <uint32_t>TOPIC_ID_BYTES)


cdef Request *new_request(
    Core *core, uint32_t byte_capacity, uint32_t iov_capacity, uint32_t wire_capacity
) noexcept nogil:
    """Return an empty request with these capacities; NULL without memory."""
    cdef Request *request = core.produce.spare_requests
    cdef void *grown
    if request != NULL:
        core.produce.spare_requests = request.connection.next
        core.produce.spare_count -= 1
    else:
        request = <Request *>calloc(1, sizeof(Request))
        if request == NULL:
            return NULL
        core.produce.requests_made += 1
    request.connection.next = NULL
    if request.produce.bytes_capacity < byte_capacity:
        grown = realloc(request.produce.bytes, byte_capacity)
        if grown == NULL:
            recycle(core, request)
            return NULL
        request.produce.bytes = <uint8_t *>grown
        request.produce.bytes_capacity = byte_capacity
    if request.produce.iov_capacity < iov_capacity:
        grown = realloc(request.produce.iov, iov_capacity * sizeof(iovec))
        if grown == NULL:
            recycle(core, request)
            return NULL
        request.produce.iov = <iovec *>grown
        request.produce.iov_capacity = iov_capacity
    grown = realloc(request.produce.wires, (wire_capacity + 1) * sizeof(WireBatch *))
    if grown == NULL:
        recycle(core, request)
        return NULL
    request.produce.wires = <WireBatch **>grown
    clear_progress(request)
    request.drain.exclusive = False
    request.produce.bytes_length = 0
    request.produce.iov_count = 0
    request.produce.wire_count = 0
    request.produce.total = 0
    return request


cdef void set_length(Request *request, uint32_t length) noexcept nogil:
    """Let the request consist of the first `length` bytes of its buffer."""
    request.produce.bytes_length = length
    request.produce.iov[0].iov_base = request.produce.bytes
    request.produce.iov[0].iov_len = length
    request.produce.iov_count = 1
    request.produce.total = length


cdef Request *control_request(
    Core *core, const uint8_t *frame, uint32_t length, int32_t correlation_id
) noexcept nogil:
    """Return a request that Python has encoded, with its frame's length; NULL without memory."""
    cdef Request *request = new_request(core, length, 1, 0)
    if request == NULL:
        return NULL
    memcpy(request.produce.bytes, frame, length)
    request.kind = REQUEST_CONTROL
    request.acks = 1
    request.correlation_id = correlation_id
    set_length(request, length)
    return request


cdef void recycle(Core *core, Request *request) noexcept nogil:
    """Keep a request's memory for later requests. Free it if enough are kept, and its buffers if they are large."""
    if core.produce.spare_count == SPARE_MAX:
        free_request(core, request)
        return
    if request.produce.bytes_capacity > SPARE_BYTES_MAX:
        free(request.produce.bytes)
        request.produce.bytes = NULL
        request.produce.bytes_capacity = 0
    if request.produce.iov_capacity > SPARE_PIECES_MAX:
        free(request.produce.iov)
        request.produce.iov = NULL
        request.produce.iov_capacity = 0
    request.connection.next = core.produce.spare_requests
    core.produce.spare_requests = request
    core.produce.spare_count += 1


cdef void free_request(Core *core, Request *request) noexcept nogil:
    free(request.produce.bytes)
    free(request.produce.iov)
    free(request.produce.wires)
    free(request)
    core.produce.requests_made -= 1


cdef void recycle_all(Core *core, Request *request) noexcept nogil:
    """Recycle a list of requests."""
    cdef Request *following
    while request != NULL:
        following = request.connection.next
        recycle(core, request)
        request = following


cdef int _by_topic(const void *a, const void *b) noexcept nogil:
    cdef WireBatch *left = (<WireBatch **>a)[0]
    cdef WireBatch *right = (<WireBatch **>b)[0]
    if left.lane.topic.number != right.lane.topic.number:
        return 1 if left.lane.topic.number > right.lane.topic.number else -1
    return 1 if left.lane.number > right.lane.number else -1


cdef inline uint8_t *_put_count(uint8_t *at, uint32_t count, bint flexible) noexcept nogil:
    """Write the length of an array or of records. Return the position after it."""
    return put_uvarint(at, count + 1) if flexible else put32(at, count)


cdef uint32_t _pieces(Core *core, WireBatch *wire) noexcept nogil:
    """Return how many iovecs the wire batch's records need."""
    cdef uint32_t pieces = 0, slot
    cdef ClientBatch *batch
    if wire.wire.body != NULL or wire.wire.copy != NULL or wire.compression.packed != NULL:
        return 1
    batch = core.contributor_batches[wire.entry.contributors]
    slot = batch.slot
    while slot != CYP_NONE:
        pieces += 1
        slot = batch.front_end.chunk_next[slot]
    return pieces


cdef int16_t _version(Node *node, WireBatch **wires, uint32_t count) noexcept nogil:
    """Return the version of a Produce request: one with topic names if a topic's id is not known.

    A transaction whose partitions the coordinator adds needs a version that adds none.
    """
    cdef uint32_t index
    cdef Transaction *transaction = wires[0].lane.transaction
    if transaction != NULL and not current_copy(transaction).v2:
        return min(node.connections.produce_version, <int16_t>(IMPLICIT_FROM - 1))
    if node.connections.produce_version >= TOPIC_IDS_FROM:
        for index in range(count):
            if not wires[index].lane.topic.loop.has_id:
                return TOPIC_IDS_FROM - 1
    return node.connections.produce_version


cdef Request *produce_request(Core *core, Node *node, WireBatch **wires, uint32_t count) noexcept nogil:
    """Return one request with all the wire batches, and sort `wires`. Return NULL without memory.

    They are stamped, have one `acks`, and are all of one transaction or of none.
    """
    cdef Transaction *transaction = wires[0].lane.transaction
    cdef int16_t version = _version(node, wires, count)
    cdef bint flexible = version >= FLEXIBLE_FROM
    cdef uint32_t index, capacity = REQUEST_FIXED + core.client_id_bytes, pieces = 1, topics = 0, same
    cdef uint8_t *at
    cdef uint8_t *piece
    cdef Request *request
    if transaction != NULL:
        capacity += transaction.row.id_bytes
    qsort(wires, count, sizeof(WireBatch *), _by_topic)
    for index in range(count):
        capacity += produce_overhead(wires[index])
        pieces += 1 + _pieces(core, wires[index])
        if index == 0 or wires[index].lane.topic != wires[index - 1].lane.topic:
            topics += 1
    request = new_request(core, capacity, pieces, count)
    if request == NULL:
        return NULL
    request.kind = REQUEST_PRODUCE
    request.version = version
    request.acks = wires[0].acks
    request.correlation_id = next_correlation_id(node)
    piece = request.produce.bytes
    at = _put_produce_fields(core, request, flexible, transaction)
    at = _put_count(at, topics, flexible)
    for index in range(count):
        if index == 0 or wires[index].lane.topic != wires[index - 1].lane.topic:
            if index and flexible:
                at = put_uvarint(at, 0)  # tags of the topic before
            same = index + 1
            while same < count and wires[same].lane.topic == wires[index].lane.topic:
                same += 1
            at = _put_topic(at, wires[index], same - index, version)
        at = put32(at, <uint32_t>wires[index].lane.number)
        at = _put_count(at, wire_bytes(wires[index]) + BATCH_HEADER_BYTES, flexible)
        memcpy(at, wires[index].wire.header, BATCH_HEADER_BYTES)
        at += BATCH_HEADER_BYTES
        _add_piece(request, piece, <uint32_t>(at - piece))
        piece = at
        _add_records(core, request, wires[index])
        if flexible:
            at = put_uvarint(at, 0)  # tags of the partition
        # it may change before the response
        memcpy(wires[index].produce.topic_id, wires[index].lane.topic.loop.id, TOPIC_ID_BYTES)
        request.produce.wires[index] = wires[index]
    request.produce.wire_count = count
    if flexible:
        at = put_uvarint(at, 0)  # tags of the last topic
        at = put_uvarint(at, 0)  # tags of the request
    _add_piece(request, piece, <uint32_t>(at - piece))
    request.produce.bytes_length = <uint32_t>(at - request.produce.bytes)
    put32(request.produce.bytes, <uint32_t>(request.produce.total - 4))
    CRASHPOINT(b"build.framed")
    return request


cdef uint8_t *put_request_header(Core *core, Request *request, int16_t api, bint flexible) noexcept nogil:
    """Write the request header after the frame's length, which is filled in last. Return the position after it."""
    cdef uint8_t *at = request.produce.bytes + 4
    at = put16(at, api)
    at = put16(at, request.version)
    at = put32(at, <uint32_t>request.correlation_id)
    at = put16(at, core.client_id_bytes)
    memcpy(at, core.client_id, core.client_id_bytes)
    at += core.client_id_bytes
    return put_uvarint(at, 0) if flexible else at  # its tags


cdef uint8_t *_put_produce_fields(
    Core *core, Request *request, bint flexible, const Transaction *transaction
) noexcept nogil:
    cdef uint8_t *at = put_request_header(core, request, PRODUCE_KEY, flexible)
    cdef uint32_t id_bytes
    if transaction == NULL:
        at = put_uvarint(at, 0) if flexible else put16(at, -1)
    else:
        id_bytes = transaction.row.id_bytes
        at = put_uvarint(at, id_bytes + 1) if flexible else put16(at, <int32_t>id_bytes)
        memcpy(at, transaction.row.id, id_bytes)
        at += id_bytes
    at = put16(at, request.acks if request.acks else 1)  # never 0: the broker would close the connection on an error
    return put32(at, <uint32_t>(core.settings.request_timeout_ns // 1000000))


cdef uint8_t *_put_topic(uint8_t *at, WireBatch *wire, uint32_t partitions, int16_t version) noexcept nogil:
    cdef bint flexible = version >= FLEXIBLE_FROM
    cdef uint32_t name_bytes = wire.lane.topic.name_bytes
    if version >= TOPIC_IDS_FROM:
        memcpy(at, wire.lane.topic.loop.id, TOPIC_ID_BYTES)
        return _put_count(at + TOPIC_ID_BYTES, partitions, flexible)
    if flexible:
        at = put_uvarint(at, name_bytes + 1)
    else:
        at = put16(at, <int32_t>name_bytes)
    memcpy(at, wire.lane.topic.name, name_bytes)
    return _put_count(at + name_bytes, partitions, flexible)


cdef void _add_piece(Request *request, uint8_t *base, uint32_t length) noexcept nogil:
    if length == 0:
        return
    request.produce.iov[request.produce.iov_count].iov_base = base
    request.produce.iov[request.produce.iov_count].iov_len = length
    request.produce.iov_count += 1
    request.produce.total += length


cdef void _add_records(Core *core, Request *request, WireBatch *wire) noexcept nogil:
    cdef ClientBatch *batch
    cdef FrontEnd *front_end
    cdef uint32_t slot
    if wire.compression.packed != NULL:
        _add_piece(request, wire.compression.packed, wire.compression.packed_bytes)
        return
    if wire.wire.body != NULL or wire.wire.copy != NULL:
        _add_piece(request, wire.wire.body if wire.wire.body != NULL else wire.wire.copy, wire.entry.length)
        return
    batch = core.contributor_batches[wire.entry.contributors]
    front_end = batch.front_end
    slot = batch.slot
    while slot != CYP_NONE:
        _add_piece(request, front_end.chunks + <uint64_t>slot * CYP_UNIT_BYTES, front_end.chunk_bytes[slot])
        slot = front_end.chunk_next[slot]


# ------------------------------------------------------------ leader hints
#
# Collects the newer leaders that a broker names in a Produce response, and hands them to Python (KIP-951).
#
# From version 10 on, a broker that does not lead a partition says which broker leads it, and gives the addresses of
# these brokers. cluster/metadata.py decides what is taken from that. The payload of the event has, as 32-bit integers
# in the order of this machine, the number of hints, and then a row of the partition table, a leader and an epoch for
# each. The rest is the field NodeEndpoints as it was sent.


cdef enum:
    CURRENT_LEADER_BYTES = 8        # without the tagged fields at its end


cdef LeaderHint read_leader(Cursor *cursor) noexcept nogil:
    """Skip the tagged fields of a partition's result. Return the leader among them; its epoch is -1 if there is none.

    The row is not set.
    """
    cdef LeaderHint found
    cdef uint32_t length
    cdef Cursor field
    field.at = find_tag(cursor, CURRENT_LEADER_TAG, &length)
    field.end = field.at + length
    field.bad = False
    found.row = 0
    found.leader_id = -1
    found.leader_epoch = -1
    if length >= CURRENT_LEADER_BYTES:
        found.leader_id = <int32_t>get_int(&field, 4)
        found.leader_epoch = <int32_t>get_int(&field, 4)
    return found


cdef void add_leader(Core *core, Lane *lane, int16_t error, const LeaderHint *leader) noexcept nogil:
    """Note the leader that the broker names for the lane's partition, if its epoch is newer than the known one.

    Without memory nothing is noted: the metadata refresh that the error causes finds the leader too.
    """
    cdef LeaderHint *grown
    if error != ERROR_NOT_LEADER_OR_FOLLOWER and error != ERROR_FENCED_LEADER_EPOCH:
        return
    if leader.leader_id < 0 or leader.leader_epoch <= lane.topics.leader_epoch:
        return
    if core.produce.hint_count == core.produce.hint_room:
        grown = <LeaderHint *>realloc(core.produce.hints, 2 * (core.produce.hint_room + 8) * sizeof(LeaderHint))
        if grown == NULL:
            return
        core.produce.hints = grown
        core.produce.hint_room = 2 * (core.produce.hint_room + 8)
    core.produce.hints[core.produce.hint_count] = leader[0]
    core.produce.hints[core.produce.hint_count].row = lane.index
    core.produce.hint_count += 1


cdef void push_leaders(Core *core, Node *node, const uint8_t *endpoints, uint32_t size) noexcept nogil:
    """Hand the noted leaders to Python. `endpoints` is the field NodeEndpoints, or NULL with a `size` of 0."""
    cdef uint32_t hints = core.produce.hint_count * <uint32_t>sizeof(LeaderHint), before = core.outcome.event_count
    cdef uint8_t *payload
    cdef Event *event
    if core.produce.hint_count == 0:
        return
    payload = <uint8_t *>malloc(sizeof(uint32_t) + hints + size)
    if payload == NULL:
        return
    memcpy(payload, &core.produce.hint_count, sizeof(uint32_t))
    memcpy(payload + sizeof(uint32_t), core.produce.hints, hints)
    if size:
        memcpy(payload + sizeof(uint32_t) + hints, endpoints, size)
    push_event(core, EVENT_LEADERS, node.index, 0, 0)
    if core.outcome.event_count == before:
        free(payload)
        return
    event = &core.outcome.events[before]
    event.payload = payload
    event.payload_length = <uint32_t>sizeof(uint32_t) + hints + size


# ------------------------------------------------------------ response
#
# Reads Produce responses with bounds checks, finds the wire batch of each result, and handles the result.
#
# The versions are 3 to 13. What a broker's error means for a batch follows Kafka's Sender.completeBatch: retriable
# errors are retried in order, sequence errors lead to drain-then-bump, all other errors are definite.


cdef enum:
    CORRUPT_MAX = 3                 # attempts with CORRUPT_MESSAGE although the bytes are unchanged


cdef bint on_produce_response(
    Core *core, Node *node, Request *request, const uint8_t *body, uint32_t size
) noexcept nogil:
    """Handle the result of every wire batch of the request. Return False if the response is malformed.

    Results before the malformed part count.
    """
    cdef bint flexible = request.version >= FLEXIBLE_FROM
    cdef Cursor cursor
    cdef uint32_t topics, partitions, _topic, _partition, name_length, index, endpoint_bytes
    cdef const uint8_t *name
    cdef const uint8_t *endpoints
    cdef int32_t throttle_ms
    cursor.at = body
    cursor.end = body + size
    cursor.bad = False
    core.produce.hint_count = 0
    if flexible:
        skip_tags(&cursor)  # of the response header
    topics = get_count(&cursor, flexible)
    for _topic in range(topics):
        if request.version >= TOPIC_IDS_FROM:
            name, name_length = get_bytes(&cursor, TOPIC_ID_BYTES), TOPIC_ID_BYTES
        else:
            name = get_text(&cursor, flexible, &name_length)
        partitions = get_count(&cursor, flexible)
        for _partition in range(partitions):
            _parse_partition(core, request, &cursor, name, name_length)
            if cursor.bad:
                return False
        if flexible:
            skip_tags(&cursor)
    throttle_ms = <int32_t>get_int(&cursor, 4)
    if cursor.bad:
        return False
    count_throttle(core, throttle_ms)
    # in older versions the broker delays its response instead
    if request.version >= THROTTLES_FROM:
        throttle(node, core.loop.now, throttle_ms)
    if core.produce.hint_count:
        endpoints = find_tag(&cursor, NODE_ENDPOINTS_TAG, &endpoint_bytes)
        push_leaders(core, node, endpoints, endpoint_bytes)
    for index in range(request.produce.wire_count):
        if _is_awaited(request, request.produce.wires[index]):  # the response does not contain it
            back_off(core, request.produce.wires[index])
            retry(core, request.produce.wires[index], ERROR_NETWORK_EXCEPTION, True, NULL)
    return True


cdef inline bint _is_awaited(Request *request, WireBatch *wire) noexcept nogil:
    return wire.wire.state == WIRE_IN_FLIGHT and wire.wire.request == request


cdef void _parse_partition(
    Core *core, Request *request, Cursor *cursor, const uint8_t *name, uint32_t name_length
) noexcept nogil:
    cdef bint flexible = request.version >= FLEXIBLE_FROM
    cdef int32_t number = <int32_t>get_int(cursor, 4)
    cdef int16_t error = <int16_t>get_int(cursor, 2)
    cdef int64_t base_offset = <int64_t>get_int(cursor, 8)
    cdef int64_t append_time = <int64_t>get_int(cursor, 8)
    cdef uint32_t record_errors, record, _index, length, message_bytes = 0
    cdef const uint8_t *message = NULL
    cdef const uint8_t *text
    cdef WireBatch *wire = _find(request, number, name, name_length)
    cdef bint naming = wire != NULL and _is_definite(wire, error)
    cdef LeaderHint leader
    cdef Verdict verdict = Verdict(wire, NULL, 0, True, 0, core.named)
    if request.version >= LOG_START_FROM:
        get_int(cursor, 8)
    if request.version >= RECORD_ERRORS_FROM:
        record_errors = get_count(cursor, flexible)
        for _index in range(record_errors):
            record = <uint32_t>get_int(cursor, 4)
            text = get_text(cursor, flexible, &length)
            if naming and not cursor.bad:
                add_named(core, &verdict, record, text, length)
            if message_bytes == 0:
                message, message_bytes = text, length
            if flexible:
                skip_tags(cursor)
        text = get_text(cursor, flexible, &length)
        # If all records are refused, the first one's message says more than that of the whole batch. In a merged batch
        # the latter may be about records of other front-ends.
        if length and (
            message_bytes == 0 or wire != NULL and wire.wire.body == NULL and verdict.named_count != wire.entry.count
        ):
            message, message_bytes = text, length
    leader.leader_epoch = -1
    if request.version >= LEADER_HINTS_FROM:
        leader = read_leader(cursor)
    elif flexible:
        skip_tags(cursor)
    if cursor.bad:
        if naming:
            clear_flags(core, wire)
    elif wire != NULL:
        add_leader(core, wire.lane, error, &leader)
        verdict.text, verdict.text_bytes = message, message_bytes
        _handle_result(core, wire, error, base_offset, append_time, &verdict)


cdef WireBatch *_find(Request *request, int32_t number, const uint8_t *name, uint32_t name_length) noexcept nogil:
    """Return the wire batch that a part of the response is about; NULL if none waits for it.

    `name` is the name of the topic, or its id if the request has ids.
    """
    cdef uint32_t index
    cdef WireBatch *wire
    for index in range(request.produce.wire_count):
        wire = request.produce.wires[index]
        if _is_awaited(request, wire) and wire.lane.number == number and _is_topic(request, wire, name, name_length):
            return wire
    return NULL


cdef inline bint _is_topic(
    Request *request, WireBatch *wire, const uint8_t *name, uint32_t name_length
) noexcept nogil:
    if name == NULL:
        return False
    if request.version >= TOPIC_IDS_FROM:
        return memcmp(wire.produce.topic_id, name, TOPIC_ID_BYTES) == 0
    return wire.lane.topic.name_bytes == name_length and memcmp(wire.lane.topic.name, name, name_length) == 0


cdef void _handle_result(
    Core *core, WireBatch *wire, int16_t error, int64_t base_offset, int64_t append_time, const Verdict *verdict
) noexcept nogil:
    if error == 0:
        _on_acknowledged(core, wire, base_offset if wire.acks else -1, append_time if wire.acks else -1)
    elif error == ERROR_DUPLICATE_SEQUENCE_NUMBER:
        _on_acknowledged(core, wire, -1, -1)  # an earlier attempt appended it; the broker does not remember the offset
    elif error == ERROR_CORRUPT_MESSAGE:
        _handle_corrupt(core, wire, verdict)
    elif is_retriable(error):
        if is_stale_metadata(error):
            want_refresh(core)
        back_off(core, wire)
        retry(core, wire, error, wire.acks < 0 and is_appended_maybe(error), verdict)
    elif is_sequence_error(wire, error):
        if wire.entry.base_sequence == 0:
            back_off(core, wire)  # nothing can be missing before the first batch of an epoch
        handle_sequence_error(core, wire, error, verdict)
    else:
        fail(core, wire, error, verdict)


cdef void _on_acknowledged(Core *core, WireBatch *wire, int64_t base_offset, int64_t append_time) noexcept nogil:
    cdef Lane *lane = wire.lane
    if wire_bytes(wire) + BATCH_HEADER_BYTES > lane.topic.parts.accepted:
        set_accepted_size(wire)
    if wire.idempotent:
        if wire.idempotence.fragment or wire.idempotence.resent_ahead:
            exclude_followers(lane, wire)
        prove_predecessors(lane, wire, base_offset)
    acknowledge(core, wire, base_offset, append_time)
    acknowledge_proven(core, lane)


cdef void _handle_corrupt(Core *core, WireBatch *wire, const Verdict *verdict) noexcept nogil:
    """Handle CORRUPT_MESSAGE, which Kafka retries.

    Brokers before 2.4 also send it for a null key in a compacted topic.
    """
    if not verify(core, wire):
        reject_changed(core, wire, verdict)
    elif wire.refusal.corrupt > CORRUPT_MAX or wire.acks == 0:
        fail(core, wire, ERROR_CORRUPT_MESSAGE, verdict)
    else:
        back_off(core, wire)
        retry(core, wire, ERROR_CORRUPT_MESSAGE, False, verdict)


cdef inline bint _is_definite(WireBatch *wire, int16_t error) noexcept nogil:
    return (
        error != 0
        and error != ERROR_DUPLICATE_SEQUENCE_NUMBER
        and not is_retriable(error)
        and not is_sequence_error(wire, error)
    )
