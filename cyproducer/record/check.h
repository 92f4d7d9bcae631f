/* Checks whether bytes are exactly `count` records of a RecordBatch v2.
 *
 * Another process owns the bytes and may change them at any instant: each load is volatile, a result depends on one
 * reading of each byte, and no length is used beyond `end`. Kafka's consumers rely on these checks, and brokers do not
 * make them, above all that of the offset deltas. The checks: shortest varints, attributes 0, offset deltas that rise
 * by one, lengths that add up. */
#ifndef CYPRODUCER_RECORD_CHECK_H
#define CYPRODUCER_RECORD_CHECK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define CYP_BYTE(place) (*(const volatile uint8_t *)(place))

/* Read an unsigned LEB128 of at most `bits` in its shortest form. Return the byte behind it; NULL if
 * it is invalid. */
static inline const uint8_t *cyp_check_long_varint(const uint8_t *at, const uint8_t *end, int bits, uint64_t *value) {
    uint64_t found = 0;
    for (int shift = 0; shift < bits && at < end; shift += 7) {
        uint64_t byte = CYP_BYTE(at++);
        if (bits - shift < 7 && (byte & 0x7f) >> (bits - shift)) return NULL;
        found |= (byte & 0x7f) << shift;
        if (byte < 0x80) {
            *value = found;
            return byte == 0 && shift > 0 ? NULL : at;
        }
    }
    return NULL;
}

static inline const uint8_t *cyp_check_varint(const uint8_t *at, const uint8_t *end, int bits, uint64_t *value) {
    if (end - at < 2) return cyp_check_long_varint(at, end, bits, value);
    uint64_t first = CYP_BYTE(at);
    if (first < 0x80) {
        *value = first;
        return at + 1;
    }
    uint64_t second = CYP_BYTE(at + 1);
    if (second > 0 && second < 0x80) {
        *value = (first & 0x7f) | second << 7;
        return at + 2;
    }
    /* The bytes are read again and may have changed: only the second reading gives the result. */
    return cyp_check_long_varint(at, end, bits, value);
}

/* Skip a length and that many bytes; `null`: length -1 is allowed. Return NULL if it is invalid or too long. */
static inline const uint8_t *cyp_check_field(const uint8_t *at, const uint8_t *end, bool null) {
    uint64_t raw;
    at = cyp_check_varint(at, end, 32, &raw);
    if (at == NULL) return NULL;
    if (raw & 1) return null && raw == 1 ? at : NULL; /* zig-zag: odd is negative, 1 is -1 */
    return raw >> 1 > (uint64_t)(end - at) ? NULL : at + (raw >> 1);
}

/* Return whether headers fill [at, end) exactly. */
static inline bool cyp_check_headers(const uint8_t *at, const uint8_t *end) {
    uint64_t count;
    at = cyp_check_varint(at, end, 32, &count);
    if (at == NULL || count & 1) return false;
    for (count >>= 1; count > 0; count--) {
        at = cyp_check_field(at, end, false);
        if (at != NULL) at = cyp_check_field(at, end, true);
        if (at == NULL) return false;
    }
    return at == end;
}

/* Check one record at `at` with this offset delta. Return the byte behind it, or NULL. */
static inline const uint8_t *cyp_check_record(const uint8_t *at, const uint8_t *end, uint64_t delta) {
    uint64_t raw;
    at = cyp_check_varint(at, end, 32, &raw);
    if (at == NULL || raw & 1 || raw >> 1 > (uint64_t)(end - at) || raw >> 1 < 1) return NULL;
    const uint8_t *const behind = at + (raw >> 1);
    if (CYP_BYTE(at) != 0) return NULL; /* attributes */
    at = cyp_check_varint(at + 1, behind, 64, &raw);
    if (at != NULL) at = cyp_check_varint(at, behind, 32, &raw);
    if (at == NULL || raw != delta << 1) return NULL;
    at = cyp_check_field(at, behind, true);
    if (at != NULL) at = cyp_check_field(at, behind, true);
    return at != NULL && cyp_check_headers(at, behind) ? behind : NULL;
}

/* Return eight bytes in one load. The first byte is the lowest: cyproducer supports little-endian machines only. */
static inline uint64_t cyp_check_load(const uint8_t *at) {
    typedef struct { uint64_t value; } __attribute__((packed, may_alias)) unaligned;
    return ((const volatile unaligned *)at)->value;
}

/* Read a varint of one or two bytes from the low end of `bits`. Return its length, or 0 for any other varint. */
static inline unsigned cyp_check_short(uint64_t bits, uint64_t *value) {
    if (!(bits & 0x80)) {
        *value = bits & 0x7f;
        return 1;
    }
    *value = (bits & 0x7f) | (bits >> 1 & 0x3f80);
    return bits & 0x8000 || !(bits & 0x7f00) ? 0 : 2;
}

/* Check a common record, without headers and with varints of one or two bytes, with two or three loads of eight bytes.
 * Return the byte behind it; NULL if it is another kind of record or no record. 24 bytes from `at` must be readable. */
static inline const uint8_t *cyp_check_usual(const uint8_t *at, const uint8_t *end, uint64_t delta) {
    uint64_t bits = cyp_check_load(at), length, value;
    unsigned width = cyp_check_short(bits, &length), more;
    if (width == 0 || length & 1) return NULL;
    bits >>= 8 * width;
    at += width;
    const uint8_t *const behind = at + (length >> 1);
    if (behind > end || bits & 0xff) return NULL; /* attributes */
    more = cyp_check_short(bits >> 8, &value);    /* timestamp delta */
    if (more == 0) return NULL;
    bits >>= 8 + 8 * more;
    at += 1 + more;
    more = cyp_check_short(bits, &value);
    if (more == 0 || value != delta << 1) return NULL;
    at += more;
    bits = cyp_check_load(at);
    if ((bits & 0xff) == 1) { /* no key */
        bits >>= 8;
        at += 1;
    } else {
        more = cyp_check_short(bits, &value);
        at += more + (value >> 1);
        if (more == 0 || value & 1 || at >= behind || end - at < 8) return NULL;
        bits = cyp_check_load(at);
    }
    more = cyp_check_short(bits, &value);
    at += more + (value >> 1);
    return more == 0 || value & 1 || at + 1 != behind || CYP_BYTE(at) != 0 ? NULL : behind;
}

/* About as many bytes as are checked while a cache line arrives from another core. */
#define CYP_CHECK_AHEAD_BYTES 2048

/* Return whether the `n` bytes are exactly `count` records whose offset deltas are `first`, `first` + 1 and so on. Raise
 * `largest` to the bytes of the largest one. */
static inline bool cyp_check_records(const uint8_t *at, size_t n, uint32_t count, uint32_t first, uint32_t *largest) {
    const uint8_t *const end = at + n;
    const uint8_t *behind;
    size_t most = *largest;
    for (uint64_t delta = first; delta < (uint64_t)first + count; delta++) {
        /* Another core has written the records, and the start of each is known only after the one before is read. */
        __builtin_prefetch(at + CYP_CHECK_AHEAD_BYTES);
        __builtin_prefetch(at + CYP_CHECK_AHEAD_BYTES + 64);
        behind = end - at >= 24 ? cyp_check_usual(at, end, delta) : NULL;
        if (behind == NULL) behind = cyp_check_record(at, end, delta);
        if (behind == NULL) return false;
        most = (size_t)(behind - at) > most ? (size_t)(behind - at) : most;
        at = behind;
    }
    *largest = (uint32_t)most;
    return at == end;
}

#endif
