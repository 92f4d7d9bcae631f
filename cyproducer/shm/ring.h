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
}

/* Return whether the outcome is about the batch that its slot holds now: a successor publishes some outcomes twice. */
static inline bool cyp_outcome_is_current(const cyp_outcome *outcome, uint32_t generation) {
    return outcome->generation == generation;
}

#endif
