/* Defines the cluster's metadata in shared memory: the sender writes it, front-ends read it, and neither side waits.
 *
 * Each topic has a row at its number. As long as the row has one name, only one word of it changes, so no row is ever
 * half written. The bytes per partition change too, but they are hints. A change is announced by an entry in a ring and a
 * counter (`published`). A reader that sees the counter sees the row; a reader that is too far behind the ring reads all
 * the rows that it uses. A number can be given back and get another name (batch.h). A writer may be killed anywhere: its
 * successor makes the index anew and announces a change of everything, because a row may have been stored but not
 * announced. */
#ifndef CYPRODUCER_SNAPSHOT_H
#define CYPRODUCER_SNAPSHOT_H

#include "cyproducer/shm/atomics.h"
#include "cyproducer/shm/batch.h"
#include "cyproducer/shm/layout.h"

#include <string.h>

/* The byte of a partition: 0 without a leader, else the weight with which it is drawn for records without a key; 1 for
 * a leader that does not answer. A value other than 0 is a hint that the sender's loop changes without an
 * announcement. */
#define CYP_SHARE_NONE 0u                        /* it has no leader */
#define CYP_SHARE_AVOID 1u
#define CYP_SHARE_FULL 255u
#define CYP_CHANGE_ALL 0xffffu                   /* instead of a topic's number: any row may have changed */
#define CYP_CHANGE_LOST 0xfffffu                 /* the ring holds a later change there */
_Static_assert(CYP_TOPICS_MAX <= CYP_CHANGE_ALL, "a change holds a topic's number in 16 bits");
_Static_assert((CYP_TOPIC_INDEX_ENTRIES & (CYP_TOPIC_INDEX_ENTRIES - 1)) == 0, "a mask");
_Static_assert((CYP_CHANGES_ENTRIES & (CYP_CHANGES_ENTRIES - 1)) == 0, "a mask");

static inline uint64_t cyp_topic_word(int16_t error, uint32_t partitions) {
    return CYP_TOPIC_KNOWN | (uint64_t)(uint16_t)error << CYP_TOPIC_ERROR_SHIFT | partitions;
}
static inline uint32_t cyp_topic_partitions(uint64_t word) { return (uint32_t)word; }
static inline int16_t cyp_topic_error(uint64_t word) { return (int16_t)(uint16_t)(word >> CYP_TOPIC_ERROR_SHIFT); }

/* ------------------------------------------------------------------ names */

static inline uint64_t cyp_name_word(const char *name, uint32_t bytes, uint32_t at) {
    uint64_t word = 0;
    memcpy(&word, name + at, bytes - at < 8 ? bytes - at : 8);
    return word;
}

/* Give a number a name, in a generation that no other name has had. The former name, if any, must be retired. */
static inline void cyp_topic_name(cyp_topic_row *row, const char *name, uint32_t bytes, uint32_t generation) {
    cyp_topic_retire(row); /* its fence pairs with that in cyp_topic_named: who sees a new word sees the odd generation */
    for (uint32_t at = 0; at < bytes; at += 8) {
        cyp_store_relaxed_u64(&row->name_words[at / 8], cyp_name_word(name, bytes, at));
    }
    cyp_store_relaxed_u32(&row->name_bytes, bytes);
    cyp_topic_publish(row, generation);
}

/* Return the generation in which the row has this name; 0 if it does not have it. */
static inline uint32_t cyp_topic_named(const cyp_topic_row *row, const char *name, uint32_t bytes) {
    uint32_t generation = cyp_load_acquire_u32(&row->generation); /* pairs with cyp_topic_publish */
    if ((generation & 1) || cyp_load_relaxed_u32(&row->name_bytes) != bytes) return 0;
    for (uint32_t at = 0; at < bytes; at += 8) {
        if (cyp_load_relaxed_u64(&row->name_words[at / 8]) != cyp_name_word(name, bytes, at)) return 0;
    }
    return cyp_topic_is_valid(row, generation) ? generation : 0;
}

/* ------------------------------------------------------------------ index: name -> number */

/* Return the FNV-1a hash. Names that collide on purpose slow down the index for all processes of that user; the size of
 * the index limits this. */
static inline uint64_t cyp_topic_hash(const char *name, uint32_t bytes) {
    uint64_t hash = 0xcbf29ce484222325ull;
    for (uint32_t i = 0; i < bytes; i++) hash = (hash ^ (uint8_t)name[i]) * 0x100000001b3ull;
    return hash ^ hash >> 32;
}

/* An entry: upper half of the name's hash | the first place for it (16 bits) | number + 1 (16 bits). */
#define CYP_INDEX_MASK (CYP_TOPIC_INDEX_ENTRIES - 1)
_Static_assert(CYP_TOPICS_MAX < 0xffff && CYP_TOPIC_INDEX_ENTRIES <= 0x10000, "two halves of 32 bits");

/* Return the number of a topic, and set `generation` to that in which it has this name; CYP_NONE if the index does not
 * have it. Set `place` to its place, or to the free place where it can be entered. A reader may miss a name whose entry is
 * being moved: the sender then tells it that the name has a number. */
