"""Reads Produce responses with bounds checks, finds the wire batch of each result, and handles the result.

The versions are 3 to 13. What a broker's error means for a batch follows Kafka's Sender.completeBatch: retriable
errors are retried in order, sequence errors lead to drain-then-bump, all other errors are definite.
"""

from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint32_t
from libc.string cimport memcmp

from cyproducer.protocol.error_codes cimport (
    ERROR_CORRUPT_MESSAGE,
    ERROR_DUPLICATE_SEQUENCE_NUMBER,
    ERROR_NETWORK_EXCEPTION,
)
from cyproducer.sender.engine.delivery.backoff cimport back_off
from cyproducer.sender.engine.delivery.cursor cimport (
    Cursor, get_bytes, get_count, get_int, get_text, skip_tags, take_tag,
)
from cyproducer.sender.engine.delivery.error_flags cimport is_appended_maybe, is_retriable, is_stale_metadata
from cyproducer.sender.engine.delivery.leader_hints cimport note_leader, read_leader, report_leaders
from cyproducer.sender.engine.delivery.parts cimport note_accepted
from cyproducer.sender.engine.delivery.rejection cimport (
    fail,
    note_named,
    reject_changed,
    unmark_all,
    verify,
)
from cyproducer.sender.engine.delivery.sequences cimport (
    complete_proven,
    exclude_followers,
    handle_sequence_error,
    is_sequence_error,
    prove_predecessors,
)
from cyproducer.sender.engine.delivery.throttle cimport throttle
from cyproducer.sender.engine.delivery.wire_batches cimport complete, retry
from cyproducer.sender.engine.state.metrics cimport count_throttle
from cyproducer.sender.engine.state.events cimport LeaderHint
from cyproducer.sender.engine.state.model cimport WIRE_IN_FLIGHT, Core, Node, Lane, Request, WireBatch


cdef enum:
    FLEXIBLE_FROM = 9
    LOG_START_FROM = 5
    THROTTLES_FROM = 6              # in older versions the broker delays its response instead
    RECORD_ERRORS_FROM = 8
    LEADER_HINTS_FROM = 10
    NODE_ENDPOINTS_TAG = 0
    TOPIC_IDS_FROM = 13
    TOPIC_ID_BYTES = 16
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
    core.hint_count = 0
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
            _take_partition(core, request, &cursor, name, name_length)
            if cursor.bad:
                return False
        if flexible:
            skip_tags(&cursor)
    throttle_ms = <int32_t>get_int(&cursor, 4)
    if cursor.bad:
        return False
    count_throttle(core, throttle_ms)
    if request.version >= THROTTLES_FROM:
        throttle(node, core.now, throttle_ms)
    if core.hint_count:
        endpoints = take_tag(&cursor, NODE_ENDPOINTS_TAG, &endpoint_bytes)
        report_leaders(core, node, endpoints, endpoint_bytes)
    for index in range(request.wire_count):
        if _is_awaited(request, request.wires[index]):  # the response does not contain it
            back_off(core, request.wires[index])
            retry(core, request.wires[index], ERROR_NETWORK_EXCEPTION, True)
    return True


cdef inline bint _is_awaited(Request *request, WireBatch *wire) noexcept nogil:
    return wire.state == WIRE_IN_FLIGHT and wire.request == request


