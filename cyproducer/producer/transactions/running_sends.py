"""Counts the send methods that are running, so that the end of a transaction can wait for them.

The fast path of send() is not counted: no other thread runs between its check and its commit.
"""

import threading

from cyproducer import errors
from cyproducer.producer.transactions.call import Call

__all__ = ["RunningSends"]


class RunningSends:
    """The running send methods of one producer. `changed` also guards the state that they depend on."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self._threads: dict[int, int] = {}

    def enter(self) -> int:
        """Count a send of this thread; a coroutine counts for the thread of its loop. Return what leave() needs."""
        thread = threading.get_ident()
        with self.changed:
            self._threads[thread] = self._threads.get(thread, 0) + 1
        return thread

    def leave(self, thread: int) -> None:
        """Undo enter()."""
        with self.changed:
            self._threads[thread] -= 1
            if self._threads[thread] == 0:
                del self._threads[thread]
                self.changed.notify_all()

    def refuse_own(self, name: str) -> None:
        """Raise IllegalStateError if a send of this thread is running: it could not end while this thread waits."""
        if threading.get_ident() in self._threads:
            raise errors.IllegalStateError(
                f"{name}() cannot wait for a send of the same thread: call it after send() has returned, and in an "
                f"event loop after `await producer.send_async(...)`, or use {name}_async()"
            )

    def wait(self, call: Call) -> None:
        """Wait until no send is running. Raise the errors of Call.check()."""
        with self.changed:
            while self._threads:
                if not self.changed.wait(call.left()):
                    call.check("a send method of another thread is still running")
