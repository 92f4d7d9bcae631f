"""Gives Python access to slot words, rings and the layout, for tests and for the inspection of a region by hand.

Positions and offsets are bytes in a Region. No record passes through this module.
"""

from libc.stdint cimport uint8_t, uint32_t, uint64_t

from cyproducer.shm.layout cimport (
    CYP_OPEN,
    CYP_WORD_BYTES_MASK,
    CYP_WORD_CONT,
    CYP_WORD_HEAD,
    cyp_outcome,
    cyp_slot_row,
)
from cyproducer.shm.region cimport Region
from cyproducer.shm.ring cimport (
    outcome_available,
    outcome_publish,
    outcome_put,
    outcome_take,
    submit_entry,
    submit_generation,
    submit_kind,
    submit_push,
    submit_slot,
    submit_tail,
    submit_take,
)
from cyproducer.shm.slot cimport slot_commit, slot_free, slot_open, slot_peek, slot_seal
from cyproducer.shm.word cimport (
    word_bytes,
    word_continues,
    word_count,
    word_generation,
    word_make,
    word_state,
    word_with_records,
)

cdef extern from "cyproducer/shm/layout_fields.h" nogil:
    ctypedef struct cyp_field:
        const char *owner
        const char *name
        size_t offset
        size_t size
        char form

    const cyp_field CYP_FIELDS[]
    const size_t CYP_FIELD_COUNT


def layout():
    """Return the layout of shared memory: {struct: {field: (offset, size, form)}}. The field "" is the struct itself.

    Offsets and sizes are bytes. `form` is a letter of the module struct, or "s" for an array or a struct.
    """
    cdef size_t index
    cdef cyp_field field
    cdef dict found = {}
    for index in range(CYP_FIELD_COUNT):
        field = CYP_FIELDS[index]
        fields = found.setdefault(field.owner.decode(), {})
        fields[field.name.decode()] = (field.offset, field.size, chr(field.form))
    return found


def make_word(uint32_t state, uint32_t generation, uint32_t count, uint32_t size, bint head=False, bint cont=False):
    """Return a slot word as an int."""
    return word_make(state, (CYP_WORD_HEAD if head else 0) | (CYP_WORD_CONT if cont else 0), generation, count, size)


def split_word(uint64_t word):
    """Return (state, generation, count, bytes, head, cont) of a slot word."""
    return (
        word_state(word), word_generation(word), word_count(word), word_bytes(word),
        bool(word & CYP_WORD_HEAD), bool(word_continues(word)),
    )


cdef class SlotProbe:
    """One slot row and its chunk, at `row_at` and `chunk_at` in the region.

    It has both sides of the commit protocol: the owner appends, any process seals. Use one object per side.
    """

    cdef Region region
    cdef cyp_slot_row *row
    cdef uint8_t *chunk
    cdef uint64_t expected

    def __cinit__(self, Region region, uint64_t row_at, uint64_t chunk_at):
        self.region = region
        self.row = <cyp_slot_row *>(region.base + row_at)
        self.chunk = region.base + chunk_at

    def open(self, uint32_t generation):
        """Open the slot as its owner (FREE -> OPEN). Return False if it is not FREE with this generation."""
        self.expected = word_make(CYP_OPEN, CYP_WORD_HEAD, generation, 0, 0)
        return slot_open(self.row, generation, self.expected)

    def append(self, const uint8_t[::1] record):
        """Write a record behind the committed tail and commit it, as the owner. Return False if it is sealed."""
        cdef uint32_t at = word_bytes(self.expected), index
        for index in range(<uint32_t>record.shape[0]):
            self.chunk[at + index] = record[index]
        cdef uint64_t desired = word_with_records(self.expected, 1, <uint32_t>record.shape[0])
        if not slot_commit(self.row, self.expected, desired):
            return False
        self.expected = desired
        return True

    def seal(self, uint32_t generation):
        """Seal a batch of this generation. Return (count, bytes of its records); None if it is not a live batch."""
        cdef uint64_t sealed = slot_seal(self.row, True, generation, CYP_WORD_BYTES_MASK)
        return (word_count(sealed), self.chunk[:word_bytes(sealed)]) if sealed else None

    def free(self, uint32_t generation):
        """Free the slot as its owner; `generation` is the next one."""
        slot_free(self.row, generation)

    def load(self):
        return slot_peek(self.row)


cdef class SubmitRingProbe:
    """A submission ring: `entries` (a power of two) at `ring_at`, its tail at `tail_at`. The head is private."""

    cdef Region region
    cdef uint64_t *ring
    cdef uint64_t *tail
    cdef uint64_t mask
    cdef public uint64_t position

    def __cinit__(self, Region region, uint64_t ring_at, uint64_t tail_at, uint64_t entries, uint64_t position=0):
        if entries == 0 or entries & (entries - 1):
            raise ValueError("entries must be a power of two")
        self.region = region
        self.ring = <uint64_t *>(region.base + ring_at)
        self.tail = <uint64_t *>(region.base + tail_at)
        self.mask = entries - 1
        self.position = position

    def push(self, uint32_t kind, uint32_t slot, uint32_t generation):
        """Add an entry as the ring's producer. The caller must keep the ring from overflowing."""
        submit_push(self.ring, self.mask, self.tail, self.position, submit_entry(kind, slot, generation))
        self.position += 1

    def pop(self):
        """Take an entry as the ring's consumer. Return (kind, slot, generation), or None if the ring is empty."""
        cdef uint64_t entry
        if submit_tail(self.tail) == self.position:
            return None
        entry = submit_take(self.ring, self.mask, self.position)
        self.position += 1
        return submit_kind(entry), submit_slot(entry), submit_generation(entry)


cdef class OutcomeRingProbe:
    """An outcome ring, with the same arguments as SubmitRingProbe."""

    cdef Region region
    cdef cyp_outcome *ring
    cdef uint64_t *tail
    cdef uint64_t mask
    cdef public uint64_t position

    def __cinit__(self, Region region, uint64_t ring_at, uint64_t tail_at, uint64_t entries, uint64_t position=0):
        if entries == 0 or entries & (entries - 1):
            raise ValueError("entries must be a power of two")
        self.region = region
        self.ring = <cyp_outcome *>(region.base + ring_at)
        self.tail = <uint64_t *>(region.base + tail_at)
        self.mask = entries - 1
        self.position = position

    def push(self, uint32_t slot, uint32_t generation, long long base_offset, int error):
        cdef cyp_outcome outcome
        outcome.first = 0
        outcome.count = 0
        outcome.append_time = -1
        outcome.flags = 0
        outcome.cause = 0
        outcome.text = 0
        outcome.slot = slot
        outcome.generation = generation
        outcome.base_offset = base_offset
        outcome.error = error
        outcome.extents = 0
        outcome_put(self.ring, self.mask, self.position, &outcome)
        self.position += 1
        outcome_publish(self.tail, self.position)

    def pop(self):
        """Take an outcome. Return (slot, generation, base_offset, error), or None if the ring is empty."""
        cdef cyp_outcome outcome
        if outcome_available(self.tail, self.position) == 0:
            return None
        outcome_take(self.ring, self.mask, self.position, &outcome)
        self.position += 1
        return outcome.slot, outcome.generation, outcome.base_offset, outcome.error