static inline uint32_t cyp_topic_find(
    const uint64_t *index, const cyp_topic_row *rows, const char *name, uint32_t bytes, uint32_t *place,
    uint32_t *generation
) {
    uint64_t hash = cyp_topic_hash(name, bytes);
    for (uint32_t step = 0; step < CYP_TOPIC_INDEX_ENTRIES; step++) {
        *place = (uint32_t)(hash + step) & CYP_INDEX_MASK;
        uint64_t entry = cyp_load_acquire_u64(&index[*place]); /* pairs with cyp_topic_enter: the name is there */
        uint32_t number = (uint32_t)(entry & 0xffff) - 1;
        if (entry == 0) return CYP_NONE;
        if (entry >> 32 != hash >> 32 || number >= CYP_TOPICS_MAX) continue;
        *generation = cyp_topic_named(&rows[number], name, bytes);
        if (*generation) return number;
    }
    return CYP_NONE;
}

/* Enter a topic, whose row has its name already, into the index at the `place` that cyp_topic_find has returned. */
static inline void cyp_topic_enter(uint64_t *index, uint32_t place, uint32_t number, uint64_t hash) {
    /* release: pairs with cyp_topic_find */
    cyp_store_release_u64(
        &index[place], hash >> 32 << 32 | (uint64_t)((uint32_t)hash & CYP_INDEX_MASK) << 16 | (number + 1)
    );
}

/* Return the place of a number whose name has this hash; CYP_NONE if the index does not have it. For the sender. */
static inline uint32_t cyp_topic_place(const uint64_t *index, uint32_t number, uint64_t hash) {
    for (uint32_t step = 0; step < CYP_TOPIC_INDEX_ENTRIES; step++) {
        uint32_t place = (uint32_t)(hash + step) & CYP_INDEX_MASK;
        uint64_t entry = cyp_load_relaxed_u64(&index[place]);
        if (entry == 0) break;
        if ((entry & 0xffff) == number + 1) return place;
    }
    return CYP_NONE;
}

/* Remove the entry at `place`. Later entries move back, each into the place that is left: a search ends at a place that
 * is 0. An entry is at its new place before its old place gets another value. */
static inline void cyp_topic_leave(uint64_t *index, uint32_t place) {
    for (uint32_t at = (place + 1) & CYP_INDEX_MASK;; at = (at + 1) & CYP_INDEX_MASK) {
        uint64_t entry = cyp_load_relaxed_u64(&index[at]);
        if (entry == 0) break;
        uint32_t first = (uint32_t)(entry >> 16) & 0xffff;
        if (((at - first) & CYP_INDEX_MASK) < ((at - place) & CYP_INDEX_MASK)) continue;
        cyp_store_release_u64(&index[place], entry); /* pairs with cyp_topic_find, as cyp_topic_enter */
        place = at;
    }
    cyp_store_release_u64(&index[place], 0);
}

/* ------------------------------------------------------------------ rows */

/* Store the word of a row. Store the leaders' bytes and offset first: a reader of the word then finds all of them. */
static inline void cyp_topic_store(cyp_topic_row *row, uint64_t word) {
    cyp_store_release_u64(&row->word, word); /* pairs with cyp_topic_load */
}

static inline uint64_t cyp_topic_load(const cyp_topic_row *row) { return cyp_load_acquire_u64(&row->word); }

/* Return where the leaders are. Read the word first. Areas only grow, so a later area holds at least as many
 * leaders. */
static inline uint64_t cyp_topic_leaders(const cyp_topic_row *row) {
    return cyp_load_acquire_u64(&row->leaders); /* pairs with cyp_topic_move: the bytes are there */
}

static inline void cyp_topic_move(cyp_topic_row *row, uint32_t at, uint32_t room) {
    cyp_store_release_u64(&row->leaders, (uint64_t)room << 32 | at);
}

/* ------------------------------------------------------------------ changes */

/* Announce that the row of a topic has changed, or all rows (CYP_CHANGE_ALL). */
static inline void cyp_change_put(uint64_t *ring, uint64_t position, uint32_t number) {
    /* relaxed: the entry contains its own position; the counter publishes it */
    cyp_store_relaxed_u64(&ring[position & (CYP_CHANGES_ENTRIES - 1)], (position + 1) << 16 | number);
}

static inline void cyp_change_publish(uint64_t *published, uint64_t position) {
    cyp_store_release_u64(published, position + 1); /* pairs with the acquire of each reader of the counter */
}

/* Return the change at a position below the counter: a topic's number, CYP_CHANGE_ALL, or CYP_CHANGE_LOST. */
static inline uint32_t cyp_change_read(const uint64_t *ring, uint64_t position) {
    uint64_t entry = cyp_load_relaxed_u64(&ring[position & (CYP_CHANGES_ENTRIES - 1)]);
    return entry >> 16 == ((position + 1) & ((1ull << 48) - 1)) ? (uint32_t)(entry & 0xffff) : CYP_CHANGE_LOST;
}

#endif
