"""Writes and reads the fields of a RecordBatch v2: variable-length integers, and the header of 61 bytes."""


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
