/* Single-producer single-consumer rings over shared memory.
 *
 * Positions are 64-bit, monotonic and never wrapped; the index is position & mask. The producer of a ring has its
 * tail in a region that it alone writes, the consumer keeps its head. Both rings are sized so that they cannot be
 * full (layout.h), hence no side ever waits for the other. */
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

/* Publishes `entry` at `position`, the producer's private copy of its tail. */
static inline void cyp_submit_push(uint64_t *ring, uint64_t mask, uint64_t *tail, uint64_t position, uint64_t entry) {
    CYP_SET(ring[position & mask], entry);
    cyp_store_release_u64(tail, position + 1); /* pairs with cyp_submit_tail: the entry is seen whole */
}

/* How far the front-end has come. Of a front-end that breaks the protocol it may be anything. */
static inline uint64_t cyp_submit_tail(const uint64_t *tail) {
    return cyp_load_acquire_u64(tail); /* pairs with cyp_submit_push */
}

/* The entry at `position`, which lies before a tail that was read. */
static inline uint64_t cyp_submit_take(const uint64_t *ring, uint64_t mask, uint64_t position) {
    return CYP_GET(ring[position & mask]);
}

/* ------------------------------------------------------------------ outcomes: sender to front-end */

/* Fills the entry at `position`, the sender's private copy of its tail. */
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
}

/* Publishes all entries before `position`. */
static inline void cyp_outcome_publish(uint64_t *tail, uint64_t position) {
    cyp_store_release_u64(tail, position); /* pairs with cyp_outcome_available: the outcomes are seen whole */
}

/* How many outcomes lie behind `head`. */
static inline uint64_t cyp_outcome_available(const uint64_t *tail, uint64_t head) {
    return cyp_load_acquire_u64(tail) - head; /* pairs with cyp_outcome_publish */
}

/* Copies the outcome at `position`, which is known to be available. */
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
}

/* Is it about the batch that its slot holds now? A successor publishes some outcomes a second time. */
static inline bool cyp_outcome_is_current(const cyp_outcome *outcome, uint32_t generation) {
    return outcome->generation == generation;
}

#endif
