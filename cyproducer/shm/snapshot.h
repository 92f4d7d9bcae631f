/* Defines the cluster's metadata in shared memory: the sender writes it, front-ends read it, and neither side waits.
 *
 * Each topic has a row at its number. Only one word of a row changes, so no row is ever half written. The bytes per
 * partition change too, but they are hints. A change is announced by an entry in a ring and a counter (`published`). A
 * reader that sees the counter sees the row; a reader that is too far behind the ring reads all the rows that it uses.
 * A writer may be killed anywhere: its successor adds missing topics to the index and announces a change of everything,
 * because a row may have been stored but not announced. */
#ifndef CYPRODUCER_SNAPSHOT_H
#define CYPRODUCER_SNAPSHOT_H

#include "cyproducer/shm/atomics.h"
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

/* ------------------------------------------------------------------ index: name -> number */

/* Return the FNV-1a hash. Names that collide on purpose slow down the index for all processes of that user; the size of
 * the index limits this. */
static inline uint64_t cyp_topic_hash(const char *name, uint32_t bytes) {
    uint64_t hash = 0xcbf29ce484222325ull;
    for (uint32_t i = 0; i < bytes; i++) hash = (hash ^ (uint8_t)name[i]) * 0x100000001b3ull;
    return hash ^ hash >> 32;
}

/* Return the number of a topic; CYP_NONE if the index does not have it. Set `place` to its place, or to the free
 * place where it can be entered. */
static inline uint32_t cyp_topic_find(
    const uint64_t *index, const cyp_topic_row *rows, const char *name, uint32_t bytes, uint32_t *place
) {
    uint64_t hash = cyp_topic_hash(name, bytes);
    for (uint32_t step = 0; step < CYP_TOPIC_INDEX_ENTRIES; step++) {
        *place = (uint32_t)(hash + step) & (CYP_TOPIC_INDEX_ENTRIES - 1);
        uint64_t entry = cyp_load_acquire_u64(&index[*place]); /* pairs with cyp_topic_enter: the name is there */
        uint32_t number = (uint32_t)entry - 1;
        if (entry == 0) return CYP_NONE;
        if (entry >> 32 == hash >> 32 && number < CYP_TOPICS_MAX && CYP_GET(rows[number].name_bytes) == bytes
            && memcmp(rows[number].name, name, bytes) == 0) {
            return number;
        }
    }
    return CYP_NONE;
}

/* Enter a topic, whose row has its name already, into the index at the `place` that cyp_topic_find has returned. */
static inline void cyp_topic_enter(uint64_t *index, uint32_t place, uint32_t number, uint64_t hash) {
    /* release: pairs with cyp_topic_find */
    cyp_store_release_u64(&index[place], hash >> 32 << 32 | (number + 1));
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
static inline uint32_t cyp_change_take(const uint64_t *ring, uint64_t position) {
    uint64_t entry = cyp_load_relaxed_u64(&ring[position & (CYP_CHANGES_ENTRIES - 1)]);
    return entry >> 16 == ((position + 1) & ((1ull << 48) - 1)) ? (uint32_t)(entry & 0xffff) : CYP_CHANGE_LOST;
}

#endif
