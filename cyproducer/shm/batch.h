/* Implements what shared memory keeps of a batch: its slots, which its owner and the sender change, and its entry in the
 * state region, which only a sender writes.
 *
 * A slot word has state, HEAD, CONT, generation, record count and bytes in 64 bits. The owner opens, commits, rolls, closes
 * and frees, and takes a batch back from a sender that is gone; the sender seals open batches and marks slots done or
 * revoked. All but `free` are a CAS of the word against the value that was seen last: the loser of a race notices it and
 * has changed nothing. The generation is part of the word, so an operation on a batch that is gone fails. Reference: the
 * diagram in layout.h. */
#ifndef CYPRODUCER_BATCH_H
#define CYPRODUCER_BATCH_H

#include <stdbool.h>
#include <stdint.h>

#include "cyproducer/shm/atomics.h"
#include "cyproducer/shm/layout.h"

/* The number of attempts of a seal: a hostile front-end may change its word for ever. */
#ifndef CYP_SEAL_ATTEMPTS
#define CYP_SEAL_ATTEMPTS 10000u
#endif

/* ------------------------------------------------------------------ the word: arithmetic only */

/* `flags` is any of CYP_WORD_HEAD, CYP_WORD_CONT. */
static inline uint64_t cyp_word_make(uint32_t state, uint64_t flags, uint32_t generation, uint32_t count, uint32_t size) {
    return (uint64_t)state << CYP_WORD_STATE_SHIFT | flags
        | ((uint64_t)generation & CYP_WORD_GENERATION_MASK) << CYP_WORD_GENERATION_SHIFT
        | (uint64_t)count << CYP_WORD_COUNT_SHIFT | size;
}

static inline uint32_t cyp_word_state(uint64_t word) { return (uint32_t)(word >> CYP_WORD_STATE_SHIFT); }

static inline uint32_t cyp_word_generation(uint64_t word) {
    return (uint32_t)(word >> CYP_WORD_GENERATION_SHIFT & CYP_WORD_GENERATION_MASK);
}

static inline uint32_t cyp_word_count(uint64_t word) {
    return (uint32_t)(word >> CYP_WORD_COUNT_SHIFT & CYP_WORD_COUNT_MASK);
}

static inline uint32_t cyp_word_bytes(uint64_t word) { return (uint32_t)(word & CYP_WORD_BYTES_MASK); }

static inline bool cyp_word_continues(uint64_t word) { return (word & CYP_WORD_CONT) != 0; }

static inline uint64_t cyp_word_with_state(uint64_t word, uint32_t state) {
    return (word & ((1ull << CYP_WORD_STATE_SHIFT) - 1)) | (uint64_t)state << CYP_WORD_STATE_SHIFT;
}

/* Return the word after `count` more records, `size` bytes in all, were written behind the committed tail. */
static inline uint64_t cyp_word_with_records(uint64_t word, uint32_t count, uint32_t size) {
    return word + ((uint64_t)count << CYP_WORD_COUNT_SHIFT) + size;
}

/* Return the next generation; it wraps. */
static inline uint32_t cyp_next_generation(uint32_t generation) {
    return (generation + 1) & (uint32_t)CYP_WORD_GENERATION_MASK;
}

/* ------------------------------------------------------------------ the owner */

/* FREE -> `opened` (OPEN, or READY if it is complete). Return false if the sender has revoked this front-end. */
static inline bool cyp_slot_open(cyp_slot_row *row, uint32_t generation, uint64_t opened) {
    /* release: the filled row, and records of a READY word, are seen with it; pairs with the acquires of
     * cyp_slot_peek and cyp_slot_seal */
    return cyp_cas_u64(&row->word, cyp_word_make(CYP_FREE, 0, generation, 0, 0), opened);
}

/* Store the owner's hint of the largest timestamp among the chunk's first `count` records. `raised`: it is larger than
 * the hint before. It is stored before the commit that it describes; that commit may still fail. */
static inline void cyp_slot_hint(cyp_slot_row *row, uint32_t count, int64_t max_timestamp, bool raised) {
    cyp_store_relaxed_u32(&row->max_count, count);
    if (raised) {
        /* release: a reader of this timestamp sees the count that belongs to it; pairs with cyp_slot_hinted */
        cyp_store_release_i64(&row->max_timestamp, max_timestamp);
    }
}

