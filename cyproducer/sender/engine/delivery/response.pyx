"""Reads Produce responses with bounds checks, finds the wire batch of each result, and handles the result.

The versions are 3 to 12. What a broker's error means for a batch follows Kafka's Sender.completeBatch: retriable
errors are retried in order, sequence errors lead to drain-then-bump, all other errors are definite.
"""

from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint32_t
from libc.string cimport memcmp

from cyproducer.protocol.error_codes cimport (
    ERROR_CONCURRENT_TRANSACTIONS,
    ERROR_CORRUPT_MESSAGE,
    ERROR_DUPLICATE_SEQUENCE_NUMBER,
    ERROR_FENCED_LEADER_EPOCH,
    ERROR_INCONSISTENT_TOPIC_ID,
    ERROR_KAFKA_STORAGE_ERROR,
    ERROR_LEADER_NOT_AVAILABLE,
    ERROR_LISTENER_NOT_FOUND,
    ERROR_NETWORK_EXCEPTION,
    ERROR_NOT_ENOUGH_REPLICAS,
    ERROR_NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    ERROR_NOT_LEADER_OR_FOLLOWER,
    ERROR_REPLICA_NOT_AVAILABLE,
    ERROR_REQUEST_TIMED_OUT,
    ERROR_THROTTLING_QUOTA_EXCEEDED,
    ERROR_UNKNOWN_LEADER_EPOCH,
    ERROR_UNKNOWN_TOPIC_ID,
    ERROR_UNKNOWN_TOPIC_OR_PARTITION,
)
from cyproducer.sender.engine.delivery.backoff cimport back_off
from cyproducer.sender.engine.delivery.cursor cimport Cursor, get_count, get_int, get_text, skip_tags
from cyproducer.sender.engine.delivery.rejection cimport (
    fail,
    mark_named_contributor,
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
from cyproducer.sender.engine.state.model cimport WIRE_IN_FLIGHT, Core, Node, Lane, Request, WireBatch


cdef enum:
    FLEXIBLE_FROM = 9
    LOG_START_FROM = 5
    THROTTLES_FROM = 6              # in older versions the broker delays its response instead
    RECORD_ERRORS_FROM = 8
    CORRUPT_MAX = 3                 # attempts with CORRUPT_MESSAGE although the bytes are unchanged


cdef bint on_produce_response(
    Core *core, Node *node, Request *request, const uint8_t *body, uint32_t size
) noexcept nogil:
    """Handle the result of every wire batch of the request. Return False if the response is malformed.

    Results before the malformed part count.
    """
    cdef bint flexible = request.version >= FLEXIBLE_FROM
    cdef Cursor cursor
    cdef uint32_t topics, partitions, _topic, _partition, name_length, index
    cdef const uint8_t *name
    cdef int32_t throttle_ms
    cursor.at = body
    cursor.end = body + size
    cursor.bad = False
    if flexible:
        skip_tags(&cursor)  # of the response header
    topics = get_count(&cursor, flexible)
    for _topic in range(topics):
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
    if request.version >= THROTTLES_FROM:
        throttle(node, core.now, throttle_ms)
    for index in range(request.wire_count):
        if _is_open(request, request.wires[index]):  # the response does not contain it
            back_off(core, request.wires[index])
            retry(core, request.wires[index], ERROR_NETWORK_EXCEPTION, True)
    return True


cdef inline bint _is_open(Request *request, WireBatch *wire) noexcept nogil:
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
    cdef bint naming = wire != NULL and wire.body != NULL and _is_definite(wire, error)
    if request.version >= LOG_START_FROM:
        get_int(cursor, 8)
    if request.version >= RECORD_ERRORS_FROM:
        record_errors = get_count(cursor, flexible)
        for _index in range(record_errors):
            record = <uint32_t>get_int(cursor, 4)
            if naming and not cursor.bad:
                mark_named_contributor(core, wire, record)
            text = get_text(cursor, flexible, &length)
            if message_bytes == 0:
                message, message_bytes = text, length
            if flexible:
                skip_tags(cursor)
        text = get_text(cursor, flexible, &length)
        # The message of the whole batch repeats those of its records. In a merged batch it may be about records of
        # other front-ends.
        if length and (message_bytes == 0 or wire != NULL and wire.contributor_count == 1):
            message, message_bytes = text, length
    if flexible:
        skip_tags(cursor)
    if cursor.bad:
        if naming:
            unmark_all(core, wire)
    elif wire != NULL:
        core.judged, core.said, core.said_bytes = wire, message, message_bytes
        _handle_result(core, wire, error, base_offset, append_time)
        core.judged = NULL


cdef WireBatch *_find(Request *request, int32_t number, const uint8_t *name, uint32_t name_length) noexcept nogil:
    """Return the wire batch that a part of the response is about; NULL if none waits for it."""
    cdef uint32_t index
    cdef WireBatch *wire
    for index in range(request.wire_count):
        wire = request.wires[index]
        if (
            _is_open(request, wire)
            and wire.lane.number == number
            and wire.lane.topic.name_bytes == name_length
            and memcmp(wire.lane.topic.name, name, name_length) == 0
        ):
            return wire
    return NULL


cdef void _handle_result(
    Core *core, WireBatch *wire, int16_t error, int64_t base_offset, int64_t append_time
) noexcept nogil:
    if error == 0:
        _acknowledge(core, wire, base_offset if wire.acks else -1, append_time if wire.acks else -1)
    elif error == ERROR_DUPLICATE_SEQUENCE_NUMBER:
        _acknowledge(core, wire, -1, -1)  # an earlier attempt appended it; the broker does not remember the offset
    elif error == ERROR_CORRUPT_MESSAGE:
        _handle_corrupt(core, wire)
    elif _is_retriable(error):
        if _is_stale_metadata(error):
            core.refresh_wanted = True
        back_off(core, wire)
        retry(core, wire, error, _may_be_appended(wire, error))
    elif wire.idempotent and is_sequence_error(error):
        if wire.entry.base_sequence == 0:
            back_off(core, wire)  # nothing can be missing before the first batch of an epoch
        handle_sequence_error(core, wire, error)
    else:
        fail(core, wire, error)


cdef void _acknowledge(Core *core, WireBatch *wire, int64_t base_offset, int64_t append_time) noexcept nogil:
    cdef Lane *lane = wire.lane
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
        and not _is_retriable(error)
        and not (wire.idempotent and is_sequence_error(error))
    )


