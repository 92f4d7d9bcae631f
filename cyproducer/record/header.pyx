"""Writes the 61-byte header of a RecordBatch v2, big-endian, as a producer fills it."""


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
