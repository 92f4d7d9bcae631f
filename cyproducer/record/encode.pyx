"""Encodes one record of a RecordBatch v2 (magic 2; the record body has no version of its own).

A record is: length varint (of everything after it) | attributes int8 = 0 | timestamp delta varlong |
offset delta varint | key | value | header count varint | {key, value}*, where a key or value is a varint
length (-1: null, no bytes) and its bytes.

No function here checks the free space or Kafka's int32 limits: the caller has reserved `record_size_bound` or the
exact size, and has refused records above `max_request_size`. A negative length means null; the pointer is then not
read.
"""


cdef enum:
    # length 5, attributes 1, timestamp delta 10, offset delta 5, key and value length 5 each, header count 5
    RECORD_OVERHEAD_BOUND = 36
    # key and value length of one header
    HEADER_OVERHEAD_BOUND = 10


cdef extern from *:
    """
    /* Fetch a cache line that will be written, from the core that has it. A hint; harmless if the CPU ignores it. */
    static inline void cyp_prefetch_write(const void *at) {
    #ifdef __x86_64__
        __asm__ volatile("prefetchw %0" : : "m"(*(const char *)at));
    #else
        __builtin_prefetch(at, 1);
    #endif
    }
    """
    void prefetch_write "cyp_prefetch_write"(const void *at) noexcept nogil


cdef enum:
    AHEAD_BYTES = 384       # several records of 100 bytes: a line arrives from another core while they are encoded


cdef inline void fetch_ahead(const uint8_t *at, const uint8_t *end, Py_ssize_t size) noexcept nogil:
    """Prefetch the lines behind a record of `size` bytes at `at`: later records will be written there, up to `end`.

    The sender's core has read the former content of this memory. Without this each line is fetched from that core, or
    from memory, when it is written, and the commit waits for each of them.
    """
    if size < AHEAD_BYTES and end - at > AHEAD_BYTES + 128:
        prefetch_write(at + AHEAD_BYTES)
        prefetch_write(at + AHEAD_BYTES + 64)


cdef inline uint8_t* put_bytes(uint8_t *at, const uint8_t *data, Py_ssize_t n) noexcept nogil:
    """Copy `n` >= 0 bytes. Return the byte behind them.

    Up to 16 bytes are copied without a call, as two loads that may overlap: most keys are that short.
    """
    if n > 16:
        memcpy(at, data, n)
    elif n >= 8:
        memcpy(at, data, 8)
        memcpy(at + n - 8, data + n - 8, 8)
    elif n >= 4:
        memcpy(at, data, 4)
        memcpy(at + n - 4, data + n - 4, 4)
    elif n > 0:
        at[0] = data[0]
        at[n >> 1] = data[n >> 1]
        at[n - 1] = data[n - 1]
    return at + n


cdef inline uint8_t* put_nullable(uint8_t *at, const uint8_t *data, Py_ssize_t n) noexcept nogil:
    """Write a varint length and the bytes; a negative `n` writes Kafka's null."""
    if n < 0:
        at[0] = 1
        return at + 1
    return put_bytes(put_varint(at, <int32_t>n), data, n)


cdef inline Py_ssize_t nullable_size(Py_ssize_t n) noexcept nogil:
    """Return the number of bytes that `put_nullable` writes."""
    return 1 if n < 0 else size_of_varint(<int32_t>n) + n


cdef inline Py_ssize_t headers_size(const HeaderView *headers, int header_count) noexcept nogil:
    """Return the exact number of bytes of the header count and all headers."""
    cdef Py_ssize_t size = size_of_varint(header_count)
    cdef int i
    for i in range(header_count):
        size += nullable_size(headers[i].key_length) + nullable_size(headers[i].value_length)
    return size


cdef inline Py_ssize_t record_body_size(
    int64_t timestamp_delta,
    int32_t offset_delta,
    Py_ssize_t key_length,
    Py_ssize_t value_length,
    const HeaderView *headers,
    int header_count,
) noexcept nogil:
    """Return the value of the record's length field: the exact number of bytes after it.

    `headers` is not read if there are none.
    """
    return (
        1
        + size_of_varlong(timestamp_delta)
        + size_of_varint(offset_delta)
        + nullable_size(key_length)
        + nullable_size(value_length)
        + (1 if header_count == 0 else headers_size(headers, header_count))
    )


cdef inline Py_ssize_t view_body_size(
    int64_t timestamp_delta, int32_t offset_delta, const RecordView *record
) noexcept nogil:
    """Return record_body_size() of a record."""
    return record_body_size(
        timestamp_delta, offset_delta, record.key_length, record.value_length, record.headers, record.header_count
    )


cdef inline Py_ssize_t record_size(
    int64_t timestamp_delta, int32_t offset_delta, const RecordView *record
) noexcept nogil:
    """Return the exact number of bytes that `put_record` writes: the body and its length field."""
    cdef Py_ssize_t body = view_body_size(timestamp_delta, offset_delta, record)
    return size_of_varint(<int32_t>body) + body


