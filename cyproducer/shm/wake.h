/* Implements wake-ups: a side that is about to sleep announces it, fences, and looks again for work; a side that
 * publishes fences, then looks whether the other side sleeps.
 *
 * Without the two sequentially consistent fences each side can miss the other (a store may pass a later load even on
 * x86), and a record would wait until some other wake-up. */
#ifndef CYPRODUCER_WAKE_H
#define CYPRODUCER_WAKE_H

#include "cyproducer/shm/atomics.h"
#include "cyproducer/shm/layout.h"

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
