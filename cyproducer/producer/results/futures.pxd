"""Declares Future and Batch, see futures.pyx."""

from libc.stdint cimport int32_t, int64_t, uint32_t, uint64_t

from cyproducer.producer.results.record_metadata cimport RecordMetadata


cdef enum:
    FAR_TIMESTAMP = -0x80000000     # in Future.timestamp_delta: the timestamp is in the batch's `far`


cdef enum:
    ON_DELIVERY         # function(error, metadata)
    ON_DONE             # function(future)
    ON_SUCCESS          # function(metadata)
    ON_ERROR            # function(error)


cdef class Extent:
    # Records of a batch that have a result of their own: the sender has split the batch.
    cdef uint32_t first
    cdef uint32_t count
    cdef int32_t error
    cdef int32_t cause
    cdef int64_t base_offset            # of record `first`; -1: unknown
    cdef int64_t append_time
    cdef str said                       # the reason of `error`, or None


cdef class Batch:
    cdef readonly object session        # None once the outcome is known
    cdef readonly str topic
    cdef readonly list callbacks        # of Run; None: no callback is to be called
    cdef list waiters
    cdef dict far                       # index -> timestamp in ms, for deltas of more than 31 bits
    cdef void **owner                   # pointer in the session's slot table to this batch; NULL: there is none
    cdef uint64_t process               # fork_token() of the process that created the batch
    cdef int64_t base_timestamp         # ms since 1970
    cdef int64_t base_offset            # of the first record; -1: unknown
    cdef int64_t append_time            # ms since 1970, the broker's (LogAppendTime); -1: none
    cdef readonly int32_t partition
    cdef readonly int32_t error         # Kafka's or the client's error code; 0: none
    cdef int32_t cause                  # Kafka's code of the last error before `error`; 0: unknown
    cdef str said                       # the reason of `error`, or None
    cdef list extents                   # of Extent, ascending: they override the results above; None: none
    cdef readonly bint done

    cdef void finish(self, int32_t error, int64_t base_offset, int64_t append_time) noexcept
    cdef Extent extent_of(self, uint32_t index)
    cdef int32_t error_of(self, uint32_t index) noexcept
    cdef object failure(self, uint32_t index)
    cdef object refuse_child(self)


cdef class Future:
    # 40 bytes. No cdef methods: they would add a pointer to the method table.
    cdef Batch batch
    cdef uint32_t index                 # of the record in the batch
    cdef int32_t timestamp_delta        # ms, to batch.base_timestamp; or FAR_TIMESTAMP
    cdef int32_t key_size               # bytes, -1: null
    cdef int32_t value_size             # bytes, -1: null


ctypedef struct Noted:
    # The fields of a record's metadata that are not in its batch.
    uint32_t index
    int32_t timestamp_delta
    int32_t key_size
    int32_t value_size


cdef class Run:
    cdef int kind
    cdef object function
    cdef list futures               # all kinds but ON_DELIVERY
    cdef Noted *noted               # ON_DELIVERY
    cdef uint32_t count
    cdef uint32_t capacity

    cdef int reserve(self) except -1
    cdef void note(self, Future future) noexcept


cdef int64_t offset_in(Batch batch, uint32_t index) noexcept
cdef RecordMetadata metadata_of(Future future)
cdef Batch make_batch(object session, str topic, int32_t partition, int64_t base_timestamp)
cdef Future make_future(Batch batch, uint32_t index, int64_t timestamp, Py_ssize_t key_size, Py_ssize_t value_size)
cdef int set_future(
    Future future, Batch batch, uint32_t index, int64_t timestamp, Py_ssize_t key_size, Py_ssize_t value_size
) except -1
cdef object watch(Future future, int kind, object function)
cdef list fresh_delivery(object function)
cdef bint room_for_delivery(Batch batch, object function, list fresh) except -1
cdef object watch_delivery(Future future, object function, list fresh)
