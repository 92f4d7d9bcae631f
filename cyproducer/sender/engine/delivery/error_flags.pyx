"""Says what a broker's error means for a batch: the flags of cyproducer/error_table.py, for code without the GIL.

The flags are read from the table when the sender starts. An unknown code counts as UNKNOWN_SERVER_ERROR.
"""

from libc.stdint cimport int32_t, uint8_t

from cyproducer.error_table import ERRORS


cdef enum:
    CODES_MAX = 256                 # the codes begin with -1
    RETRIABLE = 1
    STALE_METADATA = 2
    APPENDED_MAYBE = 4
    CONTENT = 8


cdef uint8_t _flags[CODES_MAX]


def _fill():
    """Copy the flags of the table."""
    for code in range(-1, CODES_MAX - 1):
        error = ERRORS.get(code, ERRORS[-1])
        _flags[code + 1] = (
            RETRIABLE * error.retriable
            | STALE_METADATA * error.refresh_metadata
            | APPENDED_MAYBE * error.may_be_appended
            | CONTENT * error.blames_records
        )


_fill()


cdef inline uint8_t _flags_of(int32_t error) noexcept nogil:
    return _flags[error + 1 if -1 <= error < CODES_MAX - 1 else 0]


cdef bint is_retriable(int32_t error) noexcept nogil:
    """Return whether the batch is sent again (Kafka's RetriableException)."""
    return _flags_of(error) & RETRIABLE != 0


cdef bint is_stale_metadata(int32_t error) noexcept nogil:
    """Return whether the metadata must be refreshed (Kafka's InvalidMetadataException)."""
    return _flags_of(error) & STALE_METADATA != 0


cdef bint is_appended_maybe(int32_t error) noexcept nogil:
    """Return whether the error can also concern records that the leader has appended and that wait for other replicas.

    See DelayedProduce.tryComplete and onComplete in Kafka: while the request waits, the partition leaves this broker or
    its disk, has too few replicas, or the time is up. With acks=1 a request does not wait for replicas.
    """
    return _flags_of(error) & APPENDED_MAYBE != 0


cdef bint is_content(int32_t error) noexcept nogil:
    """Return whether the error is caused by the content of the batch."""
    return _flags_of(error) & CONTENT != 0


def flags_of(int32_t error):
    """Return (retriable, refresh_metadata, may_be_appended, blames_records) as native code sees them, for tests."""
    return is_retriable(error), is_stale_metadata(error), is_appended_maybe(error), is_content(error)