cdef inline bint _may_be_appended(WireBatch *wire, int16_t error) noexcept nogil:
    """Return whether the error can also concern records that the leader has appended and that wait for other replicas.

    See DelayedProduce.tryComplete and onComplete in Kafka: while the request waits, the partition leaves this broker or
    its disk, has too few replicas, or the time is up. With acks=1 a request does not wait for replicas.
    """
    return wire.acks < 0 and (
        error == ERROR_REQUEST_TIMED_OUT
        or error == ERROR_NOT_ENOUGH_REPLICAS_AFTER_APPEND
        or error == ERROR_NOT_LEADER_OR_FOLLOWER
        or error == ERROR_UNKNOWN_TOPIC_OR_PARTITION
        or error == ERROR_KAFKA_STORAGE_ERROR
        or error == ERROR_FENCED_LEADER_EPOCH
    )


cdef inline bint _is_stale_metadata(int16_t error) noexcept nogil:
    return (
        error == ERROR_UNKNOWN_TOPIC_OR_PARTITION
        or error == ERROR_LEADER_NOT_AVAILABLE
        or error == ERROR_NOT_LEADER_OR_FOLLOWER
        or error == ERROR_REPLICA_NOT_AVAILABLE
        or error == ERROR_KAFKA_STORAGE_ERROR
        or error == ERROR_LISTENER_NOT_FOUND
        or error == ERROR_FENCED_LEADER_EPOCH
        or error == ERROR_UNKNOWN_TOPIC_ID
        or error == ERROR_INCONSISTENT_TOPIC_ID
    )


cdef inline bint _is_retriable(int16_t error) noexcept nogil:
    return (
        _is_stale_metadata(error)
        or error == ERROR_CORRUPT_MESSAGE
        or error == ERROR_REQUEST_TIMED_OUT
        or error == ERROR_NETWORK_EXCEPTION
        or error == ERROR_NOT_ENOUGH_REPLICAS
        or error == ERROR_NOT_ENOUGH_REPLICAS_AFTER_APPEND
        or error == ERROR_CONCURRENT_TRANSACTIONS
        or error == ERROR_UNKNOWN_LEADER_EPOCH
        or error == ERROR_THROTTLING_QUOTA_EXCEEDED
    )