/* Commit the records behind the committed tail; `desired` is the word that counts them. Return false if the batch was
 * sealed before: the records are not in it. */
static inline bool cyp_slot_commit(cyp_slot_row *row, uint64_t seen, uint64_t desired) {
    /* release: the records are seen with the word; pairs with the acquire of cyp_slot_seal */
    return cyp_cas_u64(&row->word, seen, desired);
}

/* Continue the batch in chunk `next`, which is open already. Return false if the batch was sealed before. */
static inline bool cyp_slot_roll(cyp_slot_row *row, uint64_t seen, uint32_t next) {
    CYP_SET(row->next, next);
    /* release: a reader that follows CONT sees `next` and the row of that chunk; pairs with cyp_slot_seal */
    return cyp_cas_u64(&row->word, seen, cyp_word_with_state(seen, CYP_READY) | CYP_WORD_CONT);
}

/* OPEN -> READY: the owner gives the batch to the sender. Return false if the sender had taken it before. */
static inline bool cyp_slot_close(cyp_slot_row *row, uint64_t seen) {
    return cyp_cas_u64(&row->word, seen, cyp_word_with_state(seen, CYP_READY)); /* pairs with cyp_slot_seal */
}

/* Describe a chunk of compressed records: `bytes` of them are in the chunk of `row`, and they continue in slot `next`,
 * if any. `raw_bytes`: the size of the batch's raw records. The word of such a chunk stays FREE. */
static inline void cyp_slot_packed(
    cyp_slot_row *row, uint64_t open_seq, uint32_t raw_bytes, uint32_t bytes, uint32_t next
) {
    CYP_SET(row->open_seq, open_seq);
    CYP_SET(row->chunk_bytes, raw_bytes);
    CYP_SET(row->max_count, bytes);
    CYP_SET(row->next, next);
}

/* Offer the compressed records, which begin in slot `packed`. `last` is the batch's last chunk: it has no CONT, so its
 * `next` is not in use. */
static inline void cyp_slot_offer(cyp_slot_row *last, uint32_t packed) {
    cyp_store_release_u32(&last->next, packed); /* chunks and rows are seen with it; pairs with cyp_slot_offered */
}

/* -> FREE with the next generation. Call this only after the outcome, or for a chunk that the sender does not know. */
static inline void cyp_slot_free(cyp_slot_row *row, uint32_t next_generation) {
    /* release: all writes to the old batch come before its end; pairs with the acquires of the word */
    cyp_store_release_u64(&row->word, cyp_word_make(CYP_FREE, 0, next_generation, 0, 0));
}

/* -> REVOKED, with count and bytes unchanged: the owner takes a batch back from a sender that is gone. A sender that is
 * alive after all cannot take this slot any more. Return the new word. */
static inline uint64_t cyp_slot_reclaim(cyp_slot_row *row) {
    for (;;) {
        uint64_t seen = cyp_load_acquire_u64(&row->word); /* pairs with the sender's CAS in cyp_slot_seal */
        uint64_t revoked = cyp_word_with_state(seen, CYP_REVOKED);
        if (seen == revoked || cyp_cas_u64(&row->word, seen, revoked)) return revoked;
    }
}

/* ------------------------------------------------------------------ the sender */

/* Return the word; the row is then seen as it was at the commit of this word. */
static inline uint64_t cyp_slot_peek(const cyp_slot_row *row) {
    return cyp_load_acquire_u64(&row->word); /* pairs with the owner's CAS: open, commit, roll, close */
}

/* Return the topic of the batch that starts here and is not finished, as its row has it; CYP_NONE if there is none. */
static inline uint32_t cyp_slot_topic(const cyp_slot_row *row) {
    uint64_t seen = cyp_slot_peek(row);
    uint32_t state = cyp_word_state(seen);
    if (!(seen & CYP_WORD_HEAD) || state < CYP_OPEN || state > CYP_TAKEN) return CYP_NONE;
    return cyp_load_relaxed_u32(&row->topic);
}

/* Return the word for an estimate. Do not read the rest of the row after it. */
static inline uint64_t cyp_slot_glance(const cyp_slot_row *row) { return cyp_load_relaxed_u64(&row->word); }

