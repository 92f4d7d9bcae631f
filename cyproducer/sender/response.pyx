"""Produce responses: read with bounds, matched to their wires, judged.

Versions 3 to 12. What a broker's error means for a batch follows Kafka's Sender.completeBatch: retriable
errors are retried in order, sequence errors lead to drain-then-bump, everything else is definite.
"""

from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcmp

from cyproducer.record.varint cimport get_uvarint
from cyproducer.sender.entries cimport complete, demand_epoch, give_up, retry
from cyproducer.sender.epoch cimport dispel_doubt
from cyproducer.sender.heirs cimport end_heir, step_back
from cyproducer.sender.model cimport (
    AHEAD_REFUSED,
    AHEAD_SENT,
    WIRE_IN_FLIGHT,
    Core,
    Node,
    Partition,
    Request,
    Wire,
)
from cyproducer.sender.poison cimport accuse, acquit, fail, reject_changed, verify


cdef enum:
    FLEXIBLE_FROM = 9
    LOG_START_FROM = 5
    RECORD_ERRORS_FROM = 8
    CORRUPT_MAX = 3                 # answers CORRUPT_MESSAGE to bytes that are what they were
    ERROR_CORRUPT_MESSAGE = 2
    ERROR_UNKNOWN_TOPIC_OR_PARTITION = 3
    ERROR_LEADER_NOT_AVAILABLE = 5
    ERROR_NOT_LEADER = 6
    ERROR_REQUEST_TIMED_OUT = 7
    ERROR_REPLICA_NOT_AVAILABLE = 9
    ERROR_NETWORK = 13
    ERROR_NOT_ENOUGH_REPLICAS = 19
    ERROR_NOT_ENOUGH_REPLICAS_AFTER_APPEND = 20
    ERROR_OUT_OF_ORDER_SEQUENCE = 45
    ERROR_DUPLICATE_SEQUENCE = 46
    ERROR_INVALID_PRODUCER_EPOCH = 47
    ERROR_CONCURRENT_TRANSACTIONS = 51
    ERROR_KAFKA_STORAGE = 56
    ERROR_UNKNOWN_PRODUCER_ID = 59
    ERROR_LISTENER_NOT_FOUND = 72
    ERROR_FENCED_LEADER_EPOCH = 74
    ERROR_UNKNOWN_LEADER_EPOCH = 75
    ERROR_THROTTLING_QUOTA = 89
    ERROR_UNKNOWN_TOPIC_ID = 100
    ERROR_INCONSISTENT_TOPIC_ID = 103


# A cursor that remembers that it ran over the end; every read after that gives 0.
ctypedef struct Cursor:
    const uint8_t *at
    const uint8_t *end
    bint bad


cdef inline uint64_t _get(Cursor *cursor, int size) noexcept nogil:
    cdef uint64_t value = 0
    cdef int index
    if cursor.bad or cursor.end - cursor.at < size:
        cursor.bad = True
        return 0
    for index in range(size):
        value = value << 8 | cursor.at[index]
    cursor.at += size
    return value


cdef inline uint32_t _get_compact(Cursor *cursor) noexcept nogil:
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


cdef inline uint32_t _get_count(Cursor *cursor, bint flexible) noexcept nogil:
    """Elements of an array; a null array has none. Never more than bytes are left."""
    cdef uint32_t count = _get_compact(cursor) if flexible else <uint32_t>_get(cursor, 4)
    if flexible:
        count = count - 1 if count else 0
    elif count == 0xffffffffU:
        count = 0
    if count > <uint64_t>(cursor.end - cursor.at):
        cursor.bad = True
        return 0
    return count


cdef const uint8_t *_get_text(Cursor *cursor, bint flexible, uint32_t *length) noexcept nogil:
    """A (nullable) string; NULL has length 0."""
    cdef uint32_t size = _get_compact(cursor) if flexible else <uint32_t>_get(cursor, 2)
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


cdef void _skip_tags(Cursor *cursor) noexcept nogil:
    cdef uint32_t count = _get_compact(cursor), size, _index
    for _index in range(count):
        _get_compact(cursor)
        size = _get_compact(cursor)
        if cursor.bad or <uint64_t>(cursor.end - cursor.at) < size:
            cursor.bad = True
            return
        cursor.at += size


