"""Future and Batch, see futures.pyx."""

from libc.stdint cimport int32_t, int64_t, uint32_t, uint64_t

from cyproducer.producer.record_metadata cimport RecordMetadata


cdef enum:
    FAR_TIMESTAMP = -0x80000000     # in Future.timestamp_delta: the batch's `far` has the timestamp


cdef class Batch:
    cdef readonly object session        # None once the outcome is known
    cdef readonly str topic
    cdef readonly list callbacks        # of Run; None: none are waiting to be called
    cdef list waiters
    cdef dict far                       # index -> timestamp, where the delta has more than 31 bits
    cdef void **owner                   # where the session's slot table points to this; NULL: nowhere
    cdef uint64_t process               # fork_token() of the process that made it
    cdef int64_t base_timestamp
    cdef int64_t base_offset
    cdef int64_t append_time
    cdef readonly int32_t partition
    cdef readonly int32_t error
    cdef readonly bint done

    cdef void finish(self, int32_t error, int64_t base_offset, int64_t append_time) noexcept
    cdef object failure(self)
    cdef object refuse_child(self)


cdef class Future:
    # 40 bytes: a cdef method would add the pointer to their table
    cdef Batch batch
    cdef uint32_t index
    cdef int32_t timestamp_delta
    cdef int32_t key_size
    cdef int32_t value_size


ctypedef struct Noted:
    # What the metadata of a record needs besides its batch.
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


cdef RecordMetadata metadata_of(Future future)
cdef Batch make_batch(object session, str topic, int32_t partition, int64_t base_timestamp)
cdef Future make_future(Batch batch, uint32_t index, int64_t timestamp, Py_ssize_t key_size, Py_ssize_t value_size)
cdef int set_future(
    Future future, Batch batch, uint32_t index, int64_t timestamp, Py_ssize_t key_size, Py_ssize_t value_size
) except -1
cdef list fresh_delivery(object function)
cdef bint room_for_delivery(Batch batch, object function, list fresh) except -1
cdef object watch_delivery(Future future, object function, list fresh)