/* Return whether this is the word of a batch of `generation` that was neither taken nor finished. */
static inline bool cyp_word_is_live(uint64_t word, uint32_t generation) {
    uint32_t state = cyp_word_state(word);
    return cyp_word_generation(word) == generation && (word & CYP_WORD_HEAD)
        && (state == CYP_OPEN || state == CYP_READY);
}

/* Return whether this is the word of a batch of `generation` that a sender has sealed. */
static inline bool cyp_word_is_taken(uint64_t word, uint32_t generation) {
    return cyp_word_generation(word) == generation && (word & CYP_WORD_HEAD) && cyp_word_state(word) == CYP_TAKEN;
}

/* Seal a chunk if it is open. Return its sealed word; 0 if the chunk does not belong to a live chain. `room`: bytes
 * from the chunk's start to the arena's end. `generation`: of the batch; it is checked in the head only. */
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
        /* acquire: pairs with the owner's commit: the records are seen complete. The owner's next commit fails. */
        if (cyp_cas_u64(&row->word, seen, taken)) return taken;
    }
    return 0;
}

/* Return the slot where the packed records of a batch may begin; CYP_NONE: none are there yet. Read the word of the
 * batch's last chunk first. The value may be anything if the front-end breaks the protocol. */
static inline uint32_t cyp_slot_offered(const cyp_slot_row *last) {
    return cyp_load_acquire_u32(&last->next); /* pairs with cyp_slot_offer */
}

/* Return the slot where the batch continues. Read a word with CONT first. */
static inline uint32_t cyp_slot_next(const cyp_slot_row *row) { return CYP_GET(row->next); }

/* Return whether the owner's hint is about the records that `word` counts. Set `max_timestamp` to the largest timestamp
 * of that sealed chunk. */
static inline bool cyp_slot_hinted(const cyp_slot_row *row, uint64_t word, int64_t *max_timestamp) {
    *max_timestamp = cyp_load_acquire_i64(&row->max_timestamp); /* pairs with cyp_slot_hint: timestamp, then count */
    return cyp_load_relaxed_u32(&row->max_count) == cyp_word_count(word);
}

/* -> DONE: the sender ignores later hints about this batch. Do nothing if the batch's generation has ended. */
static inline void cyp_slot_done(cyp_slot_row *row, uint32_t generation) {
    uint64_t seen = cyp_slot_peek(row);
    if (cyp_word_generation(seen) == generation) {
        cyp_cas_u64(&row->word, seen, cyp_word_with_state(seen, CYP_DONE));
    }
}

/* FREE, or the head of a batch without records -> REVOKED, at the end of a front-end: an owner that is still alive
 * cannot open or commit anything in this slot any more. Return the new word; the old one in any other state. */
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

/* ------------------------------------------------------------------ the last batch of an owner that may live
 *
 * A sender that ends releases a front-end, and it detaches one that has hung up. Then it looks at the slots, takes what
 * was committed, and revokes the others. It writes no page of the slot table that the owner has not written, and the
 * owner frees the slots of finished batches later. So the owner may open a slot after the sender has looked at it. Each
 * batch begins without records, and the owner looks at the control word before it commits the first one. */

/* The sender takes no further batch from this front-end. `why` is RELEASED or DETACHED. It must look at all slots of the
 * front-end after this. */
static inline void cyp_control_end(uint32_t *control, uint32_t why) {
    cyp_store_release_u32(control, why);
    cyp_fence_seq_cst(); /* pairs with that in cyp_may_commit: the owner sees the word, or the sender sees the slot open */
}

/* Return whether records may be committed to a batch. The owner calls this after it has opened its first slot. */
static inline bool cyp_may_commit(const uint32_t *control) {
    cyp_fence_seq_cst(); /* pairs with that in cyp_control_end */
    uint32_t seen = cyp_load_relaxed_u32(control);
    return seen != CYP_CONTROL_RELEASED && seen != CYP_CONTROL_DETACHED;
}

/* Return whether the owner should open a slot: the sender is not ending, as far as is known. */
static inline bool cyp_may_open(const uint32_t *control) {
    return cyp_load_relaxed_u32(control) != CYP_CONTROL_RELEASED;
}

