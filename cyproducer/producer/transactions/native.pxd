"""Declares the classes of native.pyx that other native modules use."""

cdef class RunningSend:
    cdef readonly object thread         # that runs it
    cdef readonly object loop           # the event loop of its coroutine; None: the thread waits
    cdef public bint passed_over        # the end of the transaction does not wait for it any more


cdef class TransactionState:
    cdef readonly object now            # Facts
    cdef readonly object running        # the Call whose turn it is; None: there is none
    cdef bint open                      # records may be sent
    cdef set sends                      # of RunningSend
    cdef dict waiters                   # Call -> the Waiter with which it waits

    cdef int enter_send(self, RunningSend send) except -1
    cdef int leave_send(self, RunningSend send) except -1
    cdef int derive(self) except -1
    cdef bint leave(self, object call) except -1
    cdef int wake(self) except -1


cdef RunningSend make_running_send(object thread, object loop)
