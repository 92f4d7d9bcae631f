"""Validates and re-encodes the records of a batch that another process wrote.

The source is shared memory that its owner may change at any instant. The control bytes of a record's front are read
once. Its tail is copied first and then checked in the copy, so exactly the checked bytes are sent.
"""


cdef extern from "cyproducer/record/check.h" nogil:
    bint check_records "cyp_check_records"(
        const uint8_t *at, size_t n, uint32_t count, uint32_t first, uint32_t *largest
    ) noexcept


cdef enum:
    # Error codes of merge_records and scan_records. They are negative, so they differ from every byte count.
    RECORDS_BAD_VARINT = -1        # cut off, more bits than its type, or not the shortest form
    RECORDS_BAD_LENGTH = -2        # a length leads past the end, or the fields do not add up to it
    RECORDS_BAD_ATTRIBUTES = -3    # a record's attributes are not 0
    RECORDS_BAD_OFFSET = -4        # offset deltas are negative, not consecutive, or outside int32
    RECORDS_BAD_COUNT = -5         # the bytes are not exactly `count` >= 1 records
    RECORDS_BAD_TIMESTAMP = -6     # a shifted timestamp delta is outside int64
    RECORDS_NO_ROOM = -7           # the target is too small


cdef extern from * nogil:
    """
    static inline int cyp_add_overflows(int64_t a, int64_t b, int64_t *sum) {
        return __builtin_add_overflow(a, b, sum);
    }
    """
    bint cyp_add_overflows(int64_t a, int64_t b, int64_t *sum)


cdef struct Front:
    const uint8_t *tail         # first byte behind the offset delta: the key's length
    const uint8_t *end          # first byte behind the record
    int64_t timestamp_delta
    int32_t offset_delta


cdef inline int read_front(const uint8_t *at, const uint8_t *end, Front *front) noexcept nogil:
    """Read a record's length, attributes and deltas, each byte once. Return 0 or a RECORDS_ code."""
    cdef int32_t length = 0
    at = get_varint(at, end, &length)
    if at == NULL:
        return RECORDS_BAD_VARINT
    if length < 1 or length > end - at:
        return RECORDS_BAD_LENGTH
    front.end = at + length
    if read_once(at) != 0:
        return RECORDS_BAD_ATTRIBUTES
    at = get_varlong(at + 1, front.end, &front.timestamp_delta)
    if at == NULL:
        return RECORDS_BAD_VARINT
    front.tail = get_varint(at, front.end, &front.offset_delta)
    return RECORDS_BAD_VARINT if front.tail == NULL else 0


cdef inline const uint8_t* skip_field(
    const uint8_t *at, const uint8_t *end, int32_t shortest, int *error
) noexcept nogil:
    """Skip a length and its bytes. Set `error` and return NULL if they are invalid.

    `shortest` is -1 where null is allowed, else 0.
    """
    cdef int32_t length = 0
    at = get_varint(at, end, &length)
    if at == NULL:
        error[0] = RECORDS_BAD_VARINT
        return NULL
    if length < shortest or length > end - at:
        error[0] = RECORDS_BAD_LENGTH
        return NULL
    return at + length if length > 0 else at


cdef int check_headers(const uint8_t *at, const uint8_t *end, int32_t count) noexcept nogil:
    """Check that `count` headers fill [at, end) exactly. Return 0 or a RECORDS_ code."""
    cdef int error = 0
    if count < 0:
        return RECORDS_BAD_LENGTH
    while count > 0:
        at = skip_field(at, end, 0, &error)
        if at == NULL:
            return error
        at = skip_field(at, end, -1, &error)
        if at == NULL:
            return error
        count -= 1
    return 0 if at == end else RECORDS_BAD_LENGTH


cdef inline int check_tail(const uint8_t *at, const uint8_t *end) noexcept nogil:
    """Check that key, value and headers fill [at, end) exactly. Return 0 or a RECORDS_ code."""
    cdef int32_t headers = 0
    cdef int error = 0
    at = skip_field(at, end, -1, &error)
    if at == NULL:
        return error
    at = skip_field(at, end, -1, &error)
    if at == NULL:
        return error
    at = get_varint(at, end, &headers)
    if at == NULL:
        return RECORDS_BAD_VARINT
    if headers == 0 and at == end:
        return 0
    return check_headers(at, end, headers)


