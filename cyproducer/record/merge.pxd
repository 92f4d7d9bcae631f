"""Declares the functions that validate and re-encode the records of a batch that another process wrote."""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t


cdef enum:
    # Error codes of merge_records and scan_records. They are negative, so they differ from every byte count.
    RECORDS_BAD_VARINT = -1        # cut off, more bits than its type, or not the shortest form
    RECORDS_BAD_LENGTH = -2        # a length leads past the end, or the fields do not add up to it
    RECORDS_BAD_ATTRIBUTES = -3    # a record's attributes are not 0
    RECORDS_BAD_OFFSET = -4        # offset deltas are negative, not consecutive, or outside int32
    RECORDS_BAD_COUNT = -5         # the bytes are not exactly `count` >= 1 records
    RECORDS_BAD_TIMESTAMP = -6     # a shifted timestamp delta is outside int64
    RECORDS_NO_ROOM = -7           # the target is too small


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
) noexcept nogil
cdef const uint8_t *skip_records(const uint8_t *at, const uint8_t *end, uint32_t count) noexcept nogil
cdef int scan_records(
    const uint8_t *source, size_t n, int32_t count, int64_t *max_timestamp_delta
) noexcept nogil
cdef const char* records_error(int64_t code) noexcept nogil
