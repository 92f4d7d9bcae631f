/* Defines the atomic accesses of shared memory on which the protocol of front-ends and the sender relies.
 *
 * Every call of one of these has a comment that says what it pairs with. They use the builtins, not volatile, so that
 * ThreadSanitizer and the compiler know them. If CYP_ATOMICS is defined as the name of a header, that header replaces
 * everything below: the model checker (tests/model) makes each access a separate step that way.
 *
 * CYP_GET and CYP_SET are for data that another word publishes. The two sides never access it at the same time. */
#ifndef CYPRODUCER_ATOMICS_H
#define CYPRODUCER_ATOMICS_H

#include <stdbool.h>
#include <stdint.h>

#ifdef CYP_ATOMICS
#include CYP_ATOMICS
#else

/* volatile: exactly one load. The compiler may assume that the place does not change, but a hostile process changes
 * it. */
#define CYP_GET(place) (*(const volatile __typeof__(place) *)&(place))
#define CYP_SET(place, value) ((place) = (value))

static inline uint64_t cyp_load_acquire_u64(const uint64_t *word) { return __atomic_load_n(word, __ATOMIC_ACQUIRE); }
static inline uint64_t cyp_load_relaxed_u64(const uint64_t *word) { return __atomic_load_n(word, __ATOMIC_RELAXED); }
static inline void cyp_store_release_u64(uint64_t *word, uint64_t value) { __atomic_store_n(word, value, __ATOMIC_RELEASE); }
static inline void cyp_store_relaxed_u64(uint64_t *word, uint64_t value) { __atomic_store_n(word, value, __ATOMIC_RELAXED); }

static inline uint32_t cyp_load_acquire_u32(const uint32_t *word) { return __atomic_load_n(word, __ATOMIC_ACQUIRE); }
static inline uint32_t cyp_load_relaxed_u32(const uint32_t *word) { return __atomic_load_n(word, __ATOMIC_RELAXED); }
static inline void cyp_store_release_u32(uint32_t *word, uint32_t value) { __atomic_store_n(word, value, __ATOMIC_RELEASE); }
static inline void cyp_store_relaxed_u32(uint32_t *word, uint32_t value) { __atomic_store_n(word, value, __ATOMIC_RELAXED); }

static inline uint8_t cyp_load_relaxed_u8(const uint8_t *at) { return __atomic_load_n(at, __ATOMIC_RELAXED); }
static inline void cyp_store_relaxed_u8(uint8_t *at, uint8_t value) { __atomic_store_n(at, value, __ATOMIC_RELAXED); }

static inline int64_t cyp_load_acquire_i64(const int64_t *word) { return __atomic_load_n(word, __ATOMIC_ACQUIRE); }
static inline void cyp_store_release_i64(int64_t *word, int64_t value) { __atomic_store_n(word, value, __ATOMIC_RELEASE); }
static inline int32_t cyp_load_relaxed_i32(const int32_t *word) { return __atomic_load_n(word, __ATOMIC_RELAXED); }
static inline void cyp_store_relaxed_i32(int32_t *word, int32_t value) { __atomic_store_n(word, value, __ATOMIC_RELAXED); }

/* One compare-and-swap. Release on success: a reader that acquires the word sees everything that was written before.
 * Acquire in both cases: the loser sees what the winner has published. */
static inline bool cyp_cas_u64(uint64_t *word, uint64_t expected, uint64_t desired) {
    return __atomic_compare_exchange_n(word, &expected, desired, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
}

/* The StoreLoad barrier of the sleep protocol: "publish, fence, look whether the other side sleeps"
 * pairs with "announce the sleep, fence, look whether something was published". */
static inline void cyp_fence_seq_cst(void) {
#ifdef __SANITIZE_THREAD__
    /* ThreadSanitizer does not support fences. Read-modify-writes of one word order the two sides too: the second one
     * acquires what the first one has released. */
    static uint64_t everybody;
    __atomic_fetch_add(&everybody, 1, __ATOMIC_SEQ_CST);
#else
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
#endif
}

#endif
#endif
