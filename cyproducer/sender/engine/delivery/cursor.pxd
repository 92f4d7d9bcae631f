"""Reads the fields of a response with bounds checks: big-endian integers, arrays, strings, tagged fields."""

from libc.stdint cimport uint8_t, uint32_t, uint64_t

from cyproducer.record.varint cimport get_uvarint


# A read position. A read beyond the end sets `bad`; it and every later read return 0.
ctypedef struct Cursor:
    const uint8_t *at
    const uint8_t *end
    bint bad


cdef inline uint64_t get_int(Cursor *cursor, int size) noexcept nogil:
    """Return a big-endian unsigned integer of `size` bytes."""
    cdef uint64_t value = 0
    cdef int index
    if cursor.bad or cursor.end - cursor.at < size:
        cursor.bad = True
        return 0
    for index in range(size):
        value = value << 8 | cursor.at[index]
    cursor.at += size
    return value


cdef inline uint32_t get_compact(Cursor *cursor) noexcept nogil:
    """Return an unsigned varint."""
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


cdef inline uint32_t get_count(Cursor *cursor, bint flexible) noexcept nogil:
    """Return the number of elements of an array; 0 for a null array. A number above the bytes left is an error."""
    cdef uint32_t count = get_compact(cursor) if flexible else <uint32_t>get_int(cursor, 4)
    if flexible:
        count = count - 1 if count else 0
    elif count == 0xffffffffU:
        count = 0
    if count > <uint64_t>(cursor.end - cursor.at):
        cursor.bad = True
        return 0
    return count


cdef inline const uint8_t *get_text(Cursor *cursor, bint flexible, uint32_t *length) noexcept nogil:
    """Return the start of a (nullable) string; NULL on an error. Set `length`, which is 0 for a null string."""
    cdef uint32_t size = get_compact(cursor) if flexible else <uint32_t>get_int(cursor, 2)
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


cdef inline const uint8_t *get_bytes(Cursor *cursor, uint32_t size) noexcept nogil:
    """Return the start of the next `size` bytes; NULL on an error."""
    cdef const uint8_t *found = cursor.at
    if cursor.bad or <uint64_t>(cursor.end - cursor.at) < size:
        cursor.bad = True
        return NULL
    cursor.at += size
    return found


cdef inline const uint8_t *take_tag(Cursor *cursor, uint32_t wanted, uint32_t *length) noexcept nogil:
    """Skip the tagged fields at the end of a flexible struct, and return the one with the number `wanted`.

    Set `length`. Return NULL, with a `length` of 0, if the field is missing.
    """
    cdef uint32_t count = get_compact(cursor), number, size, _index
    cdef const uint8_t *found = NULL
    length[0] = 0
    for _index in range(count):
        number = get_compact(cursor)
        size = get_compact(cursor)
        if cursor.bad or <uint64_t>(cursor.end - cursor.at) < size:
            cursor.bad = True
            length[0] = 0
            return NULL
        if number == wanted:
            found, length[0] = cursor.at, size
        cursor.at += size
    return found


cdef inline void skip_tags(Cursor *cursor) noexcept nogil:
    """Skip the tagged fields at the end of a flexible struct."""
    cdef uint32_t _length
    take_tag(cursor, 0, &_length)
