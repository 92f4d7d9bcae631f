"""Calls all callbacks of a channel in order, on one thread that starts with the first callback.

The thread wakes up at most once a millisecond and then calls all callbacks that are ready while it holds the GIL once.
A wake-up for each record would cost more than sending the record.
"""

import sys
import traceback
from collections import deque
from types import FrameType

from cyproducer.host.poll import pause, wait_readable
from cyproducer.host.thread_start import ThreadStart
from cyproducer.producer.core.native import CallbackThread, SessionOwner, Waiter, call_back, log_exception
from cyproducer.shm import system_clock

_INTERVAL_S = 0.001
_PAUSE_MAX_S = 1.0
_DEPTH = 20  # the innermost frames of the stack that are shown


class Delivery(CallbackThread):
    """Calls the callbacks of finished batches. `poke()` wakes its thread when there is work."""

    def __init__(self, owner: SessionOwner) -> None:
        self.waiter = Waiter()
        self.waiter.open()
        self.ready = owner.ready
        self.thread = ThreadStart("cyproducer-callbacks", _run, self, owner)
        self.armed = False
        self.calling = False
        self.ended = False
        self.waiting: deque[Waiter] = deque()

    def close(self) -> None:
        self.waiter.close()

    def poke(self) -> None:
        """Wake the thread if it sleeps."""
        if self.armed:
            self.armed = False
            self.waiter.wake()

    def is_busy(self) -> bool:
        """Return whether callbacks are ready or running. Always False in a forked child, which has no such thread."""
        if self.ended or not self.thread.is_alive():
            return False
        return self.calling or bool(self.ready)

    def forget(self, waiter: Waiter) -> None:
        """Remove a waiter. Do nothing if it was notified already."""
        try:
            self.waiting.remove(waiter)
        except ValueError:
            pass

    def end(self, owner: SessionOwner) -> None:
        """End the thread's work: notify all waiters and close the eventfd."""
        self.ended = True  # first: is_busy() must be False for any thread that looks from here on
        owner.forget_delivery(self)
        while self.waiting:
            self.waiting.popleft().notify()
        self.close()

    def is_current_thread(self) -> bool:
        return self.thread.is_current()

    def frames(self) -> list[FrameType]:
        """Return the frames of the running callback, the outermost first; none if it is not written in Python."""
        found: list[FrameType] = []
        frame = sys._current_frames().get(self.thread.ident or 0)
        while frame is not None and frame.f_code is not _call_ready.__code__:
            found.insert(0, frame)
            frame = frame.f_back
        begun = [n for n, each in enumerate(found) if not str(each.f_globals.get("__name__")).startswith("cyproducer.")]
        return found[begun[0] :] if begun and frame is not None else []


def _run(delivery: Delivery, owner: SessionOwner) -> None:
    woken = 0.0
    rest_after_error = _INTERVAL_S
    try:
        while True:
            try:
                _call_ready(delivery)
                if owner.retire_delivery():
                    return
                rest = woken + _INTERVAL_S - system_clock.monotonic()
                if rest > 0:
                    pause(rest)
                    if owner.ready:
                        continue
                _sleep(delivery, owner)
                rest_after_error = _INTERVAL_S
            except MemoryError:
                pause(_INTERVAL_S)  # memory may be free again after a moment
            except BaseException:
                # For example a log handler that raises: a session logs warnings.
                log_exception("the callback thread caught an exception; it continues with the next callbacks")
                pause(rest_after_error)
                rest_after_error = min(2 * rest_after_error, _PAUSE_MAX_S)
            woken = system_clock.monotonic()
    finally:
        delivery.end(owner)


def _call_ready(delivery: Delivery) -> None:
    ready, waiting = delivery.ready, delivery.waiting
    delivery.calling = True
    while ready or waiting:
        to_notify = list(waiting)  # before the loop: they wait only for callbacks that are ready at this point
        while ready:
            call_back(ready.popleft())
        for waiter in to_notify:
            delivery.forget(waiter)
            waiter.notify()
    delivery.calling = False


def _sleep(delivery: Delivery, owner: SessionOwner) -> None:
    """Sleep until poke(), or until there are outcomes if a callback waits for one.

    A session whose sender is gone gets no outcomes; the owner calls poke() when it has the next one.
    """
    session = owner.session
    watching = owner.watched > 0 and session.alive
    if watching:
        session.enter_sleep(delivery.waiter)
    try:
        delivery.armed = True
        changed = (owner.watched > 0 and session.alive) != watching or owner.session is not session
        if owner.ready or delivery.waiting or changed or owner.over or (owner.orphaned and not owner.watched):
            return  # the thread that made this change saw `armed` False, so it did not wake this thread
        polled = [delivery.waiter.fd, *(session.descriptors if watching else ())]
        ready = wait_readable(polled, None)
        if delivery.waiter.fd in ready:
            delivery.waiter.clear()
        if watching and session.alive:
            wake, control = session.descriptors
            if control in ready:
                session.on_control()
            if wake in ready:
                session.on_wake()
    finally:
        delivery.armed = False
        if watching:
            session.leave_sleep(delivery.waiter)


def describe(delivery: CallbackThread | None) -> str:
    """Return which callback runs, the usual reason of one that does not end, and its stack: the end of a message."""
    frames = [] if delivery is None else delivery.frames()
    if not frames:
        return "callbacks have not ended"
    code = frames[0].f_code
    stack = traceback.StackSummary.extract((each, each.f_lineno) for each in frames[-_DEPTH:])
    return (
        f"the callback {code.co_qualname} ({code.co_filename}, line {code.co_firstlineno}) has not ended. If it waits "
        "for a lock that the caller holds, release the lock before the call. It is here:\n"
        + "".join(stack.format()).rstrip()
    )
