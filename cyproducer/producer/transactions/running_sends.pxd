"""Declares RunningSends, which counts the running send methods of a producer, see running_sends.pyx."""


cdef class RunningSends:
    cdef readonly object changed        # threading.Condition
    cdef dict threads                   # thread -> its sends that are running
    cdef bint awaited                   # a thread waits until there are none

    cdef int enter(self, object thread) except -1
    cdef int leave(self, object thread) except -1
