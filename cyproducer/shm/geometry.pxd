"""Computes the sizes and offsets of the regions. Each side keeps its values in private memory."""

from libc.stdint cimport uint32_t, uint64_t

from cyproducer.shm.layout cimport (
    CYP_ARENA_BYTES_MAX,
    CYP_ARENA_BYTES_MIN,
    CYP_BLOCK_BYTES,
    CYP_BODIES_MAX,
    CYP_CHANGES_ENTRIES,
    CYP_CONTRIBUTORS_MAX,
    CYP_ENTRIES_MAX,
    CYP_EXTENTS_MAX,
    CYP_LEADERS_BYTES,
    CYP_PAGE_BYTES,
    CYP_PARTITIONS_MAX,
    CYP_TOPIC_INDEX_ENTRIES,
    CYP_TOPICS_MAX,
    CYP_TRANSACTIONS_MAX,
    CYP_UNIT_BYTES,
    cyp_contributor,
    cyp_entry,
    cyp_extent,
    cyp_outcome,
    cyp_partition_row,
    cyp_sender_metrics,
    cyp_share_metrics,
    cyp_slot_row,
    cyp_topic_row,
    cyp_topic_state,
    cyp_transaction_row,
)


ctypedef struct FrontEndGeometry:
    uint32_t slot_count             # 4 KiB units
    uint64_t submit_entries         # of the submission ring; a power of two >= 4 * slot_count
    uint64_t outcome_entries        # of the outcome ring; a power of two >= 2 * slot_count
    uint64_t slots_offset           # arena
    uint64_t submit_ring_offset
    uint64_t chunks_offset
    uint64_t arena_bytes
    uint64_t sent_offset            # outcomes
    uint64_t outcome_ring_offset
    uint64_t extents_offset
    uint64_t metrics_offset
    uint64_t outcomes_bytes


ctypedef struct SnapshotGeometry:
    uint64_t sticky_offset
    uint64_t topics_offset
    uint64_t index_offset
    uint64_t changes_offset
    uint64_t leaders_offset
    uint64_t metrics_offset
    uint64_t region_bytes


ctypedef struct StateGeometry:
    uint64_t topics_offset
    uint64_t partitions_offset
    uint64_t entries_offset
    uint64_t contributors_offset
    uint64_t transactions_offset
    uint64_t bodies_offset
    uint64_t region_bytes


cdef inline uint64_t page_align(uint64_t size) noexcept nogil:
    return (size + CYP_PAGE_BYTES - 1) & ~(<uint64_t>CYP_PAGE_BYTES - 1)


cdef inline bint front_end_geometry(uint64_t buffer_memory, FrontEndGeometry *out) noexcept nogil:
    """Fill `out` for an arena with `buffer_memory` bytes of chunks. Return False if that is not a valid size."""
    if buffer_memory < CYP_ARENA_BYTES_MIN or buffer_memory > CYP_ARENA_BYTES_MAX or buffer_memory % CYP_BLOCK_BYTES:
        return False
    out.slot_count = <uint32_t>(buffer_memory // CYP_UNIT_BYTES)
    out.outcome_entries = 1
    while out.outcome_entries < 2 * <uint64_t>out.slot_count:
        out.outcome_entries <<= 1
    out.submit_entries = 2 * out.outcome_entries
    out.slots_offset = CYP_PAGE_BYTES
    out.submit_ring_offset = out.slots_offset + page_align(out.slot_count * sizeof(cyp_slot_row))
    out.chunks_offset = out.submit_ring_offset + page_align(out.submit_entries * sizeof(uint64_t))
    out.arena_bytes = out.chunks_offset + buffer_memory
    out.sent_offset = CYP_PAGE_BYTES
    out.outcome_ring_offset = out.sent_offset + page_align(out.slot_count * sizeof(uint32_t))
    out.extents_offset = out.outcome_ring_offset + page_align(out.outcome_entries * sizeof(cyp_outcome))
    out.metrics_offset = out.extents_offset + page_align(CYP_EXTENTS_MAX * sizeof(cyp_extent))
    out.outcomes_bytes = out.metrics_offset + page_align(sizeof(cyp_share_metrics))
    return True


cdef inline void snapshot_geometry(SnapshotGeometry *out) noexcept nogil:
    out.sticky_offset = CYP_PAGE_BYTES
    out.topics_offset = out.sticky_offset + page_align(CYP_TOPICS_MAX * 4)
    out.index_offset = out.topics_offset + page_align(CYP_TOPICS_MAX * sizeof(cyp_topic_row))
    out.changes_offset = out.index_offset + page_align(CYP_TOPIC_INDEX_ENTRIES * sizeof(uint64_t))
    out.leaders_offset = out.changes_offset + page_align(CYP_CHANGES_ENTRIES * sizeof(uint64_t))
    out.metrics_offset = out.leaders_offset + page_align(CYP_LEADERS_BYTES)
    out.region_bytes = out.metrics_offset + page_align(sizeof(cyp_sender_metrics))


cdef inline void state_geometry(StateGeometry *out) noexcept nogil:
    out.topics_offset = CYP_PAGE_BYTES
    out.partitions_offset = out.topics_offset + <uint64_t>CYP_TOPICS_MAX * sizeof(cyp_topic_state)
    out.entries_offset = out.partitions_offset + <uint64_t>CYP_PARTITIONS_MAX * sizeof(cyp_partition_row)
    out.contributors_offset = out.entries_offset + <uint64_t>CYP_ENTRIES_MAX * sizeof(cyp_entry)
    out.transactions_offset = out.contributors_offset + <uint64_t>CYP_CONTRIBUTORS_MAX * sizeof(cyp_contributor)
    out.bodies_offset = out.transactions_offset + <uint64_t>CYP_TRANSACTIONS_MAX * sizeof(cyp_transaction_row)
    out.region_bytes = out.bodies_offset + <uint64_t>CYP_BODIES_MAX * CYP_BLOCK_BYTES
