"""The encode loop of `send_array` and `send_arrow`, see bulk.pyx."""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t

from cyproducer.producer.append cimport Chain, Port
from cyproducer.producer.bulk_future cimport BulkFuture
from cyproducer.producer.rows cimport Cursor, Rows
from cyproducer.producer.session cimport Session
from cyproducer.producer.topics cimport Topic


cdef enum Stop:
    SLICE_DONE      # as much as may be encoded in one go
    BIND            # the topic of the row is not bound in this epoch
    NO_ROOM         # nothing is open for the row, or it does not fit
    NEW_BATCH       # the open batch is one that the future does not know, or others have appended to it


cdef struct Target:
    # A topic as far as the loop needs it. Pointers are valid while `epoch` is the loop's.
    Chain *chains
    int32_t partition_count     # as it was when the call began: what keys are spread over
    int32_t sticky
    int32_t lane_base
    uint64_t epoch


cdef class Bulk:
    cdef object producer
    cdef object settings
    cdef Rows rows
    cdef BulkFuture future
    cdef Session session
    cdef Port *port
    cdef Target *targets            # one for each topic of the rows
    cdef uint64_t epoch             # counts whatever may have changed the session: bound pointers are stale
    cdef bint ignore_keys
    cdef bint plain                 # Rows.is_plain
    cdef Py_ssize_t row             # the next one; all before it are queued
    cdef Cursor cursor
    cdef int64_t now                # ms
    cdef int32_t topic              # of the row that the loop stopped at
    cdef int32_t partition
    cdef Py_ssize_t bound
    cdef uint64_t offered_ns        # when the GIL was offered last
    cdef uint64_t hold_end          # `encoded` up to which wake-ups of the sender are held back
    cdef uint64_t encoded           # bytes
    cdef Py_ssize_t oldest          # extent: all before it have an outcome
    cdef uint64_t window            # bytes that may be outstanding
    cdef uint64_t window_check      # `encoded` at which it has to be looked at
    cdef object turn                # our waiter for memory, or None
    cdef object deadline            # of the present wait, or None

    cdef int _check_sizes(self) except -1
    cdef int _find_topics(self, list needed) except -1
    cdef int _run(self) except -1
    cdef Stop _encode(self) noexcept nogil
    cdef Stop _encode_run(self, const Target *target, int32_t topic) noexcept nogil
    cdef Stop _encode_plain_run(self, const Target *target) noexcept nogil
    cdef bint _publish(
        self, const Target *target, Chain *chain, Py_ssize_t end, Py_ssize_t size, int64_t newest
    ) noexcept nogil
    cdef bint _knows_batch(self, int32_t lane, const Chain *chain) noexcept nogil
    cdef int32_t _partition_of(
        self, const Target *target, Py_ssize_t row, const uint8_t **key, Py_ssize_t *key_size
    ) noexcept nogil
    cdef int _bind(self) except -1
    cdef int _note_batch(self) except -1
    cdef int _make_room(self) except -1
    cdef int64_t _timestamp(self) noexcept
    cdef int _had(self, int status) except -1
    cdef int _send_alone(self, Topic topic) except -1
    cdef int _wait(self, int status) except -1
    cdef int _attach(self, object deadline) except -1
    cdef int _between_slices(self) except -1
    cdef void _release_wakes(self) noexcept
    cdef int _limit_outstanding(self) except -1
    cdef uint64_t _outstanding(self, Py_ssize_t *middle) noexcept
