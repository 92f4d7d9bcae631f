/* Implements the rings between front-ends and the sender, and the wake-ups of the side that sleeps.
 *
 * Each ring has a single producer and a single consumer. Positions are 64-bit, monotonic and never wrap; the index is
 * position & mask. The producer of a ring stores its tail in a region that only it writes; the consumer keeps its head.
 * Both rings are so large that they cannot become full (layout.h), so neither side ever waits for the other.
 *
 * A side that is about to sleep announces it, fences, and looks again for work; a side that publishes fences, then
 * looks whether the other side sleeps. Without the two sequentially consistent fences each side can miss the other (a
 * store may pass a later load even on x86), and a record would wait until some other wake-up. */
#ifndef CYPRODUCER_RINGS_H
#define CYPRODUCER_RINGS_H

#include <stdbool.h>
#include <stdint.h>

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
static inline uint64_t cyp_submit_read(const uint64_t *ring, uint64_t mask, uint64_t position) {
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
    return cyp_load_acquire_u64(head); /* pairs with the release in OutcomeReader.read */
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
static inline void cyp_extent_read(const cyp_extent *row, cyp_extent *extent) {
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
static inline void cyp_outcome_read(const cyp_outcome *ring, uint64_t mask, uint64_t position, cyp_outcome *outcome) {
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

/* ------------------------------------------------------------------ the sender sleeps */

/* What a front-end stores of its signals: the last epochs in which it has written the sender's eventfd. */
typedef struct {
    uint64_t sleep;
    uint32_t idle;
} cyp_signalled;

/* Return whether the sender's eventfd must be written, after a publication that the sender must see by `deadline_ns`.
 * `idle` is the front-end's word in its outcomes region, see below. */
static inline bool cyp_sender_needs_wake(
    const cyp_snapshot_header *snapshot, const uint32_t *idle, uint64_t deadline_ns, cyp_signalled *signalled
) {
    cyp_fence_seq_cst(); /* pairs with the fences in cyp_sender_sleeps and cyp_front_end_idles */
    uint32_t resting = cyp_load_acquire_u32(idle);
    uint64_t sleep = cyp_load_acquire_u64(&snapshot->sleep);
    if ((resting & 1) && resting != signalled->idle) {
        signalled->idle = resting;
        signalled->sleep = sleep; /* one write serves both */
        return true;
    }
    if (!(sleep & 1) || sleep == signalled->sleep) return false;
    if (deadline_ns >= cyp_load_relaxed_u64(&snapshot->next_wake_ns)) {
        return false; /* it wakes by itself in time, or must not be woken */
    }
    signalled->sleep = sleep;
    return true;
}

/* Return whether the sender sleeps and a front-end may wake it. A hint: it may change at once. */
static inline bool cyp_sender_asleep(const cyp_snapshot_header *snapshot) {
    /* acquire: pairs with cyp_sender_sleeps, for next_wake_ns */
    return (cyp_load_acquire_u64(&snapshot->sleep) & 1) && cyp_load_relaxed_u64(&snapshot->next_wake_ns) != 0;
}

/* The sender is about to sleep. It must look at every reason to stay awake after this.
 * `next_wake_ns` 0: front-ends do not wake it. */
static inline void cyp_sender_sleeps(cyp_snapshot_header *snapshot, uint64_t next_wake_ns) {
    cyp_store_relaxed_u64(&snapshot->next_wake_ns, next_wake_ns);
    uint64_t epoch = (cyp_load_relaxed_u64(&snapshot->sleep) >> 1) + 1;
    /* release: next_wake_ns is seen with it; pairs with the acquire in cyp_sender_needs_wake */
    cyp_store_release_u64(&snapshot->sleep, epoch << 1 | 1);
    cyp_fence_seq_cst(); /* pairs with the fence in cyp_sender_needs_wake */
}

static inline void cyp_sender_wakes(cyp_snapshot_header *snapshot) {
    /* release: pairs with cyp_sender_needs_wake; a front-end that still sees it asleep signals once too often */
    cyp_store_release_u64(&snapshot->sleep, cyp_load_relaxed_u64(&snapshot->sleep) & ~(uint64_t)1);
}

/* ------------------------------------------------------------------ a front-end is idle
 *
 * The sender looks at the submission rings of active front-ends only. One that has submitted nothing for a while is
 * idle: its next submission writes the eventfd, whether the sender sleeps or not. */

/* The sender stops looking at the front-end's ring; it must look at it once more after this. */
static inline void cyp_front_end_idles(uint32_t *idle) {
    cyp_store_release_u32(idle, (cyp_load_relaxed_u32(idle) + 1) | 1);
    cyp_fence_seq_cst(); /* pairs with that in cyp_sender_needs_wake */
}

/* The sender looks at the ring again, from its next loop iteration on. */
static inline void cyp_front_end_acts(uint32_t *idle) {
    /* release: pairs with cyp_sender_needs_wake; a front-end that still sees itself idle signals once too often */
    cyp_store_release_u32(idle, (cyp_load_relaxed_u32(idle) + 1) & ~1u);
}

/* ------------------------------------------------------------------ a waiter of the front-end sleeps */

/* A waiter is about to sleep (`epoch` is odd and different each time). It must look at the outcome ring after this. */
static inline void cyp_waiter_sleeps(uint32_t *sleeping, uint32_t epoch) {
    cyp_store_release_u32(sleeping, epoch);
    cyp_fence_seq_cst(); /* pairs with the fence in cyp_waiter_needs_wake */
}

/* No waiter sleeps any more (`epoch` is even). */
static inline void cyp_waiter_wakes(uint32_t *sleeping, uint32_t epoch) {
    cyp_store_release_u32(sleeping, epoch); /* pairs with cyp_waiter_needs_wake, which may miss it */
}

/* Return whether the front-end must be woken, after outcomes were published. `signalled`: the epoch of the caller's
 * last wake-up. */
static inline bool cyp_waiter_needs_wake(const uint32_t *sleeping, uint32_t *signalled) {
    cyp_fence_seq_cst(); /* pairs with the fence in cyp_waiter_sleeps */
    uint32_t epoch = cyp_load_acquire_u32(sleeping);
    if (!(epoch & 1) || epoch == *signalled) return false;
    *signalled = epoch;
    return true;
}

#endif
