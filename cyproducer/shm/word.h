/* Builds and reads slot words: state, HEAD, CONT, generation, record count and bytes in 64 bits (diagram in layout.h).
 *
 * This is arithmetic only; the transitions of the word in shared memory are in slot.h. */
#ifndef CYPRODUCER_WORD_H
#define CYPRODUCER_WORD_H

#include <stdbool.h>
#include <stdint.h>

#include "cyproducer/shm/layout.h"

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

#endif
