/* Implements single-producer single-consumer rings in shared memory.
 *
 * Positions are 64-bit, monotonic and never wrap; the index is position & mask. The producer of a ring stores its tail
 * in a region that only it writes; the consumer keeps its head. Both rings are so large that they cannot become full
 * (layout.h), so neither side ever waits for the other. */
#ifndef CYPRODUCER_RING_H
#define CYPRODUCER_RING_H

#include "cyproducer/shm/atomics.h"
#include "cyproducer/shm/layout.h"

/* ------------------------------------------------------------------ submission: hints, front-end to sender */

static inline uint64_t cyp_submit_entry(uint32_t kind, uint32_t slot, uint32_t generation) {
    return (uint64_t)kind << CYP_SUBMIT_KIND_SHIFT | (uint64_t)generation << CYP_SUBMIT_GENERATION_SHIFT | slot;
}

static inline uint32_t cyp_submit_kind(uint64_t entry) { return (uint32_t)(entry >> CYP_SUBMIT_KIND_SHIFT); }

static inline uint32_t cyp_submit_generation(uint64_t entry) {
    return (uint32_t)(entry >> CYP_SUBMIT_GENERATION_SHIFT & CYP_WORD_GENERATION_MASK);
}

static inline uint32_t cyp_submit_slot(uint64_t entry) { return (uint32_t)entry; }

/* Publish `entry` at `position`, the producer's private copy of its tail. */
static inline void cyp_submit_push(uint64_t *ring, uint64_t mask, uint64_t *tail, uint64_t position, uint64_t entry) {
    CYP_SET(ring[position & mask], entry);
    cyp_store_release_u64(tail, position + 1); /* pairs with cyp_submit_tail: the entry is seen whole */
}

/* Return the front-end's tail. The value may be anything if the front-end breaks the protocol. */
static inline uint64_t cyp_submit_tail(const uint64_t *tail) {
    return cyp_load_acquire_u64(tail); /* pairs with cyp_submit_push */
}

/* Return the entry at `position`, which is before a tail that was read. */
static inline uint64_t cyp_submit_take(const uint64_t *ring, uint64_t mask, uint64_t position) {
    return CYP_GET(ring[position & mask]);
}

/* ------------------------------------------------------------------ outcomes: sender to front-end */

/* Fill the entry at `position`, the sender's private copy of its tail. */
static inline void cyp_outcome_put(cyp_outcome *ring, uint64_t mask, uint64_t position, const cyp_outcome *outcome) {
    cyp_outcome *at = &ring[position & mask];
    CYP_SET(at->slot, outcome->slot);
    CYP_SET(at->generation, outcome->generation);
    CYP_SET(at->first, outcome->first);
    CYP_SET(at->count, outcome->count);
    CYP_SET(at->base_offset, outcome->base_offset);
    CYP_SET(at->append_time, outcome->append_time);
    CYP_SET(at->error, outcome->error);
    CYP_SET(at->flags, outcome->flags);
    at->cause = outcome->cause; /* plain stores, which the model does not step through: published with the rest */
    at->text = outcome->text;
    CYP_SET(at->extents, outcome->extents);
}

/* Return how many outcomes the front-end has taken: it reads no row and no text to which these lead any more. The value
 * may be anything if the front-end breaks the protocol. */
static inline uint64_t cyp_outcomes_taken(const uint64_t *head) {
    return cyp_load_acquire_u64(head); /* pairs with the release in OutcomeReader.take */
}

/* Fill a free row with the result of some records. The outcome that leads to it is published later. */
static inline void cyp_extent_fill(cyp_extent *row, const cyp_extent *filled) {
    CYP_SET(row->slot, filled->slot);
    CYP_SET(row->generation, filled->generation);
    CYP_SET(row->first, filled->first);
    cyp_store_relaxed_u32(&row->count, filled->count);
    CYP_SET(row->error, filled->error);
    CYP_SET(row->base_offset, filled->base_offset);
    row->append_time = filled->append_time; /* plain stores, which the model does not step through, as above */
    row->cause = filled->cause;
    row->text = filled->text;
    CYP_SET(row->next, filled->next);
    cyp_store_release_u32(&row->state, CYP_EXTENT_FILLED); /* pairs with the end of the sender: a successor looks for it */
}

/* Lengthen a row by the records that follow its own and have the same result. */
static inline void cyp_extent_lengthen(cyp_extent *row, uint32_t count) {
    cyp_store_release_u32(&row->count, count); /* pairs with the end of the sender */
}

/* The front-end has read the row, or nothing leads to it: it may be filled again. */
static inline void cyp_extent_free(cyp_extent *row) { cyp_store_release_u32(&row->state, CYP_EXTENT_FREE); }

/* Copy the row, to which an available outcome leads. */
static inline void cyp_extent_take(const cyp_extent *row, cyp_extent *extent) {
    extent->first = CYP_GET(row->first);
    extent->count = cyp_load_relaxed_u32(&row->count);
    extent->error = CYP_GET(row->error);
    extent->base_offset = CYP_GET(row->base_offset);
    extent->append_time = row->append_time;
    extent->cause = row->cause;
    extent->text = row->text;
    extent->next = CYP_GET(row->next);
}

/* Publish all entries before `position`. */
static inline void cyp_outcome_publish(uint64_t *tail, uint64_t position) {
    cyp_store_release_u64(tail, position); /* pairs with cyp_outcome_available: the outcomes are seen whole */
}

/* Return how many outcomes were published after `head`. */
static inline uint64_t cyp_outcome_available(const uint64_t *tail, uint64_t head) {
    return cyp_load_acquire_u64(tail) - head; /* pairs with cyp_outcome_publish */
}

/* Copy the outcome at `position`, which must be available. */
static inline void cyp_outcome_take(const cyp_outcome *ring, uint64_t mask, uint64_t position, cyp_outcome *outcome) {
    const cyp_outcome *at = &ring[position & mask];
    outcome->slot = CYP_GET(at->slot);
    outcome->generation = CYP_GET(at->generation);
    outcome->first = CYP_GET(at->first);
    outcome->count = CYP_GET(at->count);
    outcome->base_offset = CYP_GET(at->base_offset);
    outcome->append_time = CYP_GET(at->append_time);
    outcome->error = CYP_GET(at->error);
    outcome->flags = CYP_GET(at->flags);
    outcome->cause = at->cause;
    outcome->text = at->text;
    outcome->extents = CYP_GET(at->extents);
}

/* Return whether the outcome is about the batch that its slot holds now: a successor publishes some outcomes twice. */
static inline bool cyp_outcome_is_current(const cyp_outcome *outcome, uint32_t generation) {
    return outcome->generation == generation;
}

#endif
