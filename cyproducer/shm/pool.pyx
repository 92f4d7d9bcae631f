"""Allocates the chunks of an arena for its owner: chunks of 4, 16 and 64 KiB, cut from blocks of 64 KiB.

All of it is private to the process that owns the arena; the sender never sees it. Free lists are LIFO, so pages that
were used recently are used first: the first touch of a page costs 2.2 us, as much as 20 records. A larger free chunk is
cut before a fresh block is touched. Blocks are put together again only when a large chunk is needed and there is no
other way.
"""

cimport cython

from cyproducer.shm.protocol cimport CYP_BLOCK_UNITS, CYP_NONE
from cyproducer.shm.protocol cimport pages_free, pages_new


@cython.final
cdef class ChunkPool:
    def __cinit__(self, uint32_t slot_count):
        if slot_count == 0 or slot_count % CYP_BLOCK_UNITS:
            raise ValueError(f"slot_count must be a multiple of {CYP_BLOCK_UNITS}, not {slot_count}")
        self.slot_count = slot_count
        self.block_count = slot_count // CYP_BLOCK_UNITS
        self.free_bytes = <uint64_t>slot_count * 4096
        for chunk_class in range(3):
            self.heads[chunk_class] = CYP_NONE
        self.next = <uint32_t *>pages_new(_tables_bytes(slot_count))
        if self.next == NULL:
            raise MemoryError
        self.previous = self.next + slot_count
        self.free_units = <uint16_t *>(self.previous + slot_count)
        self.chunk_class = <uint8_t *>(self.free_units + self.block_count)

    def __dealloc__(self):
        pages_free(self.next, _tables_bytes(self.slot_count))

    cdef uint32_t alloc(self, int chunk_class) noexcept nogil:
        """Allocate a chunk of the class, or of a smaller class if there is no other. Return its slot or CYP_NONE."""
        cdef uint32_t slot = CYP_NONE
        cdef int larger
        for larger in range(chunk_class, 3):
            slot = self.heads[larger]
            if slot != CYP_NONE:
                self._remove(slot)
                slot = self._cut(slot, larger, chunk_class)
                break
        else:
            if self.fresh_block < self.block_count:
                slot = self._cut(self.fresh_block * CYP_BLOCK_UNITS, 2, chunk_class)
                self.fresh_block += 1
            elif chunk_class > 0:
                slot = self._coalesce()
                if slot == CYP_NONE:
                    return self.alloc(chunk_class - 1)
                slot = self._cut(slot, 2, chunk_class)
        if slot != CYP_NONE:
            self.free_bytes -= class_bytes(self.chunk_class[slot])
        return slot

    cdef void free(self, uint32_t slot) noexcept nogil:
        """Free the chunk that starts in `slot`."""
        self.free_bytes += class_bytes(self.chunk_class[slot])
        self._push(slot, self.chunk_class[slot])

    cdef void _push(self, uint32_t slot, int chunk_class) noexcept nogil:
        cdef uint32_t head = self.heads[chunk_class]
        self.chunk_class[slot] = chunk_class
        self.next[slot] = head
        self.previous[slot] = CYP_NONE
        if head != CYP_NONE:
            self.previous[head] = slot
        self.heads[chunk_class] = slot
        self.free_units[slot // CYP_BLOCK_UNITS] |= _unit_mask(slot, chunk_class)

    cdef void _remove(self, uint32_t slot) noexcept nogil:
        cdef uint32_t after = self.next[slot], before = self.previous[slot]
        if before == CYP_NONE:
            self.heads[self.chunk_class[slot]] = after
        else:
            self.next[before] = after
        if after != CYP_NONE:
            self.previous[after] = before
        self.free_units[slot // CYP_BLOCK_UNITS] &= ~_unit_mask(slot, self.chunk_class[slot])

    cdef uint32_t _cut(self, uint32_t slot, int from_class, int to_class) noexcept nogil:
        """Cut a chunk that is in no list. Return its first piece; the other pieces go to the free lists."""
        cdef uint32_t units
        cdef int piece
        while from_class > to_class:
            from_class -= 1
            units = class_bytes(from_class) // 4096
            for piece in range(3, 0, -1):
                self._push(slot + piece * units, from_class)
        self.chunk_class[slot] = to_class
        return slot

    cdef uint32_t _coalesce(self) noexcept nogil:
        """Return a block whose chunks are all free, as one chunk that is in no list; CYP_NONE if there is none."""
        cdef uint32_t block, slot, end
        for block in range(self.block_count):
            if self.free_units[block] == 0xffff:
                slot = block * CYP_BLOCK_UNITS
                end = slot + CYP_BLOCK_UNITS
                while slot < end:
                    self._remove(slot)
                    slot += class_bytes(self.chunk_class[slot]) // 4096
                self.chunk_class[block * CYP_BLOCK_UNITS] = 2
                return block * CYP_BLOCK_UNITS
        return CYP_NONE

    def allocate(self, int chunk_class):
        """Allocate a chunk, for tests. Return (slot, bytes) or None."""
        if not 0 <= chunk_class < 3:
            raise ValueError(f"chunk_class must be 0, 1 or 2, not {chunk_class}")
        cdef uint32_t slot = self.alloc(chunk_class)
        return None if slot == CYP_NONE else (slot, class_bytes(self.chunk_class[slot]))

    def release(self, uint32_t slot):
        """Free a chunk, for tests."""
        self.free(slot)


cdef inline uint64_t _tables_bytes(uint64_t slot_count) noexcept nogil:
    return slot_count * (2 * sizeof(uint32_t) + sizeof(uint8_t)) + slot_count // CYP_BLOCK_UNITS * sizeof(uint16_t)


cdef inline uint16_t _unit_mask(uint32_t slot, int chunk_class) noexcept nogil:
    cdef uint32_t units = class_bytes(chunk_class) // 4096
    return <uint16_t>(((<uint32_t>1 << units) - 1) << (slot % CYP_BLOCK_UNITS))
