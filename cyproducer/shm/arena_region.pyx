"""Creates arenas, maps outcomes regions, counts undelivered records, and gives Python the layout version."""


#: The version of layout.h. A front-end never attaches to a sender with another layout.
LAYOUT_VERSION = CYP_LAYOUT_VERSION
TOPICS_MAX = CYP_TOPICS_MAX


def create_arena(uint64_t buffer_memory):
    """Create a sealed, mapped arena with its header. Return (Region, slot count).

    `buffer_memory` is in bytes and is rounded up to blocks of 64 KiB. Raise ValueError if it is out of range, OSError
    if the kernel refuses the memory (mappings count for RLIMIT_AS).
    """
    cdef FrontEndGeometry geometry
    cdef Region region
    cdef cyp_arena_header *header
    cdef uint64_t size = (buffer_memory + CYP_BLOCK_BYTES - 1) // CYP_BLOCK_BYTES * CYP_BLOCK_BYTES
    if not front_end_geometry(size, &geometry):
        raise ValueError(
            f"buffer_memory must be from {CYP_ARENA_BYTES_MIN} to {CYP_ARENA_BYTES_MAX} bytes, not {buffer_memory}"
        )
    region = Region.create("cyproducer-arena", geometry.arena_bytes)
    header = <cyp_arena_header *>region.base
    header.slot_count = geometry.slot_count
    header.ring_entries = geometry.submit_entries
    header.slots_offset = geometry.slots_offset
    header.ring_offset = geometry.submit_ring_offset
    header.chunks_offset = geometry.chunks_offset
    header.region_bytes = geometry.arena_bytes
    header.layout_version = CYP_LAYOUT_VERSION
    header.magic = CYP_ARENA_MAGIC
    return region, geometry.slot_count


def count_undelivered(int fd, uint64_t slot_count):
    """Return the number of records in an arena's chunks that are open, ready or taken, but not done.

    Read the arena without mapping it. Raise ValueError if no arena can have `slot_count` slots, OSError if the arena
    cannot be read.
    """
    cdef FrontEndGeometry geometry
    cdef cyp_slot_row row
    cdef uint64_t records = 0
    cdef uint64_t offset, end
    cdef Py_ssize_t at
    cdef bytes rows
    if not front_end_geometry(slot_count * CYP_UNIT_BYTES, &geometry):
        raise ValueError(f"no arena can have {slot_count} slots")
    end = geometry.slots_offset + slot_count * sizeof(row)
    for offset in range(geometry.slots_offset, end, CYP_BLOCK_BYTES):
        rows = os.pread(fd, min(CYP_BLOCK_BYTES, end - offset), offset)
        for at in range(0, len(rows) // sizeof(row)):
            memcpy(&row, <const char *>rows + at * sizeof(row), sizeof(row))
            if word_state(row.word) in (CYP_OPEN, CYP_READY, CYP_TAKEN):
                records += word_count(row.word)
    return records


def map_outcomes(int fd, uint64_t slot_count):
    """Map the outcomes region of an arena of `slot_count` slots, read-only.

    The region owns `fd` from here on, also if this raises. Raise ValueError if the descriptor is not an
    outcomes region of this layout and size.
    """
    cdef FrontEndGeometry geometry
    cdef Region region
    cdef const cyp_outcomes_header *header
    cdef bint valid = front_end_geometry(slot_count * CYP_UNIT_BYTES, &geometry)
    region = Region.attach(fd, geometry.outcomes_bytes if valid else 0, False)
    header = <const cyp_outcomes_header *>region.base
    if (
        header.magic != CYP_OUTCOMES_MAGIC
        or header.layout_version != CYP_LAYOUT_VERSION
        or header.slot_count != slot_count
        or header.ring_entries != geometry.outcome_entries
        or header.sent_offset != geometry.sent_offset
        or header.ring_offset != geometry.outcome_ring_offset
    ):
        raise ValueError("the descriptor is not an outcomes region of this layout and size")
    return region
