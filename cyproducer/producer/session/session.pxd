"""Declares a front-end's attachment to one sender, see session.pyx."""

from libc.stdint cimport int64_t, uint32_t, uint64_t

from cyproducer.producer.arena.arena cimport Arena
from cyproducer.producer.arena.topic_table cimport Topic
from cyproducer.producer.results.waiter cimport Waiter
from cyproducer.producer.session.metric_counts cimport MetricCounts
from cyproducer.producer.session.outcome_reader cimport OutcomeReader
from cyproducer.producer.session.topic_metadata cimport TopicTable
from cyproducer.producer.session.unsent_lists cimport UnsentLists
from cyproducer.producer.session.wait_queue cimport WaitQueue


cdef extern from *:
    """
    #if PY_VERSION_HEX >= 0x030D0000
    #define cyp_interpreter_ends Py_IsFinalizing
    #else
    #define cyp_interpreter_ends _Py_IsFinalizing
    #endif
    """
    bint interpreter_ends "cyp_interpreter_ends"() noexcept


cdef class Session:
    cdef readonly Arena arena
    cdef readonly TopicTable topics
    cdef readonly OutcomeReader outcomes
    cdef readonly MetricCounts counts
    cdef readonly UnsentLists unsent
    cdef uint64_t checked_ns                # when the control socket was looked at last
    cdef int64_t check_after_ms             # age of an open batch at which send() checks whether the sender is alive
    cdef uint32_t epoch
    cdef int socket_fd
    cdef int wake_fd
    cdef uint64_t own_socket_device         # identity of socket_fd
    cdef uint64_t own_socket_inode
    cdef readonly object hooks              # SessionHooks (waiting/reattach.py); None: it has ended
    cdef readonly object attachment
    cdef readonly object settings
    cdef readonly object attach_lock        # held by the thread that makes the successor
    cdef readonly object successor          # the Session that has taken over the unsent batches, or None
    cdef public str trouble                 # the last error of an attempt to make the successor; None
    cdef uint64_t bulk_window               # bytes that send_array may have outstanding; 0: not determined yet
    cdef Waiter spare                       # for the next thread that waits for one batch; None
    cdef readonly set waiters               # every waiter that sleeps; woken when the session ends
    cdef readonly dict loops                # asyncio: event loop -> its LoopReader
    cdef readonly WaitQueue memory_queue    # of the calls that wait for memory
    cdef readonly object delivery           # the callback thread, None before the first callback
    cdef readonly object ready              # deque of batches whose callbacks are to be called
    cdef readonly long long watched         # batches with callbacks and without an outcome
    cdef readonly bint is_lost              # it has ended because its sender and the supervisor are gone
    cdef readonly bint orphaned             # its producer is gone; futures may still exist
    cdef object __weakref__

    cdef Topic find_topic(self, str name)
    cpdef int look(self) except -1
    cpdef int drain(self) except -1
    cpdef int leave_sleep(self, object waiter) except -1
    cdef int notify_finished(self) except -1
    cdef int take_over(self) except -1
    cdef Waiter take_waiter(self)
    cdef int keep_waiter(self, Waiter waiter) except -1

    cdef object _open_attachment(self, object attachment, object settings)
    cdef int _drop_spare(self) except -1
    cdef int _check(self) except -1
    cdef bint _owns_descriptors(self) noexcept
    cdef int _stop(self) except -1
    cdef int _notify_end(self) except -1
    cdef tuple _collect_unsent(self)
