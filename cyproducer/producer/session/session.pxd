"""Declares a front-end's attachment to one sender, see session.pyx."""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t

from cyproducer.producer.arena.arena cimport Room
from cyproducer.producer.arena.topic_table cimport Topic
from cyproducer.producer.results.futures cimport Batch
from cyproducer.producer.results.waiter cimport Waiter
from cyproducer.producer.session.outcome_reader cimport OutcomeReader
from cyproducer.producer.session.unsent_batches cimport UnsentBatches
from cyproducer.record.encode cimport RecordView
from cyproducer.shm.layout cimport cyp_arena_header
from cyproducer.shm.snapshot cimport SnapshotReader


cdef extern from *:
    """
    #if PY_VERSION_HEX >= 0x030D0000
    #define cyp_interpreter_ends Py_IsFinalizing
    #else
    #define cyp_interpreter_ends _Py_IsFinalizing
    #endif
    """
    bint interpreter_ends "cyp_interpreter_ends"() noexcept


cdef class Session(OutcomeReader):
    cdef const uint32_t *sent
    cdef uint64_t checked_ns                # when the control socket was looked at last
    cdef int64_t check_after_ms             # age of an open batch at which send() checks whether the sender is alive
    cdef uint32_t epoch
    cdef int sleepers
    cdef int socket_fd
    cdef int wake_fd
    cdef uint64_t own_socket_device         # identity of socket_fd
    cdef uint64_t own_socket_inode
    cdef bint losing                        # the list of unsent batches is being filled
    cdef readonly object hooks              # SessionHooks (waiting/reattach.py); None: it has ended
    cdef readonly object settings
    cdef readonly object attach_lock        # held by the thread that makes the successor
    cdef public str trouble                 # the last error of an attempt to make the successor; None
    cdef uint64_t bulk_window               # bytes that send_array may have outstanding; 0: not determined yet
    cdef Waiter spare                       # for the next thread that waits for one batch; None
    cdef readonly set waiters               # every waiter that sleeps; woken when the session ends
    cdef readonly dict loops                # asyncio: event loop -> its LoopReader
    cdef object __weakref__

    # For the bulk loop and producer.pyx. Each of these may run other code (waiters of outcomes). Everything that the
    # caller has read of the session, a topic or a chain before the call is stale after it.
    cdef int make_room(
        self, Topic topic, int32_t partition, Py_ssize_t bound, int64_t timestamp, object waiter
    ) except -1
    cdef Batch put_alone(
        self, Topic topic, int32_t partition, int64_t timestamp, const RecordView *record, object waiter,
        Room *missing,
    )
    cpdef int look(self) except -1
    cdef Waiter take_waiter(self)
    cdef int keep_waiter(self, Waiter waiter) except -1

    cdef object _open_attachment(self, object attachment, object settings)
    cdef object _open_port(self, cyp_arena_header *arena, SnapshotReader snapshot, object settings)
    cdef int _drop_spare(self) except -1
    cdef int _prepare(self, object waiter) except -1
    cdef int _check(self) except -1
    cdef bint _owns_descriptors(self) noexcept
    cdef int _stop(self) except -1
    cdef int _notify_end(self) except -1
    cdef tuple _collect_unsent(self)
    cdef int _keep_unsent(self, uint32_t slot, UnsentBatches unsent, dict names) except -1
    cdef int _drop_empty_lists(self) except -1
    cdef int _drop_references(self) except -1
