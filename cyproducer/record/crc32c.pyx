"""Computes the CRC-32C (Castagnoli) of Kafka's record batches; the implementation is chosen at import."""

from libc.stdint cimport uint32_t, uint64_t, uint8_t


cdef extern from "cyproducer/record/crc32c.h" nogil:
    enum:
        CYP_CRC32C_KINDS
    const char *cyp_crc32c_names[]
    int cyp_crc32c_kind
    void cyp_crc32c_init()
    int cyp_crc32c_supported(int kind)
    int cyp_crc32c_use(int kind)
    uint32_t cyp_crc32c(uint32_t crc, const void *data, size_t n)
    uint32_t cyp_crc32c_combine(uint32_t crc1, uint32_t crc2, uint64_t len2)


cyp_crc32c_init()


cdef uint32_t crc32c(uint32_t crc, const void *data, size_t n) noexcept nogil:
    """Return the checksum of the bytes that `crc` covers (a finished value, 0 to start) followed by `n` bytes."""
    return cyp_crc32c(crc, data, n)


cdef uint32_t crc32c_combine(uint32_t crc1, uint32_t crc2, uint64_t len2) noexcept nogil:
    """Return the checksum of A followed by B, from crc(A), crc(B) and the length of B in bytes."""
    return cyp_crc32c_combine(crc1, crc2, len2)


def _checksum(data, uint32_t crc=0):
    """Return the CRC-32C of a bytes-like object; `crc` is the finished checksum of the bytes before it."""
    cdef const uint8_t[::1] view = memoryview(data).cast("B")
    cdef size_t n = view.shape[0]
    cdef uint32_t result = crc
    if n != 0:
        with nogil:
            result = cyp_crc32c(crc, &view[0], n)
    return result


# At compile time the name belongs to the C function above, but it is free in the module's dictionary.
globals()["crc32c"] = _checksum


def combine(uint32_t crc1, uint32_t crc2, uint64_t len2):
    """Return the CRC-32C of A + B from crc32c(A), crc32c(B) and len(B)."""
    return cyp_crc32c_combine(crc1, crc2, len2)


def implementations():
    """Return the names of the implementations that this machine can run, slowest first."""
    return [cyp_crc32c_names[kind].decode() for kind in range(CYP_CRC32C_KINDS) if cyp_crc32c_supported(kind)]


def implementation():
    """Return the name of the implementation in use."""
    return cyp_crc32c_names[cyp_crc32c_kind].decode()


def use_implementation(str name):
    """Switch this process to the implementation `name`, for tests. Raise ValueError if it cannot run here."""
    for kind in range(CYP_CRC32C_KINDS):
        if cyp_crc32c_names[kind].decode() == name and cyp_crc32c_use(kind) == 0:
            return
    raise ValueError(f"CRC-32C implementation {name!r} is not one of {implementations()}")
