"""Calls the functions for records and checksums from Python."""


cdef extern from "cyproducer/record/crc32c.h" nogil:
    enum:
        CYP_CRC32C_KINDS
    const char *cyp_crc32c_names[]
    int cyp_crc32c_kind
    int cyp_crc32c_supported(int kind)
    int cyp_crc32c_use(int kind)


def _checksum(data, uint32_t crc=0):
    """Return the CRC-32C of a bytes-like object; `crc` is the finished checksum of the bytes before it."""
    cdef const uint8_t[::1] view = memoryview(data).cast("B")
    cdef size_t n = view.shape[0]
    cdef uint32_t result = crc
    if n != 0:
        with nogil:
            result = crc32c(crc, &view[0], n)
    return result


# At compile time the name belongs to the C function above, but it is free in the module's dictionary.
globals()["crc32c"] = _checksum


def combine(uint32_t crc1, uint32_t crc2, uint64_t len2):
    """Return the CRC-32C of A + B from crc32c(A), crc32c(B) and len(B)."""
    return crc32c_combine(crc1, crc2, len2)


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


def merge(source, int32_t count, int64_t timestamp_shift, int32_t first_offset_delta, target):
    """Call `merge_records` with the bytes `source` and the writable buffer `target`.

    Return (bytes written, largest shifted timestamp delta in ms). Raise ValueError with the reason.
    """
    cdef const uint8_t[::1] read = memoryview(source).cast("B")
    cdef uint8_t[::1] write = memoryview(target).cast("B")
    cdef uint8_t nothing = 0
    cdef const uint8_t *source_at = &read[0] if read.shape[0] else &nothing
    cdef uint8_t *target_at = &write[0] if write.shape[0] else &nothing
    cdef int64_t latest = 0
    cdef int64_t written
    cdef uint32_t largest = 0
    with nogil:
        written = merge_records(
            source_at, read.shape[0], count, timestamp_shift, first_offset_delta,
            target_at, write.shape[0], &latest, &largest,
        )
    if written < 0:
        raise ValueError(records_error(written).decode())
    return written, latest


def check(source, uint32_t count, uint32_t first):
    """Return whether the bytes are exactly `count` records, the first with offset delta `first` (`check_records`)."""
    cdef const uint8_t[::1] read = memoryview(source).cast("B")
    cdef uint8_t nothing = 0
    cdef uint32_t largest = 0
    return check_records(&read[0] if read.shape[0] else &nothing, read.shape[0], count, first, &largest)


def scan(source, int32_t count):
    """Call `scan_records` and return the largest timestamp delta in ms. Raise ValueError with the reason."""
    cdef const uint8_t[::1] read = memoryview(source).cast("B")
    cdef uint8_t nothing = 0
    cdef int64_t latest = 0
    cdef int error = scan_records(&read[0] if read.shape[0] else &nothing, read.shape[0], count, &latest)
    if error != 0:
        raise ValueError(records_error(error).decode())
    return latest
