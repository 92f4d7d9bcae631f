"""Declares the encode loop of `send_array` and `send_arrow`, see encoder.pyx."""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t

from cyproducer.producer.arena.append cimport Chain, Port
from cyproducer.producer.arena.arena cimport Room
from cyproducer.producer.arena.topic_table cimport Topic
from cyproducer.producer.bulk.bulk_arguments cimport Cursor, Rows
from cyproducer.producer.bulk.bulk_future cimport BulkFuture
from cyproducer.producer.session.session cimport Session
from cyproducer.producer.session.wait_queue cimport Place


cdef enum Stop:
    SLICE_DONE      # the rows of the run, the slice or the call are encoded
    BIND            # the row's topic has not been looked up in this epoch
    NO_ROOM         # no batch is open for the row, or the row does not fit
    NEW_BATCH       # the future does not know the open batch, or other sends have appended to it


cdef struct Target:
    # The data of a topic that the loop needs. Pointers are valid while `epoch` equals Bulk.epoch.
    Chain *chains
    int32_t partition_count     # at the start of the call: keys are hashed over this many
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
    cdef uint64_t epoch             # incremented when the session may have changed: Targets of older epochs are stale
    cdef bint ignore_keys
    cdef bint plain                 # Rows.is_plain
    cdef Py_ssize_t row             # the next row; all rows before it are queued
    cdef Cursor cursor
    cdef int64_t now                # ms
    cdef int32_t topic              # of the row at which the loop stopped
    cdef int32_t partition
    cdef Py_ssize_t bound           # most bytes that the encoded row can have
    cdef uint64_t offered_ns        # monotonic ns: when the GIL was last released for other threads
    cdef uint64_t hold_end          # the sender is not woken before `encoded` reaches this
    cdef uint64_t encoded           # bytes encoded so far
    cdef Py_ssize_t oldest          # index of an extent: all before it have an outcome
    cdef uint64_t window            # most bytes that may be outstanding
    cdef uint64_t window_check      # when `encoded` reaches this, the window is checked
    cdef object retry               # the BlockingRetry of the current wait, or None
    cdef Place place                # of `retry` in the queue for memory, or None

    cdef int _check_sizes(self, Py_ssize_t limit, str limit_name) except -1
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
    cdef int _continue_or_wait(self, Room missing) except -1
    cdef int _block(self, Room missing, Session session, str topic, int32_t needed) except -1
    cdef int _end_wait(self) except -1
    cdef int _send_alone(self, Topic topic) except -1
    cdef int _wait(self, Room missing) except -1
    cdef int _find_session(self) except -1
    cdef int _between_slices(self) except -1
    cdef void _release_wakes(self) noexcept
    cdef int _limit_outstanding(self) except -1
    cdef uint64_t _outstanding(self, Py_ssize_t *middle) noexcept
