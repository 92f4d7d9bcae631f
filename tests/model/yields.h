/* Replaces the accesses of cyproducer/shm/atomics.h (CYP_ATOMICS): each goes through the explorer's memory. */
#ifndef MODEL_YIELDS_H
#define MODEL_YIELDS_H

#include "machine.h"

#define CYP_GET(place) ((__typeof__(place))model_get(&(place)))
#define CYP_SET(place, value) model_set(&(place), (uint64_t)(value))

#define MODEL_ACCESSES(type, suffix) \
    static inline type cyp_load_acquire_##suffix(const type *word) { return (type)model_load(word, true); } \
    static inline type cyp_load_relaxed_##suffix(const type *word) { return (type)model_load(word, false); } \
    static inline void cyp_store_release_##suffix(type *word, type value) { model_store(word, (uint64_t)value, true); } \
    static inline void cyp_store_relaxed_##suffix(type *word, type value) { model_store(word, (uint64_t)value, false); }
MODEL_ACCESSES(uint64_t, u64)
MODEL_ACCESSES(uint32_t, u32)
MODEL_ACCESSES(int64_t, i64)
MODEL_ACCESSES(int32_t, i32)
MODEL_ACCESSES(uint8_t, u8)

static inline bool cyp_cas_u64(uint64_t *word, uint64_t expected, uint64_t desired) {
    return model_cas(word, expected, desired);
}

static inline void cyp_fence_seq_cst(void) { model_fence(); }

#endif
