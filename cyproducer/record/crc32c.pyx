"""Declares the CRC-32C (Castagnoli) of record batches, and chooses its implementation when the module is imported."""


cdef extern from "cyproducer/record/crc32c.h" nogil:
    void cyp_crc32c_init() noexcept
    # The checksum of the bytes that `crc` covers (a finished value, 0 to start) followed by `n` bytes.
    uint32_t crc32c "cyp_crc32c"(uint32_t crc, const void *data, size_t n) noexcept
    # The checksum of A followed by B, from crc(A), crc(B) and the length of B in bytes.
    uint32_t crc32c_combine "cyp_crc32c_combine"(uint32_t crc1, uint32_t crc2, uint64_t len2) noexcept


cyp_crc32c_init()
