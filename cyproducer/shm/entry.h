/* Defines the steps of an entry of the state region, in order. If a sender dies between two, its successor continues.
 *
 * fill -> assign -> SENT words (slot.h) and unsure -> write to the socket -> response -> resolve -> acked_end
 * -> outcomes (rings.h) -> free. Only one sender writes at a time, and the state must survive only the death of that
 * process. So the releases only keep the compiler from reordering the stores. They pair with the end of the process:
 * the successor waits for that end before it reads. */
#ifndef CYPRODUCER_ENTRY_H
#define CYPRODUCER_ENTRY_H

#include "cyproducer/shm/atomics.h"
#include "cyproducer/shm/layout.h"

/* The entry enters a state (enum cyp_entry_state); everything that was stored before is seen with it. ASSIGNED: the
 * entry is filled, and from here on a successor sends it. FREE: all outcomes are published, nothing is left to do. */
static inline void cyp_entry_enter(cyp_entry *entry, uint32_t state) { cyp_store_release_u32(&entry->state, state); }

/* Count an attempt and mark the entry as unsure, after the SENT words and before the first byte is written: a successor then knows that
 * an attempt may already be in the log. */
static inline void cyp_entry_unsure(cyp_entry *entry) {
    CYP_SET(entry->attempts, CYP_GET(entry->attempts) + 1);
    cyp_store_release_u32(&entry->flags, cyp_load_relaxed_u32(&entry->flags) | CYP_ENTRY_UNSURE);
}

/* Clear the marks: no attempt of the entry, nor of a larger entry of which it is a fragment, is in the log. */
static inline void cyp_entry_sure(cyp_entry *entry) {
    cyp_store_release_u32(&entry->flags,
                          cyp_load_relaxed_u32(&entry->flags) & ~(CYP_ENTRY_UNSURE | CYP_ENTRY_FRAGMENT | CYP_ENTRY_PROVEN));
}

/* Mark the entry as a fragment: it is sent under another sequence than before, so a refusal does not prove that it is
 * not in the log. The mark is stored before that sequence. */
static inline void cyp_entry_fragment(cyp_entry *entry) {
    cyp_store_release_u32(&entry->flags, cyp_load_relaxed_u32(&entry->flags) | CYP_ENTRY_FRAGMENT);
}

/* Mark an attempt as proven to be in the log: the broker has acknowledged the sequence after the entry's last one. The
 * mark is stored before that acknowledgement is resolved: a successor that finds the acknowledgement also finds the
 * mark. */
static inline void cyp_entry_prove(cyp_entry *entry) {
    cyp_store_release_u32(&entry->flags, cyp_load_relaxed_u32(&entry->flags) | CYP_ENTRY_PROVEN);
}

/* Store the entry's result: a successor publishes it and does not send the entry again. */
static inline void cyp_entry_resolve(cyp_entry *entry, int32_t error, int64_t base_offset, int64_t append_time) {
    CYP_SET(entry->error, error);
    CYP_SET(entry->base_offset, base_offset);
    CYP_SET(entry->append_time, append_time);
    cyp_store_release_u32(&entry->state, CYP_ENTRY_RESOLVED);
}

#endif
