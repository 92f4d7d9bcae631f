"""Waits until descriptors are readable, for every blocking wait of a front-end.

Where gevent or eventlet has patched `select`, it uses their functions, so that other greenlets continue.
"""

import select
import sys
from typing import Any

from cyproducer.shm import system_clock
from cyproducer.shm.native import Duplicate

__all__ = ["is_patched", "pause", "wait_readable"]

_LONGEST_S = 1_000_000.0  # poll() takes its milliseconds as an int of 32 bits


def wait_readable(fds: list[int], timeout: float | None) -> list[int]:
    """Return the descriptors of `fds` that are readable or hung up; wait up to `timeout` seconds (None: for ever).

    Return an empty list when the time is over, or after eleven days: a caller with a longer timeout checks the clock
    and waits again. Signals are handled during the wait; an exception of a handler (KeyboardInterrupt) propagates.
    """
    if timeout is not None:
        timeout = min(max(timeout, 0), _LONGEST_S)
    if _patched_by_eventlet():
        return _select_of_eventlet(fds, timeout)
    poller = _poll_class()()
    for fd in fds:
        poller.register(fd, select.POLLIN)
    # poll() takes whole milliseconds: round up, or a wait of 0.4 ms would be a busy loop
    ready = poller.poll(None if timeout is None else -(-int(timeout * 1_000_000) // 1000))
    return [fd for fd, _ in ready]


def pause(seconds: float) -> None:
    """Wait in a thread of this package, where a wait of poll() in whole milliseconds would be too long."""
    if is_patched():
        wait_readable([], seconds)
    else:
        system_clock.pause(seconds)


def is_patched() -> bool:
    """Return whether a native poll() would block other greenlets."""
    return _patched_by_gevent() or _patched_by_eventlet()


def _select_of_eventlet(fds: list[int], timeout: float | None) -> list[int]:
    """Wait by eventlet. It lets only one green thread wait for a descriptor, so each waits for duplicates."""
    from eventlet.green import select as green

    copies = [Duplicate(fd) for fd in fds]
    try:
        ready, _, _ = green.select([copy.fd for copy in copies], [], [], timeout)
        return [fd for fd, copy in zip(fds, copies, strict=True) if copy.fd in ready]
    finally:
        for copy in copies:
            copy.close()


def _poll_class() -> Any:
    if _patched_by_gevent():
        from gevent.select import poll

        return poll
    return select.poll


def _patched_by_gevent() -> bool:
    monkey = sys.modules.get("gevent.monkey")
    return monkey is not None and monkey.is_module_patched("select")


def _patched_by_eventlet() -> bool:
    patcher = sys.modules.get("eventlet.patcher")
    return patcher is not None and patcher.is_monkey_patched("select")
