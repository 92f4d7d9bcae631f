"""The Python edge of slot words and rings: for tests, and for looking into an arena by hand.

Positions and offsets are bytes into a Region; nothing here is on a path that a record takes.
"""

from libc.stdint cimport uint8_t, uint32_t, uint64_t

from cyproducer.shm.atomics cimport cas, load_acquire, store_release
from cyproducer.shm.layout cimport CYP_OPEN, CYP_TAKEN, CYP_WORD_CONT, CYP_WORD_HEAD, cyp_outcome
from cyproducer.shm.region cimport Region
from cyproducer.shm.ring cimport (
    outcome_available,
    outcome_publish,
    outcome_slot,
    submit_entry,
    submit_generation,
    submit_kind,
    submit_push,
    submit_slot,
)
from cyproducer.shm.word cimport (
    word_bytes,
    word_continues,
    word_count,
    word_generation,
    word_make,
    word_state,
    word_with_record,
    word_with_state,
)


def make_word(uint32_t state, uint32_t generation, uint32_t count, uint32_t size, bint head=False, bint cont=False):
    """A slot word as an int."""
    return word_make(state, (CYP_WORD_HEAD if head else 0) | (CYP_WORD_CONT if cont else 0), generation, count, size)


def split_word(uint64_t word):
    """(state, generation, count, bytes, head, cont) of a slot word."""
    return (
        word_state(word), word_generation(word), word_count(word), word_bytes(word),
        bool(word & CYP_WORD_HEAD), bool(word_continues(word)),
    )


cdef class SlotProbe:
    """One slot word and its chunk: `word_at` and `chunk_at` in the region.

    Both sides of the commit protocol, each on its own view: the owner appends, anyone seals.
    """

    cdef Region region
    cdef uint64_t *word
    cdef uint8_t *chunk
    cdef uint64_t expected

    def __cinit__(self, Region region, uint64_t word_at, uint64_t chunk_at):
        self.region = region
        self.word = <uint64_t *>(region.base + word_at)
        self.chunk = region.base + chunk_at

    def open(self, uint32_t generation):
        """FREE -> OPEN by the owner; False if it is not FREE with this generation."""
        self.expected = word_make(CYP_OPEN, CYP_WORD_HEAD, generation, 0, 0)
        return cas(self.word, word_make(0, 0, generation, 0, 0), self.expected)

    def append(self, const uint8_t[::1] record):
        """The owner writes behind the committed tail and commits; False if somebody has sealed."""
        cdef uint32_t at = word_bytes(self.expected), index
        for index in range(<uint32_t>record.shape[0]):
            self.chunk[at + index] = record[index]
        if not cas(self.word, self.expected, word_with_record(self.expected, <uint32_t>record.shape[0])):
            return False
        self.expected = word_with_record(self.expected, <uint32_t>record.shape[0])
        return True

    def seal(self, uint32_t generation):
        """OPEN -> TAKEN by anyone, with the expected generation: (count, bytes of records), None if it is not open."""
        cdef uint64_t seen = load_acquire(self.word)
        while word_state(seen) == CYP_OPEN and word_generation(seen) == generation:
            if cas(self.word, seen, word_with_state(seen, CYP_TAKEN)):
                return word_count(seen), self.chunk[:word_bytes(seen)]
            seen = load_acquire(self.word)
        return None

    def free(self, uint32_t generation):
        """The owner frees the slot; `generation` is the next one."""
        store_release(self.word, word_make(0, 0, generation, 0, 0))

    def load(self):
        return load_acquire(self.word)


cdef class SubmitRingProbe:
    """A submission ring: `entries` (a power of two) at `ring_at`, its tail at `tail_at`, its head private."""

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
        """By the producer of the ring; the caller keeps it from overflowing."""
        submit_push(self.ring, self.mask, self.tail, self.position, submit_entry(kind, slot, generation))
        self.position += 1

    def pop(self):
        """By its consumer: (kind, slot, generation), None if it is empty."""
        cdef uint64_t entry
        if load_acquire(self.tail) == self.position:
            return None
        entry = self.ring[self.position & self.mask]
        self.position += 1
        return submit_kind(entry), submit_slot(entry), submit_generation(entry)


cdef class OutcomeRingProbe:
    """An outcome ring, likewise."""

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
        cdef cyp_outcome *outcome = outcome_slot(self.ring, self.mask, self.position)
        outcome.slot = slot
        outcome.generation = generation
        outcome.base_offset = base_offset
        outcome.error = error
        self.position += 1
        outcome_publish(self.tail, self.position)

    def pop(self):
        """(slot, generation, base_offset, error), None if it is empty."""
        cdef cyp_outcome *outcome
        if outcome_available(self.tail, self.position) == 0:
            return None
        outcome = outcome_slot(self.ring, self.mask, self.position)
        self.position += 1
        return outcome.slot, outcome.generation, outcome.base_offset, outcome.error
