"""Implements Kafka's partitioner: murmur2 of the key (Utils.java), and random numbers for the sticky rule (KIP-794)."""


cdef inline uint32_t murmur2(const uint8_t *data, Py_ssize_t size) noexcept nogil:
    """Return Austin Appleby's MurmurHash2 with Java's seed, over little-endian words."""
    cdef uint32_t m = 0x5bd1e995
    cdef uint32_t h = <uint32_t>0x9747b28c ^ <uint32_t>size
    cdef uint32_t k
    cdef Py_ssize_t at = 0
    while at + 4 <= size:
        memcpy(&k, data + at, 4)
        k *= m
        k ^= k >> 24
        k *= m
        h *= m
        h ^= k
        at += 4
    if size - at == 3:
        h ^= <uint32_t>data[at + 2] << 16
    if size - at >= 2:
        h ^= <uint32_t>data[at + 1] << 8
    if size - at >= 1:
        h ^= data[at]
        h *= m
    h ^= h >> 13
    h *= m
    h ^= h >> 15
    return h


cdef inline int32_t key_partition(const uint8_t *key, Py_ssize_t size, int32_t count) noexcept nogil:
    """Return the partition of a key that is not null: one of all partitions, also those without a leader."""
    return <int32_t>((murmur2(key, size) & 0x7fffffff) % <uint32_t>count)


cdef inline uint64_t next_random(uint64_t *state) noexcept nogil:
    """Return the next number of xorshift64*: good enough to spread front-ends over partitions. `state` is not 0."""
    state[0] ^= state[0] >> 12
    state[0] ^= state[0] << 25
    state[0] ^= state[0] >> 27
    return state[0] * <uint64_t>2685821657736338717
