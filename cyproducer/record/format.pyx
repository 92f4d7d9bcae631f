"""Writes and reads RecordBatch v2: variable-length integers, the header of 61 bytes, and records."""


# ------------------------------------------------------------ variable-length integers
#
# Writes and reads the zig-zag LEB128 integers of Kafka records, and computes their exact sizes.
#
# The writers do not check the free space: the caller has reserved it (5 bytes for 32 bits, 10 for 64). The readers
# check bounds, accept only the shortest encoding of a value, and read each byte once, so the result is consistent even
# if another process changes the memory meanwhile.


cdef extern from * nogil:
    int __builtin_clz(unsigned int)
    int __builtin_clzll(unsigned long long)


cdef enum:
    VARINT_MAX_BYTES = 5
    VARLONG_MAX_BYTES = 10


cdef inline uint32_t zigzag32(int32_t v) noexcept nogil:
    return (<uint32_t>v << 1) ^ <uint32_t>(v >> 31)


cdef inline uint64_t zigzag64(int64_t v) noexcept nogil:
    return (<uint64_t>v << 1) ^ <uint64_t>(v >> 63)


cdef inline int size_of_uvarint(uint32_t v) noexcept nogil:
    """Return the number of bytes that `put_uvarint` writes: 1 to 5. (9b + 64) >> 6 is ceil(b / 7) for 1 to 64 bits b.

    Small sizes are tested first, because counting leading zeros takes several cycles on some machines.
    """
    if v < 0x80:
        return 1
    if v < 0x4000:
        return 2
    return ((32 - __builtin_clz(v | 1)) * 9 + 64) >> 6


cdef inline int size_of_uvarlong(uint64_t v) noexcept nogil:
    """Return the number of bytes that `put_uvarlong` writes: 1 to 10."""
    if v < 0x80:
        return 1
    if v < 0x4000:
        return 2
    return ((64 - __builtin_clzll(v | 1)) * 9 + 64) >> 6


cdef inline int size_of_varint(int32_t v) noexcept nogil:
    """Return the number of bytes that `put_varint` writes: 1 to 5."""
    return size_of_uvarint(zigzag32(v))


cdef inline int size_of_varlong(int64_t v) noexcept nogil:
    """Return the number of bytes that `put_varlong` writes: 1 to 10."""
    return size_of_uvarlong(zigzag64(v))


cdef inline uint8_t* put_uvarlong(uint8_t *at, uint64_t v) noexcept nogil:
    """Write the unsigned LEB128 of `v`. Return the byte behind it."""
    while v >= 0x80:
        at[0] = <uint8_t>(v | 0x80)
        v >>= 7
        at += 1
    at[0] = <uint8_t>v
    return at + 1


cdef inline uint8_t* put_uvarint(uint8_t *at, uint32_t v) noexcept nogil:
    """Write the unsigned LEB128 of `v`. Return the byte behind it. Write one and two bytes without a loop."""
    if v < 0x80:
        at[0] = <uint8_t>v
        return at + 1
    at[0] = <uint8_t>(v | 0x80)
    if v < 0x4000:
        at[1] = <uint8_t>(v >> 7)
        return at + 2
    return put_uvarlong(at + 1, v >> 7)


cdef inline uint8_t* put_varint(uint8_t *at, int32_t v) noexcept nogil:
    """Write the zig-zag LEB128 of `v`. Return the byte behind it."""
    return put_uvarint(at, zigzag32(v))


cdef inline uint8_t* put_varlong(uint8_t *at, int64_t v) noexcept nogil:
    """Write the zig-zag LEB128 of `v`. Return the byte behind it."""
    return put_uvarlong(at, zigzag64(v))


cdef inline uint32_t read_once(const uint8_t *at) noexcept nogil:
    """Load one byte once; volatile, so that the compiler cannot load it again after a check."""
    return (<const volatile uint8_t *>at)[0]


cdef inline const uint8_t* get_long_tail(
    const uint8_t *at, const uint8_t *end, uint64_t value, int bits, uint64_t *out
) noexcept nogil:
    """Read the rest of a LEB128 of at most `bits` after its first two bytes; `value` holds their 14 bits."""
    cdef uint64_t byte
    cdef int shift = 14
    while shift < bits and at < end:
        byte = read_once(at)
        at += 1
        if byte < 0x80:
            if byte == 0 or (bits - shift < 7 and byte >> (bits - shift) != 0):
                return NULL
            out[0] = value | (byte << shift)
            return at
        value |= (byte & 0x7F) << shift
        shift += 7
    return NULL


cdef inline const uint8_t* get_bits(
    const uint8_t *at, const uint8_t *end, int bits, uint64_t *out
) noexcept nogil:
    """Read an unsigned LEB128 of at most `bits`; one and two bytes without a loop."""
    cdef uint64_t first
    cdef uint64_t second
    if at >= end:
        return NULL
    first = read_once(at)
    if first < 0x80:
        out[0] = first
        return at + 1
    if end - at < 2:
        return NULL
    second = read_once(at + 1)
    if second == 0:
        return NULL
    first = (first & 0x7F) | ((second & 0x7F) << 7)
    if second < 0x80:
        out[0] = first
        return at + 2
    return get_long_tail(at + 2, end, first, bits, out)


cdef inline const uint8_t* get_uvarint(const uint8_t *at, const uint8_t *end, uint32_t *out) noexcept nogil:
    """Read an unsigned LEB128 of 32 bits from [at, end).

    Return the byte behind it, or NULL (then `out` is unchanged) if it leads past `end`, has more than 32 bits or is
    not in its shortest form.
    """
    cdef uint64_t raw = 0
    at = get_bits(at, end, 32, &raw)
    if at != NULL:
        out[0] = <uint32_t>raw
    return at