cdef void _take_partition(
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
    core.named_count = 0
    if request.version >= LOG_START_FROM:
        get_int(cursor, 8)
    if request.version >= RECORD_ERRORS_FROM:
        record_errors = get_count(cursor, flexible)
        for _index in range(record_errors):
            record = <uint32_t>get_int(cursor, 4)
            text = get_text(cursor, flexible, &length)
            if naming and not cursor.bad:
                note_named(core, wire, record, text, length)
            if message_bytes == 0:
                message, message_bytes = text, length
            if flexible:
                skip_tags(cursor)
        text = get_text(cursor, flexible, &length)
        # If all records are refused, the first one's message says more than that of the whole batch. In a merged batch
        # the latter may be about records of other front-ends.
        if length and (
            message_bytes == 0 or wire != NULL and wire.body == NULL and core.named_count != wire.entry.count
        ):
            message, message_bytes = text, length
    leader.leader_epoch = -1
    if request.version >= LEADER_HINTS_FROM:
        leader = read_leader(cursor)
    elif flexible:
        skip_tags(cursor)
    if cursor.bad:
        if naming:
            unmark_all(core, wire)
    elif wire != NULL:
        note_leader(core, wire.lane, error, &leader)
        core.judged, core.said, core.said_bytes, core.said_by_broker = wire, message, message_bytes, True
        _handle_result(core, wire, error, base_offset, append_time)
        core.judged, core.said_bytes, core.said_by_broker = NULL, 0, False
        core.named_count = 0


cdef WireBatch *_find(Request *request, int32_t number, const uint8_t *name, uint32_t name_length) noexcept nogil:
    """Return the wire batch that a part of the response is about; NULL if none waits for it.

    `name` is the name of the topic, or its id if the request has ids.
    """
    cdef uint32_t index
    cdef WireBatch *wire
    for index in range(request.wire_count):
        wire = request.wires[index]
        if _is_awaited(request, wire) and wire.lane.number == number and _is_topic(request, wire, name, name_length):
            return wire
    return NULL


cdef inline bint _is_topic(
    Request *request, WireBatch *wire, const uint8_t *name, uint32_t name_length
) noexcept nogil:
    if name == NULL:
        return False
    if request.version >= TOPIC_IDS_FROM:
        return memcmp(wire.topic_id, name, TOPIC_ID_BYTES) == 0
    return wire.lane.topic.name_bytes == name_length and memcmp(wire.lane.topic.name, name, name_length) == 0


cdef void _handle_result(
    Core *core, WireBatch *wire, int16_t error, int64_t base_offset, int64_t append_time
) noexcept nogil:
    if error == 0:
        _acknowledge(core, wire, base_offset if wire.acks else -1, append_time if wire.acks else -1)
    elif error == ERROR_DUPLICATE_SEQUENCE_NUMBER:
        _acknowledge(core, wire, -1, -1)  # an earlier attempt appended it; the broker does not remember the offset
    elif error == ERROR_CORRUPT_MESSAGE:
        _handle_corrupt(core, wire)
    elif is_retriable(error):
        if is_stale_metadata(error):
            core.refresh_wanted = True
        back_off(core, wire)
        retry(core, wire, error, wire.acks < 0 and is_appended_maybe(error))
    elif is_sequence_error(wire, error):
        if wire.entry.base_sequence == 0:
            back_off(core, wire)  # nothing can be missing before the first batch of an epoch
        handle_sequence_error(core, wire, error)
    else:
        fail(core, wire, error)


cdef void _acknowledge(Core *core, WireBatch *wire, int64_t base_offset, int64_t append_time) noexcept nogil:
    cdef Lane *lane = wire.lane
    note_accepted(wire)
    if wire.idempotent:
        if wire.fragment or wire.ahead:
            exclude_followers(lane, wire)
        prove_predecessors(lane, wire, base_offset)
    complete(core, wire, base_offset, append_time)
    complete_proven(core, lane)


cdef void _handle_corrupt(Core *core, WireBatch *wire) noexcept nogil:
    """Handle CORRUPT_MESSAGE, which Kafka retries.

    Brokers before 2.4 also send it for a null key in a compacted topic.
    """
    if not verify(core, wire):
        reject_changed(core, wire)
    elif wire.corrupt > CORRUPT_MAX or wire.acks == 0:
        fail(core, wire, ERROR_CORRUPT_MESSAGE)
    else:
        back_off(core, wire)
        retry(core, wire, ERROR_CORRUPT_MESSAGE, False)


cdef inline bint _is_definite(WireBatch *wire, int16_t error) noexcept nogil:
    return (
        error != 0
        and error != ERROR_DUPLICATE_SEQUENCE_NUMBER
        and not is_retriable(error)
        and not is_sequence_error(wire, error)
    )