/* ------------------------------------------------------------------ the number of a batch's topic
 *
 * A number can be given back and get another name; its generation shows that. A front-end opens a slot with a number and
 * then looks at the generation of the number. The sender makes the generation odd and then looks for open slots with the
 * number. So the front-end commits nothing, or the sender finds the slot. */

/* What a slot row has as its topic: the number, and above it the low bits of the generation. */
#define CYP_TOPIC_NUMBER_BITS 14
_Static_assert(CYP_TOPICS_MAX == 1u << CYP_TOPIC_NUMBER_BITS, "an id holds every number");

static inline uint32_t cyp_topic_id(uint32_t number, uint32_t generation) {
    return generation << CYP_TOPIC_NUMBER_BITS | number;
}
static inline uint32_t cyp_topic_id_number(uint32_t id) { return id & (CYP_TOPICS_MAX - 1); }

/* Return whether a number that was read with this generation still has its name. The owner calls this after it has opened
 * a slot with the number, before it commits the first record. */
static inline bool cyp_topic_is_valid(const cyp_topic_row *row, uint32_t generation) {
    cyp_fence_seq_cst(); /* pairs with that in cyp_topic_retire */
    return cyp_load_relaxed_u32(&row->generation) == generation;
}

/* Retire a number, of which no further batch can be opened then. The sender must look for open slots with the number
 * after this, before the number gets another name. */
static inline void cyp_topic_retire(cyp_topic_row *row) {
    cyp_store_relaxed_u32(&row->generation, cyp_load_relaxed_u32(&row->generation) | 1);
    cyp_fence_seq_cst(); /* pairs with that in cyp_topic_is_valid: the owner sees the odd value, or the sender the slot */
}

/* Let the number have the name in its row, in this generation, which is even. */
static inline void cyp_topic_publish(cyp_topic_row *row, uint32_t generation) {
    /* release: pairs with the acquire in cyp_topic_named: the name is there */
    cyp_store_release_u32(&row->generation, generation);
}

/* Let a retired number keep its name. The generation is the former one: an owner that has opened a slot meanwhile has not
 * committed, or does so with the right name, and the next search finds the slot. */
static inline void cyp_topic_keep(cyp_topic_row *row) {
    cyp_topic_publish(row, cyp_load_relaxed_u32(&row->generation) & ~1u);
}

/* Return the generation in which the next name can have the number. */
static inline uint32_t cyp_topic_next_generation(const cyp_topic_row *row) {
    return (cyp_load_relaxed_u32(&row->generation) | 1) + 1;
}

/* ------------------------------------------------------------------ SENT words: one per slot, written by the sender */

/* Mark a batch as sent. The sender calls this before it writes the first byte of the batch to a socket. */
static inline void cyp_sent_mark(uint32_t *sent, uint32_t generation) {
    cyp_store_release_u32(sent, generation + 1); /* pairs with the death of the sender: see cyp_sent_is */
}

/* Return whether records of this batch may be in the broker's log. The answer is certain when the sender is known to be
 * dead: the process's end orders its stores before this load. Before, it is a hint. */
static inline bool cyp_sent_is(const uint32_t *sent, uint32_t generation) {
    return cyp_load_relaxed_u32(sent) == generation + 1;
}

/* ------------------------------------------------------------------ the entry
 *
 * The steps of an entry of the state region, in order. If a sender dies between two, its successor continues.
 *
 * fill -> assign -> SENT words and unsure -> write to the socket -> response -> resolve -> acked_end
 * -> outcomes (rings.h) -> free. Only one sender writes at a time, and the state must survive only the death of that
 * process. So the releases only keep the compiler from reordering the stores. They pair with the end of the process:
 * the successor waits for that end before it reads. */

/* The entry enters a state (enum cyp_entry_state); everything that was stored before is seen with it. ASSIGNED: the
 * entry is filled, and from here on a successor sends it. FREE: all outcomes are published, nothing is left to do. */
static inline void cyp_entry_enter(cyp_entry *entry, uint32_t state) { cyp_store_release_u32(&entry->state, state); }

/* Count an attempt and mark the entry as unsure, after the SENT words and before the first byte is written: a successor
 * then knows that an attempt may already be in the log. */
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
