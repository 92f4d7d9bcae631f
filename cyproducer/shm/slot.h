/* What may happen to a slot: each transition of its word, with the order in which the row is written and read.
 *
 * The owner opens, commits, rolls, closes and frees; the sender seals what is open, and marks what is done or
 * revoked. All but `free` are one CAS of the word with the value that the caller saw last, so that whoever loses a
 * race learns it and has changed nothing. The generation is part of the word: who acts for a batch that is gone
 * fails. Reference: the diagram in layout.h. */
#ifndef CYPRODUCER_SLOT_H
#define CYPRODUCER_SLOT_H

#include "cyproducer/shm/atomics.h"
#include "cyproducer/shm/word.h"

/* Attempts of a seal against a front-end that changes its word for ever. */
#ifndef CYP_SEAL_ATTEMPTS
#define CYP_SEAL_ATTEMPTS 10000u
#endif

/* ------------------------------------------------------------------ the owner */

/* FREE -> `opened` (OPEN, or READY with everything in it). False: the sender has revoked this front-end. */
static inline bool cyp_slot_open(cyp_slot_row *row, uint32_t generation, uint64_t opened) {
    /* release: the filled row, and records of a READY word, are seen with it; pairs with the acquires of
     * cyp_slot_peek and cyp_slot_seal */
    return cyp_cas_u64(&row->word, cyp_word_make(CYP_FREE, 0, generation, 0, 0), opened);
}

/* The owner's hint of the largest timestamp among the chunk's first `count` records. `raised`: it is larger than
 * the one before. Stored before the commit that it describes, which may still fail. */
static inline void cyp_slot_hint(cyp_slot_row *row, uint32_t count, int64_t max_timestamp, bool raised) {
    cyp_store_relaxed_u32(&row->max_count, count);
    if (raised) {
        /* release: whoever sees this timestamp sees the count that it belongs to; pairs with cyp_slot_hinted */
        cyp_store_release_i64(&row->max_timestamp, max_timestamp);
    }
}

/* The records behind the committed tail are in the batch, `desired` says how many. False: it was sealed without. */
static inline bool cyp_slot_commit(cyp_slot_row *row, uint64_t seen, uint64_t desired) {
    /* release: the records are seen with the word; pairs with the acquire of cyp_slot_seal */
    return cyp_cas_u64(&row->word, seen, desired);
}

/* The batch goes on in chunk `next`, which is open already. False: it was sealed before. */
static inline bool cyp_slot_roll(cyp_slot_row *row, uint64_t seen, uint32_t next) {
    CYP_SET(row->next, next);
    /* release: `next`, and the row of that chunk, are seen by whoever follows CONT; pairs with cyp_slot_seal */
    return cyp_cas_u64(&row->word, seen, cyp_word_with_state(seen, CYP_READY) | CYP_WORD_CONT);
}

/* OPEN -> READY: the owner gives the batch to the sender. False: the sender had taken it. */
static inline bool cyp_slot_close(cyp_slot_row *row, uint64_t seen) {
    return cyp_cas_u64(&row->word, seen, cyp_word_with_state(seen, CYP_READY)); /* pairs with cyp_slot_seal */
}

/* `bytes` of the records of a batch, `raw_bytes` long and compressed, lie in the chunk of `row`, and go on in that of slot
 * `next`, if any. To all others such a chunk stays FREE. */
static inline void cyp_slot_packed(
    cyp_slot_row *row, uint64_t open_seq, uint32_t raw_bytes, uint32_t bytes, uint32_t next
) {
    CYP_SET(row->open_seq, open_seq);
    CYP_SET(row->chunk_bytes, raw_bytes);
    CYP_SET(row->max_count, bytes);
    CYP_SET(row->next, next);
}

/* The compressed records begin in slot `packed`. `last` is the batch's last chunk, which does not go on: its `next` is not
 * in use. */
static inline void cyp_slot_offer(cyp_slot_row *last, uint32_t packed) {
    cyp_store_release_u32(&last->next, packed); /* chunks and rows are seen with it; pairs with cyp_slot_offered */
}

/* -> FREE with the next generation; only after the outcome, or of a chunk that the sender never heard of. */
static inline void cyp_slot_free(cyp_slot_row *row, uint32_t next_generation) {
    /* release: nothing that was written to the old batch can pass its end; pairs with the acquires of the word */
    cyp_store_release_u64(&row->word, cyp_word_make(CYP_FREE, 0, next_generation, 0, 0));
}

/* -> REVOKED, count and bytes as they were: the owner takes a batch back from a sender that is gone. A sender that
 * should live finds nothing in this slot any more. The word as it is then. */
static inline uint64_t cyp_slot_take_back(cyp_slot_row *row) {
    for (;;) {
        uint64_t seen = cyp_load_acquire_u64(&row->word); /* pairs with the sender's CAS in cyp_slot_seal */
        uint64_t revoked = cyp_word_with_state(seen, CYP_REVOKED);
        if (seen == revoked || cyp_cas_u64(&row->word, seen, revoked)) return revoked;
    }
}

/* ------------------------------------------------------------------ the sender */

