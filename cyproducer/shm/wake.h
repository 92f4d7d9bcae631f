/* Wake-ups: whoever may sleep says so, fences, and looks again; whoever publishes fences and looks who sleeps.
 *
 * Without the two sequentially consistent fences each side may miss the other (a store may pass a later load even on
 * x86), and a record would lie until somebody else's wake-up. */
#ifndef CYPRODUCER_WAKE_H
#define CYPRODUCER_WAKE_H

#include "cyproducer/shm/atomics.h"
#include "cyproducer/shm/layout.h"

/* ------------------------------------------------------------------ the sender sleeps */

/* After a publication that must be seen by `deadline_ns`: must the sender's eventfd be written?
 * `signalled` is the caller's memory of the last sleep epoch that it has signalled. */
static inline bool cyp_sender_needs_wake(const cyp_snapshot_header *snapshot, uint64_t deadline_ns, uint64_t *signalled) {
    cyp_fence_seq_cst(); /* pairs with the fence in cyp_sender_sleeps */
    uint64_t sleep = cyp_load_acquire_u64(&snapshot->sleep);
    if (!(sleep & 1) || sleep == *signalled) return false;
    if (deadline_ns >= cyp_load_relaxed_u64(&snapshot->next_wake_ns)) {
        return false; /* it wakes by itself in time, or has no use for a wake-up */
    }
    *signalled = sleep;
    return true;
}

/* Is the sender in a sleep that a front-end may end? A hint: it may change at once. */
static inline bool cyp_sender_asleep(const cyp_snapshot_header *snapshot) {
    /* acquire: pairs with cyp_sender_sleeps, for next_wake_ns */
    return (cyp_load_acquire_u64(&snapshot->sleep) & 1) && cyp_load_relaxed_u64(&snapshot->next_wake_ns) != 0;
}

/* The sender is about to sleep; it must look at every reason to stay awake after this.
 * `next_wake_ns` 0: nobody is to wake it. */
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

/* ------------------------------------------------------------------ a waiter of the front-end sleeps */

/* It is about to sleep (`epoch` odd, another one each time); it must look at the outcome ring after this. */
static inline void cyp_waiter_sleeps(uint32_t *sleeping, uint32_t epoch) {
    cyp_store_release_u32(sleeping, epoch);
    cyp_fence_seq_cst(); /* pairs with the fence in cyp_waiter_needs_wake */
}

/* Nobody waits any more (`epoch` even). */
static inline void cyp_waiter_wakes(uint32_t *sleeping, uint32_t epoch) {
    cyp_store_release_u32(sleeping, epoch); /* pairs with cyp_waiter_needs_wake, which may miss it */
}

/* After publishing outcomes: must the front-end be woken? `signalled`: the caller's memory. */
static inline bool cyp_waiter_needs_wake(const uint32_t *sleeping, uint32_t *signalled) {
    cyp_fence_seq_cst(); /* pairs with the fence in cyp_waiter_sleeps */
    uint32_t epoch = cyp_load_acquire_u32(sleeping);
    if (!(epoch & 1) || epoch == *signalled) return false;
    *signalled = epoch;
    return true;
}

#endif