cdef int64_t merge_records(
    const uint8_t *source,
    size_t n,
    int32_t count,
    int64_t timestamp_shift,
    int32_t first_offset_delta,
    uint8_t *target,
    size_t capacity,
    int64_t *max_timestamp_delta,
    uint32_t *largest,
) noexcept nogil:
    """Re-encode `count` records from `source` (`n` bytes) into `target` (`capacity` private bytes).

    Record i gets its timestamp delta + `timestamp_shift` (source base - target base, ms) and the offset delta
    `first_offset_delta` + i. The source's own offset deltas must be consecutive; in a later chunk of a chain they do
    not start at 0. Return the number of bytes written, set `max_timestamp_delta` to the largest shifted delta and
    raise `largest` to the bytes of the largest record. On failure return a negative RECORDS_ code; then the target's
    content is undefined (but nothing is written beyond `capacity`) and `max_timestamp_delta` is unchanged.
    """
    cdef const uint8_t *end = source + n
    cdef uint8_t *at = target
    cdef Front front
    cdef Py_ssize_t tail, body
    cdef int64_t delta = 0
    cdef int64_t latest = INT64_MIN
    cdef int32_t i
    cdef int64_t source_offset = 0
    cdef int error
    if count < 1:
        return RECORDS_BAD_COUNT
    if first_offset_delta < 0 or first_offset_delta > INT32_MAX - count + 1:
        return RECORDS_BAD_OFFSET
    for i in range(count):
        if source == end:
            return RECORDS_BAD_COUNT
        error = read_front(source, end, &front)
        if error != 0:
            return error
        if i == 0:
            source_offset = front.offset_delta
        if front.offset_delta != source_offset + i or front.offset_delta < 0:
            return RECORDS_BAD_OFFSET
        if cyp_add_overflows(front.timestamp_delta, timestamp_shift, &delta):
            return RECORDS_BAD_TIMESTAMP
        tail = front.end - front.tail
        body = 1 + size_of_varlong(delta) + size_of_varint(first_offset_delta + i) + tail
        if body > INT32_MAX:
            return RECORDS_BAD_LENGTH
        if <size_t>(size_of_varint(<int32_t>body) + body) > capacity - <size_t>(at - target):
            return RECORDS_NO_ROOM
        largest[0] = max(largest[0], <uint32_t>(size_of_varint(<int32_t>body) + body))
        at = put_varint(at, <int32_t>body)
        at[0] = 0
        at = put_varlong(at + 1, delta)
        at = put_varint(at, first_offset_delta + i)
        memcpy(at, front.tail, tail)
        error = check_tail(at, at + tail)
        if error != 0:
            return error
        at += tail
        source = front.end
        if delta > latest:
            latest = delta
    if source != end:
        return RECORDS_BAD_COUNT
    max_timestamp_delta[0] = latest
    return at - target


cdef const uint8_t *skip_records(const uint8_t *at, const uint8_t *end, uint32_t count) noexcept nogil:
    """Return the position after `count` records, by their lengths alone; NULL if they do not fit before `end`."""
    cdef int32_t length = 0
    while count:
        at = get_varint(at, end, &length)
        if at == NULL or length < 1 or length > end - at:
            return NULL
        at += length
        count -= 1
    return at


cdef int scan_records(
    const uint8_t *source, size_t n, int32_t count, int64_t *max_timestamp_delta
) noexcept nogil:
    """Check `count` records in `n` bytes as `merge_records` does, without writing anything.

    Return 0 and set `max_timestamp_delta`, or return a negative RECORDS_ code. The owner may change the memory
    afterwards: the result is valid only for the bytes that were read.
    """
    cdef const uint8_t *end = source + n
    cdef Front front
    cdef int64_t latest = INT64_MIN
    cdef int64_t source_offset = 0
    cdef int32_t i
    cdef int error
    if count < 1:
        return RECORDS_BAD_COUNT
    for i in range(count):
        if source == end:
            return RECORDS_BAD_COUNT
        error = read_front(source, end, &front)
        if error != 0:
            return error
        if i == 0:
            source_offset = front.offset_delta
        if front.offset_delta != source_offset + i or front.offset_delta < 0:
            return RECORDS_BAD_OFFSET
        error = check_tail(front.tail, front.end)
        if error != 0:
            return error
        source = front.end
        if front.timestamp_delta > latest:
            latest = front.timestamp_delta
    if source != end:
        return RECORDS_BAD_COUNT
    max_timestamp_delta[0] = latest
    return 0


cdef const char* records_error(int64_t code) noexcept nogil:
    """Return the meaning of a RECORDS_ code, for a log line."""
    if code == RECORDS_BAD_VARINT:
        return b"a varint is cut off, too large or not in its shortest form"
    if code == RECORDS_BAD_LENGTH:
        return b"a length leads past the end, or the fields do not add up to it"
    if code == RECORDS_BAD_ATTRIBUTES:
        return b"a record's attributes are not 0"
    if code == RECORDS_BAD_OFFSET:
        return b"offset deltas are not consecutive"
    if code == RECORDS_BAD_COUNT:
        return b"the number of records is not the one announced"
    if code == RECORDS_BAD_TIMESTAMP:
        return b"a timestamp is out of range"
    if code == RECORDS_NO_ROOM:
        return b"the records do not fit"
    return b"unknown"
