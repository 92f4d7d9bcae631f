"""Gives Python access to slot words, rings and the layout, for tests and for the inspection of a region by hand.

Positions and offsets are bytes in a Region. No record passes through this module.
"""


cdef extern from *:
    """
    #include "cyproducer/shm/crashpoint.h"
    #include "cyproducer/shm/layout.h"

    typedef struct {
        const char *owner;
        const char *name;
        size_t offset;
        size_t size;
        char form;
    } cyp_field;

    /* As in Python's module struct; 's': an array, which decays to a pointer, or a struct. */
    #define FORM(value) _Generic((value), int8_t: 'b', uint8_t: 'B', int16_t: 'h', uint16_t: 'H', int32_t: 'i', \\
        uint32_t: 'I', int64_t: 'q', uint64_t: 'Q', default: 's')
    #define FIELD(type, field) \\
        {#type, #field, offsetof(type, field), sizeof(((type *)0)->field), FORM(((type *)0)->field)},

    static const cyp_field CYP_FIELDS[] = {
    #include "layout_fields.h"
    };
    #define CYP_FIELD_COUNT (sizeof(CYP_FIELDS) / sizeof(CYP_FIELDS[0]))
    """
    ctypedef struct cyp_field:
        const char *owner
        const char *name
        size_t offset
        size_t size
        char form

    const cyp_field CYP_FIELDS[]
    const size_t CYP_FIELD_COUNT


#: metrics_num_samples is at most this.
SAMPLES_MAX = CYP_SAMPLES_MAX - 1
#: The size in bytes of what an outcomes region ends with, rounded up to pages.
SHARE_BYTES = (sizeof(cyp_share_metrics) + 4095) // 4096 * 4096


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
        entry = submit_read(self.ring, self.mask, self.position)
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
        outcome_read(self.ring, self.mask, self.position, &outcome)
        self.position += 1
        return outcome.slot, outcome.generation, outcome.base_offset, outcome.error


cdef class SensorProbe:
    """One sensor in private memory, for tests with a clock of their own (ns)."""

    cdef cyp_sensor sensor
    cdef cyp_windows windows

    def __cinit__(self, uint64_t window_ns, uint64_t samples):
        memset(&self.sensor, 0, sizeof(self.sensor))
        self.windows.window_ns = window_ns
        self.windows.samples = samples

    def record(self, uint64_t value, uint64_t now):
        """Record an event."""
        sensor_record(&self.sensor, &self.windows, value, now)

    def read(self, uint64_t now):
        """Return the reading at this time."""
        cdef cyp_reading reading
        sensor_read(&self.sensor, self.windows.window_ns, self.windows.samples, now, &reading)
        return reading.total, reading.count, reading.sum, reading.events, reading.max, reading.elapsed_ns