cdef bint on_produce_response(
    Core *core, Node *node, Request *request, const uint8_t *body, uint32_t size
) noexcept nogil:
    """Judges every wire of the request; False if the response is malformed (what it did say counts)."""
    cdef bint flexible = request.version >= FLEXIBLE_FROM
    cdef Cursor cursor
    cdef uint32_t topics, partitions, _topic, _partition, name_length, index
    cdef const uint8_t *name
    cdef int32_t throttle
    cursor.at = body
    cursor.end = body + size
    cursor.bad = False
    if flexible:
        _skip_tags(&cursor)  # of the response header
    topics = _get_count(&cursor, flexible)
    for _topic in range(topics):
        name = _get_text(&cursor, flexible, &name_length)
        partitions = _get_count(&cursor, flexible)
        for _partition in range(partitions):
            _take_partition(core, request, &cursor, name, name_length)
            if cursor.bad:
                return False
        if flexible:
            _skip_tags(&cursor)
    throttle = <int32_t>_get(&cursor, 4)
    if cursor.bad:
        return False
    if throttle > 0:
        node.muted_until_ns = core.now + <uint64_t>throttle * 1000000
    for index in range(request.wire_count):
        if _is_open(request, request.wires[index]):  # the broker left it out
            _back_off(core, request.wires[index])
            retry(core, request.wires[index], ERROR_NETWORK, True)
    return True


cdef inline bint _is_open(Request *request, Wire *wire) noexcept nogil:
    return wire.state == WIRE_IN_FLIGHT and wire.request == request


cdef void _take_partition(
    Core *core, Request *request, Cursor *cursor, const uint8_t *name, uint32_t name_length
) noexcept nogil:
    cdef bint flexible = request.version >= FLEXIBLE_FROM
    cdef int32_t number = <int32_t>_get(cursor, 4)
    cdef int16_t error = <int16_t>_get(cursor, 2)
    cdef int64_t base_offset = <int64_t>_get(cursor, 8)
    cdef int64_t append_time = <int64_t>_get(cursor, 8)
    cdef uint32_t record_errors, record, _index, length
    cdef Wire *wire = _find(request, number, name, name_length)
    cdef bint accusing = wire != NULL and wire.body != NULL and _is_definite(wire, error)
    if request.version >= LOG_START_FROM:
        _get(cursor, 8)
    if request.version >= RECORD_ERRORS_FROM:
        record_errors = _get_count(cursor, flexible)
        for _index in range(record_errors):
            record = <uint32_t>_get(cursor, 4)
            if accusing and not cursor.bad:
                accuse(core, wire, record)
            _get_text(cursor, flexible, &length)
            if flexible:
                _skip_tags(cursor)
        _get_text(cursor, flexible, &length)
    if flexible:
        _skip_tags(cursor)
    if cursor.bad:
        if accusing:
            acquit(core, wire)
    elif wire != NULL:
        _judge(core, wire, error, base_offset, append_time)


cdef Wire *_find(Request *request, int32_t number, const uint8_t *name, uint32_t name_length) noexcept nogil:
    """The wire that a part of the response is about; NULL: none that waits for it."""
    cdef uint32_t index
    cdef Wire *wire
    for index in range(request.wire_count):
        wire = request.wires[index]
        if (
            _is_open(request, wire)
            and wire.partition.number == number
            and wire.partition.topic.name_bytes == name_length
            and memcmp(wire.partition.topic.name, name, name_length) == 0
        ):
            return wire
    return NULL


cdef void _back_off(Core *core, Wire *wire) noexcept nogil:
    """retry.backoff.ms, doubled with every attempt up to retry.backoff.max.ms, +-20 %."""
    cdef uint64_t wait = core.retry_backoff_ns
    cdef uint32_t attempt = 1
    while attempt < wire.entry.attempts and wait < core.retry_backoff_max_ns:
        wait *= 2
        attempt += 1
    if wait > core.retry_backoff_max_ns:
        wait = core.retry_backoff_max_ns
    core.random ^= core.random << 13
    core.random ^= core.random >> 7
    core.random ^= core.random << 17
    wire.partition.retry_at_ns = core.now + wait - wait // 5 + core.random % (wait // 5 * 2 + 1)


