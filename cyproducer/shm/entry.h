/* The steps of an entry of the state region, in their order: what a successor finds at each point is enough.
 *
 * fill -> assign -> SENT words (slot.h) and unsure -> write to the socket -> response -> resolve -> acked_end
 * -> outcomes (ring.h) -> free. One sender writes at a time; only its death is survived, so that the releases keep
 * the compiler from reordering, and pair with the end of the process, which its successor has awaited. */
#ifndef CYPRODUCER_ENTRY_H
#define CYPRODUCER_ENTRY_H

#include "cyproducer/shm/atomics.h"
#include "cyproducer/shm/layout.h"

/* The entry enters a state (enum cyp_entry_state), and everything that was stored before is seen with it. Of ASSIGNED:
 * it is filled, from here on a successor sends it. Of FREE: all outcomes are published, nothing is left to do. */
static inline void cyp_entry_enter(cyp_entry *entry, uint32_t state) { cyp_store_release_u32(&entry->state, state); }

/* Before a byte may leave, after the SENT words: what a successor sends of it may be there already. */
static inline void cyp_entry_unsure(cyp_entry *entry) {
    CYP_SET(entry->attempts, CYP_GET(entry->attempts) + 1);
    cyp_store_release_u32(&entry->flags, cyp_load_relaxed_u32(&entry->flags) | CYP_ENTRY_UNSURE);
}

/* The broker has refused the only attempts that went out: none of the records is there. */
static inline void cyp_entry_sure(cyp_entry *entry) {
    cyp_store_release_u32(&entry->flags, cyp_load_relaxed_u32(&entry->flags) & ~CYP_ENTRY_UNSURE);
}

/* Its result is known: a successor publishes it and does not send the entry again. */
static inline void cyp_entry_resolve(cyp_entry *entry, int32_t error, int64_t base_offset, int64_t append_time) {
    CYP_SET(entry->error, error);
    CYP_SET(entry->base_offset, base_offset);
    CYP_SET(entry->append_time, append_time);
    cyp_store_release_u32(&entry->state, CYP_ENTRY_RESOLVED);
}

#endif
