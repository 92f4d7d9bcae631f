"""The callback thread of a session: it starts with the first callback and calls them all, in order.

It is woken at most once a millisecond and then calls everything that is ready under one hold of the GIL:
being woken for each record would cost more than sending it.
"""

import threading
import time
from collections import deque
from typing import Any

from cyproducer.producer.futures import call_back, log_exception
from cyproducer.producer.waiter import Waiter
from cyproducer.shm.waiting import wait_readable

_REST_S = 0.001
_PAUSE_MAX_S = 1.0


class Delivery:
    """Calls the callbacks of finished batches. `poke()` tells it that there is something to do."""

    def __init__(self, session: Any) -> None:
        self.waiter = Waiter()
        self.waiter.open()
        self.session = session
        self.ready = session.ready
        self.thread: threading.Thread | None = None
        self.armed = False
        self.calling = False
        self.ended = False
        self.waiting: deque[Waiter] = deque()

    def start(self) -> None:
        self.thread = threading.Thread(
            target=_run, args=(self, self.session), name="cyproducer-callbacks", daemon=True
        )
        self.session = None
        self.thread.start()

    def close(self) -> None:
        self.waiter.close()

    def poke(self) -> None:
        """Wakes the thread if it sleeps."""
        if self.armed:
            self.armed = False
            self.waiter.wake()

    def is_busy(self) -> bool:
        """Are there callbacks to be called, or being called? Never in a forked child, where the thread is not."""
        if self.ended or self.thread is None or not self.thread.is_alive():
            return False
        return self.calling or bool(self.ready)

    def forget(self, waiter: Waiter) -> None:
        """It waits no longer; if it was told already: nothing."""
        try:
            self.waiting.remove(waiter)
        except ValueError:
            pass

    def end(self, session: Any) -> None:
        """The thread ends: nobody waits for it any more."""
        self.ended = True  # first: who comes after this one asks is_busy()
        session.latest.forget_delivery(self)
        while self.waiting:
            self.waiting.popleft().notify()
        self.close()

    def is_current_thread(self) -> bool:
        return self.thread is threading.current_thread()


def _run(delivery: Delivery, session: Any) -> None:
    woken = 0.0
    pause = _REST_S
    try:
        while True:
            try:
                session = session.latest
                _call_ready(delivery)
                if session.retire_delivery():
                    return
                rest = woken + _REST_S - time.monotonic()
                if rest > 0:
                    time.sleep(rest)
                    if session.ready:
                        continue
                _sleep(delivery, session)
                pause = _REST_S
            except MemoryError:
                time.sleep(_REST_S)  # whoever needs it now may give it back
            except BaseException:
                # A handler of the log, for one: what a session says goes there.
                log_exception("the thread that calls callbacks goes on after an error")
                time.sleep(pause)
                pause = min(2 * pause, _PAUSE_MAX_S)
            woken = time.monotonic()
    finally:
        delivery.end(session)


def _call_ready(delivery: Delivery) -> None:
    ready, waiting = delivery.ready, delivery.waiting
    delivery.calling = True
    while ready or waiting:
        told = list(waiting)  # before: they came when what is ready now was
        while ready:
            call_back(ready.popleft())
        for waiter in told:
            delivery.forget(waiter)
            waiter.notify()
    delivery.calling = False


def _sleep(delivery: Delivery, session: Any) -> None:
    """Until there are outcomes (watched for only while callbacks wait for them), or somebody pokes.

    A session whose sender is gone has none: its successor pokes.
    """
    watching = session.watched > 0 and session.alive
    if watching:
        session.enter_sleep(delivery.waiter)
    try:
        delivery.armed = True
        changed = (session.watched > 0 and session.alive) != watching or session.latest is not session
        if session.ready or delivery.waiting or changed or session.over or (session.orphaned and not session.watched):
            return  # whoever changed that found nobody asleep to poke
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
