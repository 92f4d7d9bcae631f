"""Writes and reads the zig-zag LEB128 integers of Kafka records, and computes their exact sizes.

The writers do not check the free space: the caller has reserved it (5 bytes for 32 bits, 10 for 64). The readers check
bounds, accept only the shortest encoding of a value, and read each byte once, so the result is consistent even if
another process changes the memory meanwhile.
"""


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
