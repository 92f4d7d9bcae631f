"""A front-end as the sender sees it: its arena checked, its private tables made, laid out, freed."""

from libc.stdint cimport INT32_MIN, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free

from cyproducer.sender.model cimport Batch, Core, FrontEnd
from cyproducer.shm.atomics cimport load_relaxed, load_relaxed32
from cyproducer.shm.geometry cimport FrontEndGeometry
from cyproducer.shm.layout cimport (
    CYP_ARENA_MAGIC,
    CYP_CONTROL_ATTACHED,
    CYP_LAYOUT_VERSION,
    CYP_OUTCOMES_MAGIC,
    cyp_arena_header,
    cyp_outcome,
    cyp_outcomes_header,
    cyp_slot_row,
)
from cyproducer.shm.pages cimport pages_free, pages_new

from cyproducer.record.compression import CODES


cdef object check_arena(cyp_arena_header *header, uint32_t slot_count):
    cdef uint32_t version = load_relaxed32(&header.layout_version), slots = load_relaxed32(&header.slot_count)
    if load_relaxed(&header.magic) != CYP_ARENA_MAGIC:
        raise ValueError("the descriptor holds no arena")
    if version != CYP_LAYOUT_VERSION:
        raise ValueError(f"the arena has layout {version}, this sender {CYP_LAYOUT_VERSION}")
    if slots != slot_count:
        raise ValueError(f"the arena has {slots} slots, {slot_count} were announced")


cdef FrontEnd *new_front_end(uint32_t slot_count, dict settings) except NULL:
    """Its private tables. Raises MemoryError, or what is wrong with the settings."""
    cdef FrontEnd *front_end = <FrontEnd *>calloc(1, sizeof(FrontEnd))
    if front_end == NULL:
        raise MemoryError
    try:
        front_end.slot_count = slot_count
        front_end.batches = <Batch *>pages_new(_tables_bytes(slot_count))
        if front_end.batches == NULL:
            raise MemoryError
        front_end.chunk_next = <uint32_t *>(front_end.batches + slot_count)
        front_end.chunk_bytes = front_end.chunk_next + slot_count
        front_end.chunk_count = front_end.chunk_bytes + slot_count
        front_end.chunk_held = <uint8_t *>(front_end.chunk_count + slot_count)
        _configure(front_end, settings)
    except BaseException:
        free_front_end(front_end)
        raise
    return front_end


cdef uint64_t _tables_bytes(uint64_t slot_count) noexcept nogil:
    return slot_count * (sizeof(Batch) + 3 * sizeof(uint32_t) + sizeof(uint8_t))


cdef void free_front_end(FrontEnd *front_end) noexcept nogil:
    cdef uint32_t index
    for index in range(front_end.queue_capacity):
        free(front_end.queues[index])
    free(front_end.queues)
    pages_free(front_end.batches, _tables_bytes(front_end.slot_count))
    free(front_end.published)
    free(front_end)


cdef void lay_out(FrontEnd *front_end, FrontEndGeometry *geometry, uint8_t *arena, uint8_t *outcomes) noexcept nogil:
    """Private pointers from private geometry."""
    front_end.submit_mask = geometry.submit_entries - 1
    front_end.outcome_mask = geometry.outcome_entries - 1
    front_end.header = <cyp_arena_header *>arena
    front_end.rows = <cyp_slot_row *>(arena + geometry.slots_offset)
    front_end.submit_ring = <uint64_t *>(arena + geometry.submit_ring_offset)
    front_end.chunks = arena + geometry.chunks_offset
    front_end.outcomes_header = <cyp_outcomes_header *>outcomes
    front_end.outcome_ring = <cyp_outcome *>(outcomes + geometry.outcome_ring_offset)
    front_end.sent = <uint32_t *>(outcomes + geometry.sent_offset)


cdef void describe_outcomes(FrontEnd *front_end, FrontEndGeometry *geometry) noexcept nogil:
    """The header of fresh outcomes, for the front-end."""
    cdef cyp_outcomes_header *header = front_end.outcomes_header
    header.layout_version = CYP_LAYOUT_VERSION
    header.slot_count = geometry.slot_count
    header.ring_entries = geometry.outcome_entries
    header.sent_offset = geometry.sent_offset
    header.ring_offset = geometry.outcome_ring_offset
    header.region_bytes = geometry.outcomes_bytes
    header.attach_id = front_end.attach_id
    header.control = CYP_CONTROL_ATTACHED
    header.magic = CYP_OUTCOMES_MAGIC


cdef object _configure(FrontEnd *front_end, dict settings):
    front_end.acks = settings["acks"]
    # without an acknowledgement from all there is no sequence to rely on
    front_end.idempotent = settings["enable_idempotence"] and front_end.acks == -1
    codec, level = settings.get("compression_type"), settings.get("compression_level")
    front_end.codec = 0 if codec is None else CODES[codec]
    front_end.level = INT32_MIN if level is None else level
    front_end.linger_ns = <int64_t>(settings["linger_ms"] * 1_000_000)
    front_end.delivery_timeout_ns = <int64_t>(settings["delivery_timeout_ms"] * 1_000_000)
    front_end.retries = settings["retries"]


cdef void list_front_end(Core *core, FrontEnd *front_end) noexcept nogil:
    """Among the living."""
    core.acks_seen |= <uint8_t>(1 << (front_end.acks + 1))
    front_end.next = core.front_ends
    if front_end.next != NULL:
        front_end.next.previous = front_end
    core.front_ends = front_end
    core.front_end_count += 1


cdef void end_front_end(Core *core, FrontEnd *front_end) noexcept nogil:
    """From the list of the living to that of the ended."""
    if front_end.previous != NULL:
        front_end.previous.next = front_end.next
    else:
        core.front_ends = front_end.next
    if front_end.next != NULL:
        front_end.next.previous = front_end.previous
    core.front_end_count -= 1
    front_end.previous = NULL
    front_end.next = core.ended
    core.ended = front_end