/* The word, so that the row is seen as of its commit. */
static inline uint64_t cyp_slot_peek(const cyp_slot_row *row) {
    return cyp_load_acquire_u64(&row->word); /* pairs with the owner's CAS: open, commit, roll, close */
}

/* The word, for an estimate: nothing else of the row is read after it. */
static inline uint64_t cyp_slot_glance(const cyp_slot_row *row) { return cyp_load_relaxed_u64(&row->word); }

/* Is this the word of a batch of `generation` that holds records nobody has taken or finished? */
static inline bool cyp_word_is_live(uint64_t word, uint32_t generation) {
    uint32_t state = cyp_word_state(word);
    return cyp_word_generation(word) == generation && (word & CYP_WORD_HEAD)
        && (state == CYP_OPEN || state == CYP_READY);
}

/* Is this the word of a batch of `generation` that a sender has sealed? */
static inline bool cyp_word_is_taken(uint64_t word, uint32_t generation) {
    return cyp_word_generation(word) == generation && (word & CYP_WORD_HEAD) && cyp_word_state(word) == CYP_TAKEN;
}

/* The sealed word of a chunk, taking it if it is open; 0 if it is none of a live chain. `room`: bytes from its
 * start to the arena's end. `generation` is that of the batch, looked at in its head. */
static inline uint64_t cyp_slot_seal(cyp_slot_row *row, bool head, uint32_t generation, uint64_t room) {
    for (uint32_t attempt = 0; attempt < CYP_SEAL_ATTEMPTS; attempt++) {
        uint64_t seen = cyp_slot_peek(row);
        uint32_t state = cyp_word_state(seen);
        if (head != ((seen & CYP_WORD_HEAD) != 0) || (head && cyp_word_generation(seen) != generation)) return 0;
        if (cyp_word_bytes(seen) > room) return 0;
        if (cyp_word_count(seen) > CYP_BLOCK_BYTES / CYP_RECORD_BYTES_MIN) return 0;
        if (state == CYP_READY || state == CYP_TAKEN) return seen;
        if (state != CYP_OPEN) return 0;
        uint64_t taken = cyp_word_with_state(seen, CYP_TAKEN);
        /* acquire: pairs with the owner's commit, the records are seen whole; its next commit fails */
        if (cyp_cas_u64(&row->word, seen, taken)) return taken;
    }
    return 0;
}

/* Where the packed records of a batch may be, after the word of its last chunk; CYP_NONE: not there, or not yet. Of a
 * front-end that breaks the protocol it may be anything. */
static inline uint32_t cyp_slot_offered(const cyp_slot_row *last) {
    return cyp_load_acquire_u32(&last->next); /* pairs with cyp_slot_offer */
}

/* Where the batch goes on, after a word with CONT. */
static inline uint32_t cyp_slot_next(const cyp_slot_row *row) { return CYP_GET(row->next); }

/* The largest timestamp of a sealed chunk, if the owner's hint is about the records that `word` counts. */
static inline bool cyp_slot_hinted(const cyp_slot_row *row, uint64_t word, int64_t *max_timestamp) {
    *max_timestamp = cyp_load_acquire_i64(&row->max_timestamp); /* pairs with cyp_slot_hint: timestamp, then count */
    return cyp_load_relaxed_u32(&row->max_count) == cyp_word_count(word);
}

/* -> DONE: the sender takes no hint about this batch any more. Nothing happens if its generation has ended. */
static inline void cyp_slot_done(cyp_slot_row *row, uint32_t generation) {
    uint64_t seen = cyp_slot_peek(row);
    if (cyp_word_generation(seen) == generation) {
        cyp_cas_u64(&row->word, seen, cyp_word_with_state(seen, CYP_DONE));
    }
}

/* The end of a front-end: a slot that is FREE, or the head of a batch without records, becomes REVOKED; its owner, should
 * it live, opens and commits nothing here any more. The word as it is then. */
static inline uint64_t cyp_slot_revoke(cyp_slot_row *row) {
    uint64_t seen = cyp_slot_peek(row);
    for (uint32_t attempt = 0; attempt < CYP_SEAL_ATTEMPTS; attempt++) {
        uint32_t state = cyp_word_state(seen);
        bool empty = state == CYP_OPEN && (seen & CYP_WORD_HEAD) && !cyp_word_continues(seen) && !cyp_word_count(seen);
        if (state != CYP_FREE && !empty) break;
        uint64_t revoked = cyp_word_with_state(seen, CYP_REVOKED);
        if (cyp_cas_u64(&row->word, seen, revoked)) return revoked; /* the owner's open or commit fails */
        seen = cyp_slot_peek(row);
    }
    return seen;
}

/* ------------------------------------------------------------------ SENT words: one per slot, written by the sender */

/* Before the first byte of the batch may leave. */
static inline void cyp_sent_mark(uint32_t *sent, uint32_t generation) {
    cyp_store_release_u32(sent, generation + 1); /* pairs with the death of the sender: see cyp_sent_is */
}

/* May records of this batch be in the broker's log? Asked when the sender is known to be dead, which orders it. */
static inline bool cyp_sent_is(const uint32_t *sent, uint32_t generation) {
    return cyp_load_relaxed_u32(sent) == generation + 1;
}

#endif
