/* Computes the sizes and offsets of the regions. Each side keeps its values in private memory. */
#ifndef CYP_GEOMETRY_H
#define CYP_GEOMETRY_H

#include <stdbool.h>
#include <stdint.h>

#include "layout.h"

/* Of the regions of a front-end. */
typedef struct {
    uint32_t slot_count;  /* 4 KiB units */
    uint64_t submit_entries;  /* of the submission ring; a power of two >= 4 * slot_count */
    uint64_t outcome_entries;  /* of the outcome ring; a power of two >= 2 * slot_count */
    uint64_t slots_offset;  /* arena */
    uint64_t submit_ring_offset;
    uint64_t chunks_offset;
    uint64_t arena_bytes;
    uint64_t sent_offset;  /* outcomes */
    uint64_t outcome_ring_offset;
    uint64_t extents_offset;
    uint64_t metrics_offset;
    uint64_t outcomes_bytes;
} cyp_front_end_geometry;

typedef struct {
    uint64_t sticky_offset;
    uint64_t topics_offset;
    uint64_t index_offset;
    uint64_t changes_offset;
    uint64_t leaders_offset;
    uint64_t metrics_offset;
    uint64_t region_bytes;
} cyp_snapshot_geometry;

typedef struct {
    uint64_t topics_offset;
    uint64_t partitions_offset;
    uint64_t entries_offset;
    uint64_t contributors_offset;
    uint64_t transactions_offset;
    uint64_t bodies_offset;
    uint64_t region_bytes;
} cyp_state_geometry;

static inline uint64_t cyp_page_align(uint64_t size) {
    return (size + CYP_PAGE_BYTES - 1) & ~((uint64_t)CYP_PAGE_BYTES - 1);
}

/* Fill `out` for an arena with `buffer_memory` bytes of chunks. Return false if that is not a valid size. */
static inline bool cyp_front_end_sizes(uint64_t buffer_memory, cyp_front_end_geometry *out) {
    if (buffer_memory < CYP_ARENA_BYTES_MIN || buffer_memory > CYP_ARENA_BYTES_MAX || buffer_memory % CYP_BLOCK_BYTES)
        return false;
    out->slot_count = (uint32_t)(buffer_memory / CYP_UNIT_BYTES);
    out->outcome_entries = 1;
    while (out->outcome_entries < 2 * (uint64_t)out->slot_count)
        out->outcome_entries <<= 1;
    out->submit_entries = 2 * out->outcome_entries;
    out->slots_offset = CYP_PAGE_BYTES;
    out->submit_ring_offset = out->slots_offset + cyp_page_align(out->slot_count * sizeof(cyp_slot_row));
    out->chunks_offset = out->submit_ring_offset + cyp_page_align(out->submit_entries * sizeof(uint64_t));
    out->arena_bytes = out->chunks_offset + buffer_memory;
    out->sent_offset = CYP_PAGE_BYTES;
    out->outcome_ring_offset = out->sent_offset + cyp_page_align(out->slot_count * sizeof(uint32_t));
    out->extents_offset = out->outcome_ring_offset + cyp_page_align(out->outcome_entries * sizeof(cyp_outcome));
    out->metrics_offset = out->extents_offset + cyp_page_align(CYP_EXTENTS_MAX * sizeof(cyp_extent));
    out->outcomes_bytes = out->metrics_offset + cyp_page_align(sizeof(cyp_share_metrics));
    return true;
}

static inline void cyp_snapshot_sizes(cyp_snapshot_geometry *out) {
    out->sticky_offset = CYP_PAGE_BYTES;
    out->topics_offset = out->sticky_offset + cyp_page_align(CYP_TOPICS_MAX * 4);
    out->index_offset = out->topics_offset + cyp_page_align(CYP_TOPICS_MAX * sizeof(cyp_topic_row));
    out->changes_offset = out->index_offset + cyp_page_align(CYP_TOPIC_INDEX_ENTRIES * sizeof(uint64_t));
    out->leaders_offset = out->changes_offset + cyp_page_align(CYP_CHANGES_ENTRIES * sizeof(uint64_t));
    out->metrics_offset = out->leaders_offset + cyp_page_align(CYP_LEADERS_BYTES);
    out->region_bytes = out->metrics_offset + cyp_page_align(sizeof(cyp_sender_metrics));
}

static inline void cyp_state_sizes(cyp_state_geometry *out) {
    out->topics_offset = CYP_PAGE_BYTES;
    out->partitions_offset = out->topics_offset + (uint64_t)CYP_TOPICS_MAX * sizeof(cyp_topic_state);
    out->entries_offset = out->partitions_offset + (uint64_t)CYP_PARTITIONS_MAX * sizeof(cyp_partition_row);
    out->contributors_offset = out->entries_offset + (uint64_t)CYP_ENTRIES_MAX * sizeof(cyp_entry);
    out->transactions_offset = out->contributors_offset + (uint64_t)CYP_CONTRIBUTORS_MAX * sizeof(cyp_contributor);
    out->bodies_offset = out->transactions_offset + (uint64_t)CYP_TRANSACTIONS_MAX * sizeof(cyp_transaction_row);
    out->region_bytes = out->bodies_offset + (uint64_t)CYP_BODIES_MAX * CYP_BLOCK_BYTES;
}

#endif
