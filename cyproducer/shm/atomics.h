/* Every access of shared memory that the two sides' protocol rests on, by kind.
 *
 * Every user of one of these says at the call what it pairs with. The builtins (not volatile) are used so that
 * ThreadSanitizer and the compiler see them. With CYP_ATOMICS defined to a header's name, that header stands in for
 * everything below: so the model checker (tests/model) takes each access as a step of its own.
 *
 * CYP_GET, CYP_SET: data that another word publishes; never accessed by both sides at once. */
#ifndef CYPRODUCER_ATOMICS_H
#define CYPRODUCER_ATOMICS_H

#include <stdbool.h>
#include <stdint.h>

#ifdef CYP_ATOMICS
#include CYP_ATOMICS
#else

/* volatile: one load, although the compiler may think that the place cannot change; a liar changes it */
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

static inline int64_t cyp_load_acquire_i64(const int64_t *word) { return __atomic_load_n(word, __ATOMIC_ACQUIRE); }
static inline void cyp_store_release_i64(int64_t *word, int64_t value) { __atomic_store_n(word, value, __ATOMIC_RELEASE); }
static inline int32_t cyp_load_relaxed_i32(const int32_t *word) { return __atomic_load_n(word, __ATOMIC_RELAXED); }
static inline void cyp_store_relaxed_i32(int32_t *word, int32_t value) { __atomic_store_n(word, value, __ATOMIC_RELAXED); }

/* One compare-and-swap: release on success, so that what was written before is seen by whoever
 * acquires the word; acquire on both outcomes, so that the loser sees what the winner published. */
static inline bool cyp_cas_u64(uint64_t *word, uint64_t expected, uint64_t desired) {
    return __atomic_compare_exchange_n(word, &expected, desired, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
}

/* The StoreLoad barrier of the sleep protocol: "publish, fence, look whether the other side sleeps"
 * pairs with "say that I sleep, fence, look whether something was published". */
static inline void cyp_fence_seq_cst(void) {
#ifdef __SANITIZE_THREAD__
    /* ThreadSanitizer knows no fences. Read-modify-writes of one word order the two sides as well: whoever comes
     * second acquires what the first released. */
    static uint64_t everybody;
    __atomic_fetch_add(&everybody, 1, __ATOMIC_SEQ_CST);
#else
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
#endif
}

/* Orders the plain loads of a copied buffer before the re-read of the word that published it. */
static inline void cyp_fence_acquire(void) { __atomic_thread_fence(__ATOMIC_ACQUIRE); }

#endif
#endif