cdef void _judge(Core *core, Wire *wire, int16_t error, int64_t base_offset, int64_t append_time) noexcept nogil:
    if error == 0:
        complete(core, wire, base_offset if wire.acks else -1, append_time if wire.acks else -1)
    elif error == ERROR_DUPLICATE_SEQUENCE:
        complete(core, wire, -1, -1)  # appended by an earlier attempt; the broker forgot where
    elif error == ERROR_CORRUPT_MESSAGE:
        _judge_corrupt(core, wire)
    elif _is_retriable(error):
        if _is_stale_metadata(error):
            core.refresh_wanted = True
        _back_off(core, wire)
        retry(core, wire, error, _may_be_appended(wire, error))
    elif wire.idempotent and _is_sequence_error(error):
        _judge_sequence(core, wire, error)
    else:
        fail(core, wire, error)


cdef void _judge_corrupt(Core *core, Wire *wire) noexcept nogil:
    """Kafka retries these; brokers before 2.4 say it of a null key in a compacted topic too."""
    if not verify(core, wire):
        reject_changed(core, wire)
    elif wire.corrupt > CORRUPT_MAX or wire.acks == 0:
        fail(core, wire, ERROR_CORRUPT_MESSAGE)
    else:
        _back_off(core, wire)
        retry(core, wire, ERROR_CORRUPT_MESSAGE, False)


cdef void _judge_sequence(Core *core, Wire *wire, int16_t error) noexcept nogil:
    """The broker refuses the sequence: it did not append this attempt, nor an earlier one of this batch.

    Of an earlier one it says nothing where that was a larger batch, or where the broker looks no further than
    the epoch.
    """
    cdef Partition *partition = wire.partition
    if wire.heir:
        if error != ERROR_INVALID_PRODUCER_EPOCH and step_back(partition, wire):
            retry(core, wire, error, False)
        else:
            end_heir(core, wire, error, 0)
        return
    if wire.unsure and error == ERROR_INVALID_PRODUCER_EPOCH:
        give_up(core, wire, error)
        return
    wire.unsure = False
    if wire.ahead == AHEAD_SENT and not dispel_doubt(partition):
        wire.ahead = AHEAD_REFUSED
    if wire.entry.base_sequence == 0:
        _back_off(core, wire)  # nothing can be missing before the first one of an epoch
    if wire != partition.wire_head and not partition.bumping:
        retry(core, wire, error, False)  # an earlier batch is to be sent again first
        return
    demand_epoch(partition)
    retry(core, wire, error, False)


cdef inline bint _is_definite(Wire *wire, int16_t error) noexcept nogil:
    return (
        error != 0
        and error != ERROR_DUPLICATE_SEQUENCE
        and not _is_retriable(error)
        and not (wire.idempotent and _is_sequence_error(error))
    )


cdef inline bint _may_be_appended(Wire *wire, int16_t error) noexcept nogil:
    """Is it also said of what waits, appended by the leader, for the other replicas?

    DelayedProduce.tryComplete and onComplete in Kafka: the partition has left this broker or its disk meanwhile, has
    too few replicas, or time is up. Nobody waits with acks=1.
    """
    return wire.acks < 0 and (
        error == ERROR_REQUEST_TIMED_OUT
        or error == ERROR_NOT_ENOUGH_REPLICAS_AFTER_APPEND
        or error == ERROR_NOT_LEADER
        or error == ERROR_UNKNOWN_TOPIC_OR_PARTITION
        or error == ERROR_KAFKA_STORAGE
        or error == ERROR_FENCED_LEADER_EPOCH
    )


cdef inline bint _is_sequence_error(int16_t error) noexcept nogil:
    return (
        error == ERROR_OUT_OF_ORDER_SEQUENCE
        or error == ERROR_UNKNOWN_PRODUCER_ID
        or error == ERROR_INVALID_PRODUCER_EPOCH
    )


cdef inline bint _is_stale_metadata(int16_t error) noexcept nogil:
    return (
        error == ERROR_UNKNOWN_TOPIC_OR_PARTITION
        or error == ERROR_LEADER_NOT_AVAILABLE
        or error == ERROR_NOT_LEADER
        or error == ERROR_REPLICA_NOT_AVAILABLE
        or error == ERROR_KAFKA_STORAGE
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
        or error == ERROR_NETWORK
        or error == ERROR_NOT_ENOUGH_REPLICAS
        or error == ERROR_NOT_ENOUGH_REPLICAS_AFTER_APPEND
        or error == ERROR_CONCURRENT_TRANSACTIONS
        or error == ERROR_UNKNOWN_LEADER_EPOCH
        or error == ERROR_THROTTLING_QUOTA
    )
