"""Copies the numbers that are followed (offsets, views, validity bits) out of foreign memory, and checks the copies.

Other threads can change foreign memory at any time: NumPy writes without the GIL. So a number that was checked there
need not be the number that is read later. Nothing behind these functions reads such a number from foreign memory.
Copies are made and checked in blocks that fit the fastest cache, so that the check costs less than the copy.
"""

from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.string cimport memcpy


cdef extern from *:
    """
    /* The compiler may not read again what was copied before. */
    static inline void cyp_forget_memory(void) {
        __asm__ volatile("" ::: "memory");
    }
    """
    void forget_memory "cyp_forget_memory"() noexcept nogil


ctypedef fused offset_t:
    int32_t
    int64_t

cdef enum:
    OFFSETS_OF_BLOCK = 1024
    VIEWS_OF_BLOCK = 64
    INLINE_BYTES = 12       # a view of at most this length holds its value


cdef struct View:
    int32_t length
    uint8_t prefix[4]
    int32_t buffer
    int32_t offset


cdef void copy_bytes(void *out, const void *source, Py_ssize_t size) noexcept nogil:
    """Copy `size` bytes, of which each is read once."""
    memcpy(out, source, size)
    forget_memory()


cdef Py_ssize_t copy_offsets(
    void *out, const void *source, Py_ssize_t count, int width, int64_t most, Py_ssize_t *longest
) noexcept nogil:
    """Copy `count` offsets of `width` bytes, 4 or 8, which need not be aligned.

    Set `longest` to the largest distance of two that follow each other. Return the index of the first offset that is
    less than the one before it, or not from 0 to `most`, or -1.
    """
    cdef Py_ssize_t start = 0, end, bad
    longest[0] = 0
    while start < count:
        end = min(start + OFFSETS_OF_BLOCK, count)
        copy_bytes(<uint8_t *>out + start * width, <const uint8_t *>source + start * width, (end - start) * width)
        if width == 4:
            bad = _check_block(<const int32_t *>out, start, end, most, longest)
        else:
            bad = _check_block(<const int64_t *>out, start, end, most, longest)
        if bad >= 0:
            return bad
        start = end
    return -1


cdef Py_ssize_t _check_block(
    const offset_t *offsets, Py_ssize_t start, Py_ssize_t end, int64_t most, Py_ssize_t *longest
) noexcept nogil:
    """Do what `copy_offsets` says for offsets `start` to `end`. Those before have been checked.

    The loops have no branches, so that the compiler can use vector instructions.
    """
    cdef offset_t before = offsets[start - 1] if start else 0
    cdef offset_t furthest = 0
    cdef bint descends = offsets[start] < before
    cdef Py_ssize_t at
    for at in range(start + 1, end):
        descends |= offsets[at] < offsets[at - 1]
    if descends or offsets[end - 1] > most:
        for at in range(start, end):
            if offsets[at] < before or offsets[at] > most:
                return at
            before = offsets[at]
    if start:
        furthest = offsets[start] - before
    for at in range(start + 1, end):
        furthest = max(furthest, offsets[at] - offsets[at - 1])
    longest[0] = max(longest[0], <Py_ssize_t>furthest)
    return -1


cdef Py_ssize_t copy_views(
    Span *out, const void *source, Py_ssize_t rows, const uint8_t *bits, int64_t first_bit, const Span *buffers,
    Py_ssize_t buffer_count, Py_ssize_t *longest
) noexcept nogil:
    """Turn Arrow's 16-byte views, which need not be aligned, into the places of the values.

    bits       the validity bitmap, NULL if no row is null; that of the first row is `first_bit`
    buffers    the buffers in which long values are; they and `bits` are not foreign memory
    longest    is set to the length of the longest value

    Return the index of the first row whose view leads out of its buffer, or -1.
    """
    cdef View views[VIEWS_OF_BLOCK]
    cdef const View *view
    cdef const Span *buffer
    cdef const uint8_t *first
    cdef Py_ssize_t start = 0, end, row
    longest[0] = 0
    while start < rows:
        end = min(start + VIEWS_OF_BLOCK, rows)
        first = <const uint8_t *>source + start * sizeof(View)
        copy_bytes(views, first, (end - start) * sizeof(View))
        for row in range(start, end):
            view = &views[row - start]
            out[row].length = -1
            if bits != NULL and not bit_at(bits, first_bit + row):
                continue
            if view.length < 0:
                return row
            if view.length <= INLINE_BYTES:
                out[row].data = first + (row - start) * sizeof(View) + sizeof(int32_t)
            else:
                if not 0 <= view.buffer < buffer_count:
                    return row
                buffer = &buffers[view.buffer]
                if view.offset < 0 or view.offset > buffer.length - view.length:
                    return row
                out[row].data = buffer.data + view.offset
            out[row].length = view.length
            longest[0] = max(longest[0], out[row].length)
        start = end
    return -1
