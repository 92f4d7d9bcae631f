"""A front-end's attachment to one sender, see session.pyx."""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t

from cyproducer.producer.arena cimport Arena
from cyproducer.producer.futures cimport Batch
from cyproducer.producer.topics cimport Topic
from cyproducer.record.encode cimport HeaderView
from cyproducer.shm.layout cimport cyp_arena_header, cyp_outcome, cyp_outcomes_header
from cyproducer.shm.snapshot cimport SnapshotReader


cdef class Session(Arena):
    cdef const uint64_t *sentinel           # equals `token` as long as the session may be used
    cdef uint64_t token
    cdef Topic cached_topic
    cdef str cached_name
    cdef const cyp_outcomes_header *outcomes
    cdef const cyp_outcome *outcome_ring
    cdef const uint32_t *sent
    cdef const uint64_t *published          # of the snapshot
    cdef uint64_t seen_version
    cdef uint64_t outcome_head
    cdef uint64_t checked_ns                # when the control socket was looked at last
    cdef uint32_t epoch
    cdef uint32_t snapshot_epoch
    cdef int sleepers
    cdef int socket_fd
    cdef int wake_fd
    cdef uint64_t own_wake_device          # identity of wake_fd
    cdef uint64_t own_wake_inode
    cdef list finished                      # batches whose waiters and callbacks are not told yet
    cdef readonly object attachment
    cdef readonly object settings
    cdef readonly dict topics
    cdef readonly str last_error            # the sender's last trouble with the cluster
    cdef readonly int brokers
    cdef uint64_t bulk_window               # bytes that send_array may have outstanding, as it found; 0: not yet
    cdef readonly object memory_queue       # deque of waiters for memory, first come first served
    cdef readonly set waiters               # every waiter that sleeps, told when the session ends
    cdef readonly set metadata_waiters
    cdef readonly object delivery           # the callback thread, None before the first callback
    cdef readonly object ready              # deque of batches whose callbacks are to be called
    cdef readonly dict loops                # asyncio: event loop -> its LoopReader
    cdef readonly long long watched         # batches with callbacks and without an outcome
    cdef readonly bint orphaned             # its producer is gone, futures may be left
    cdef readonly long long failures        # batches
    cdef readonly long long blocked_ns      # spent waiting for memory
    cdef object __weakref__

    # For the bulk loop and producer.pyx. Each runs other parties' code (waiters of outcomes): whatever was
    # read of the session, a topic or a chain before the call is stale after it.
    cdef Topic find_topic(self, str name)
    cdef bint recall(self, object name) noexcept
    cdef int make_room(
        self, Topic topic, int32_t partition, Py_ssize_t bound, int64_t timestamp, object turn
    ) except -1
    cdef Batch put_alone(
        self, Topic topic, int32_t partition, int64_t timestamp, const uint8_t *key, Py_ssize_t key_size,
        const uint8_t *value, Py_ssize_t value_size, const HeaderView *headers, int header_count,
        object turn, int *status,
    )
    cpdef int drain(self) except -1

    cdef object _adopt(self, object attachment, object settings)
    cdef object _open_port(self, cyp_arena_header *arena, SnapshotReader snapshot, object settings)
    cdef object _update(self, Topic topic, tuple row)
    cdef int _prepare(self, object turn) except -1
    cdef int _apply(self, const cyp_outcome *outcome) except -1
    cdef int _settle(self, uint32_t slot, int32_t error, int64_t base_offset, int64_t append_time) except -1
    cdef int _tell(self) except -1
    cdef bint _hung_up(self) except -1