cdef inline Py_ssize_t kafka_record_bound(
    Py_ssize_t key_length, Py_ssize_t value_length, const HeaderView *headers, int header_count
) noexcept nogil:
    """Return DefaultRecord.recordSizeUpperBound: the size with the largest length, timestamp and offset fields.

    Kafka's Java producer compares this plus the batch header with max.request.size.
    """
    # 5 bytes of length, 10 of timestamp delta and 5 of offset delta, instead of 0, 1 and 1
    return record_body_size(0, 0, key_length, value_length, headers, header_count) + 18


cdef inline Py_ssize_t record_size_bound(const RecordView *record, Py_ssize_t header_bytes) noexcept nogil:
    """Return an upper bound of the bytes that `put_record` writes, for all deltas, without reading the headers.

    `header_bytes` is the sum of the key and value lengths of all headers.
    """
    return (
        RECORD_OVERHEAD_BOUND
        + (record.key_length if record.key_length > 0 else 0)
        + (record.value_length if record.value_length > 0 else 0)
        + header_bytes
        + <Py_ssize_t>HEADER_OVERHEAD_BOUND * record.header_count
    )


cdef inline uint8_t* put_record_front(
    uint8_t *at,
    Py_ssize_t body_size,
    int64_t timestamp_delta,
    int32_t offset_delta,
    const uint8_t *key,
    Py_ssize_t key_length,
    const uint8_t *value,
    Py_ssize_t value_length,
) noexcept nogil:
    """Write everything before the header count, for a body of `body_size` bytes."""
    at = put_varint(at, <int32_t>body_size)
    at[0] = 0
    at = put_varlong(at + 1, timestamp_delta)
    at = put_varint(at, offset_delta)
    at = put_nullable(at, key, key_length)
    return put_nullable(at, value, value_length)


cdef inline uint8_t* put_record_plain(
    uint8_t *at,
    int64_t timestamp_delta,
    int32_t offset_delta,
    const uint8_t *key,
    Py_ssize_t key_length,
    const uint8_t *value,
    Py_ssize_t value_length,
) noexcept nogil:
    """Write a record without headers. Return the byte behind it. Bulk loops use this form."""
    at = put_record_front(
        at,
        record_body_size(timestamp_delta, offset_delta, key_length, value_length, NULL, 0),
        timestamp_delta, offset_delta, key, key_length, value, value_length,
    )
    at[0] = 0
    return at + 1


cdef inline Py_ssize_t put_equal_records(
    uint8_t **at,
    const uint8_t *end,
    int64_t timestamp_delta,
    int32_t offset_delta,
    const uint8_t *value,
    Py_ssize_t stride,
    Py_ssize_t value_length,
    Py_ssize_t count,
) noexcept nogil:
    """Write up to `count` records without key and headers: as many as fit before `end`.

    They have one timestamp; their values are `stride` apart and have one length >= 0. Return how many were written;
    `at` is then the byte behind them.
    """
    cdef uint8_t front[32]   # 3 to 16 bytes: length, attributes, timestamp delta: equal for records of equal size
    cdef uint8_t middle[32]  # 2 to 6 bytes: null key and value length
    cdef uint8_t *to = at[0]
    cdef uint8_t *to_front
    cdef Py_ssize_t written = 0, step, body, front_length, middle_length, _i
    middle_length = put_varint(put_nullable(middle, NULL, -1), <int32_t>value_length) - middle
    while written < count:
        body = record_body_size(timestamp_delta, offset_delta, -1, value_length, NULL, 0)
        # zig-zag doubles the index, so its varint becomes longer at 64, 8192, ...
        step = (<Py_ssize_t>64 << 7 * (size_of_varint(offset_delta) - 1)) - offset_delta
        step = min(step, count - written, (end - to) // (size_of_varint(<int32_t>body) + body))
        if step <= 0:
            break
        to_front = put_varint(front, <int32_t>body)
        to_front[0] = 0
        front_length = put_varlong(to_front + 1, timestamp_delta) - front
        for _i in range(step):
            fetch_ahead(to, end, body)
            to = put_varint(put_bytes(to, front, front_length), offset_delta)
            to = put_bytes(put_bytes(to, middle, middle_length), value, value_length)
            to[0] = 0
            to += 1
            offset_delta += 1
            value += stride
        written += step
    at[0] = to
    return written


cdef inline uint8_t* put_record(
    uint8_t *at, int64_t timestamp_delta, int32_t offset_delta, const RecordView *record
) noexcept nogil:
    """Write a record. Return the byte behind it. Exactly `record_size` bytes are written."""
    cdef int i
    if record.header_count == 0:
        return put_record_plain(
            at, timestamp_delta, offset_delta, record.key, record.key_length, record.value, record.value_length
        )
    at = put_record_front(
        at,
        view_body_size(timestamp_delta, offset_delta, record),
        timestamp_delta, offset_delta, record.key, record.key_length, record.value, record.value_length,
    )
    at = put_varint(at, record.header_count)
    for i in range(record.header_count):
        at = put_nullable(at, record.headers[i].key, record.headers[i].key_length)
        at = put_nullable(at, record.headers[i].value, record.headers[i].value_length)
    return at