cdef inline const uint8_t* get_uvarlong(const uint8_t *at, const uint8_t *end, uint64_t *out) noexcept nogil:
    """Do the same as `get_uvarint`, for 64 bits."""
    return get_bits(at, end, 64, out)


cdef inline const uint8_t* get_varint(const uint8_t *at, const uint8_t *end, int32_t *out) noexcept nogil:
    """Read a zig-zag LEB128 of 32 bits from [at, end). Return as `get_uvarint` does."""
    cdef uint32_t raw = 0
    at = get_uvarint(at, end, &raw)
    if at != NULL:
        out[0] = <int32_t>((raw >> 1) ^ (0 - (raw & 1)))
    return at


cdef inline const uint8_t* get_varlong(const uint8_t *at, const uint8_t *end, int64_t *out) noexcept nogil:
    """Read a zig-zag LEB128 of 64 bits from [at, end). Return as `get_uvarint` does."""
    cdef uint64_t raw = 0
    at = get_uvarlong(at, end, &raw)
    if at != NULL:
        out[0] = <int64_t>((raw >> 1) ^ (0 - (raw & 1)))
    return at


# ------------------------------------------------------------ header
#
# Writes the header of a record batch, big-endian, as a producer fills it.


cdef extern from * nogil:
    """
    #if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
    #error "cyproducer.record supports little-endian machines only"
    #endif
    """
    uint16_t __builtin_bswap16(uint16_t)
    uint32_t __builtin_bswap32(uint32_t)
    uint64_t __builtin_bswap64(uint64_t)


cdef enum:
    BATCH_HEADER_BYTES = 61
    # batchLength counts the bytes after itself: 49 bytes of the header, and the records
    BATCH_LENGTH_BASE = 49
    BATCH_MAGIC = 2

    BASE_OFFSET_AT = 0
    BATCH_LENGTH_AT = 8
    PARTITION_LEADER_EPOCH_AT = 12
    MAGIC_AT = 16
    CRC_AT = 17
    # the CRC covers [CRC_START, end of the records)
    CRC_START = 21
    ATTRIBUTES_AT = 21
    LAST_OFFSET_DELTA_AT = 23
    BASE_TIMESTAMP_AT = 27
    MAX_TIMESTAMP_AT = 35
    PRODUCER_ID_AT = 43
    PRODUCER_EPOCH_AT = 51
    BASE_SEQUENCE_AT = 53
    RECORD_COUNT_AT = 57

    ATTRIBUTE_CODEC_MASK = 0x07
    ATTRIBUTE_LOG_APPEND_TIME = 0x08
    ATTRIBUTE_TRANSACTIONAL = 0x10
    ATTRIBUTE_CONTROL = 0x20


cdef inline void put_be16(uint8_t *at, int16_t v) noexcept nogil:
    cdef uint16_t raw = __builtin_bswap16(<uint16_t>v)
    memcpy(at, &raw, 2)


cdef inline void put_be32(uint8_t *at, int32_t v) noexcept nogil:
    cdef uint32_t raw = __builtin_bswap32(<uint32_t>v)
    memcpy(at, &raw, 4)


cdef inline void put_be64(uint8_t *at, int64_t v) noexcept nogil:
    cdef uint64_t raw = __builtin_bswap64(<uint64_t>v)
    memcpy(at, &raw, 8)


cdef inline void put_batch_header(
    uint8_t *at61,
    int32_t records_bytes,
    int16_t attributes,
    int32_t count,
    int64_t base_timestamp,
    int64_t max_timestamp,
    int64_t producer_id,
    int16_t producer_epoch,
    int32_t base_sequence,
) noexcept nogil:
    """Fill all 61 bytes; the CRC is 0 until `put_crc`.

    `records_bytes` is the size of the records in the request (compressed if `attributes` names a codec). Timestamps are
    in ms. Without idempotence, producer id, epoch and sequence are -1.
    """
    put_be64(at61 + BASE_OFFSET_AT, 0)
    put_be32(at61 + BATCH_LENGTH_AT, BATCH_LENGTH_BASE + records_bytes)
    put_be32(at61 + PARTITION_LEADER_EPOCH_AT, -1)
    at61[MAGIC_AT] = BATCH_MAGIC
    put_be32(at61 + CRC_AT, 0)
    put_be16(at61 + ATTRIBUTES_AT, attributes)
    put_be32(at61 + LAST_OFFSET_DELTA_AT, count - 1)
    put_be64(at61 + BASE_TIMESTAMP_AT, base_timestamp)
    put_be64(at61 + MAX_TIMESTAMP_AT, max_timestamp)
    put_be64(at61 + PRODUCER_ID_AT, producer_id)
    put_be16(at61 + PRODUCER_EPOCH_AT, producer_epoch)
    put_be32(at61 + BASE_SEQUENCE_AT, base_sequence)
    put_be32(at61 + RECORD_COUNT_AT, count)


cdef inline void put_crc(uint8_t *at61, uint32_t crc) noexcept nogil:
    """Store the CRC-32C of [CRC_START, end of the records)."""
    put_be32(at61 + CRC_AT, <int32_t>crc)


# ------------------------------------------------------------ records
#
# Encodes one record of a RecordBatch v2 (magic 2; the record body has no version of its own).
#
# A record is: length varint (of everything after it) | attributes int8 = 0 | timestamp delta varlong |
# offset delta varint | key | value | header count varint | {key, value}*, where a key or value is a varint
# length (-1: null, no bytes) and its bytes.
#
# No function here checks the free space or Kafka's int32 limits: the caller has reserved `record_size_bound` or the
# exact size, and has refused records above `max_request_size`. A negative length means null; the pointer is then not
# read.


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
