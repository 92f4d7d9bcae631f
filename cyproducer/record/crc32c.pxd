"""Declares CRC-32C (Castagnoli) for other extensions: checksum and combination, in this machine's fastest form."""

from libc.stdint cimport uint32_t, uint64_t


cdef uint32_t crc32c(uint32_t crc, const void *data, size_t n) noexcept nogil
cdef uint32_t crc32c_combine(uint32_t crc1, uint32_t crc2, uint64_t len2) noexcept nogil
