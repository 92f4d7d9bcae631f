"""Counts the send methods that are running, so that the end of a transaction can wait for them.

The fast path of send() is not counted: no other code runs between its check of the state and its commit.
"""

import threading

cimport cython

from cyproducer import errors


@cython.final
@cython.auto_pickle(False)
cdef class RunningSends:
    """The running send methods of one producer. `changed` also guards the state of its transactions."""

    def __cinit__(self):
        self.changed = threading.Condition()
        self.threads = {}

    cdef int enter(self, object thread) except -1:
        """Count a send of a thread; a coroutine counts for the thread of its loop. No other code runs meanwhile."""
        self.threads[thread] = self.threads.get(thread, 0) + 1
        return 0

    cdef int leave(self, object thread) except -1:
        """Undo enter()."""
        count = self.threads[thread]
        if count > 1:
            self.threads[thread] = count - 1
            return 0
        del self.threads[thread]
        if self.awaited and not self.threads:
            with self.changed:
                self.changed.notify_all()
        return 0

    def refuse_own(self, str name):
        """Raise IllegalStateError if a send of this thread is running: it could not end while this thread waits."""
        if threading.get_ident() in self.threads:
            raise errors.IllegalStateError(
                f"{name}() cannot wait for a send of the same thread: call it after send() has returned, and in an "
                f"event loop after `await producer.send_async(...)`, or use {name}_async()"
            )

    def wait(self, call):
        """Wait until no send is running. Raise the errors of Call.check()."""
        with self.changed:
            self.awaited = True  # before the first look: leave() looks the other way round
            try:
                while self.threads:
                    if not self.changed.wait(call.left()):
                        call.check("a send method of another thread is still running")
            finally:
                self.awaited = False
