"""The one function that waits.

Every blocking wait of a front-end goes through here. Where gevent or eventlet has patched `select`, it waits
with theirs, so that the other greenlets go on.
"""

import select
import sys

__all__ = ["is_patched", "wait_readable"]

_LONGEST_S = 1_000_000.0  # poll() takes its milliseconds as an int of 32 bits


def wait_readable(fds: list[int], timeout: float | None) -> list[int]:
    """The descriptors of `fds` that are readable or hung up, waiting up to `timeout` seconds (None: for ever).

    An empty list: the time is over, or eleven days are: who has more looks at the clock, and waits again. Signals
    are handled while it waits; what a handler raises (KeyboardInterrupt) comes out of here.
    """
    if timeout is not None:
        timeout = min(max(timeout, 0), _LONGEST_S)
    if _patched_by_eventlet():
        from eventlet.green import select as green

        ready, _, _ = green.select(fds, [], [], timeout)
        return list(ready)
    poller = _poll_class()()
    for fd in fds:
        poller.register(fd, select.POLLIN)
    # poll() takes whole milliseconds: round up, lest a wait of 0.4 ms spin
    ready = poller.poll(None if timeout is None else -(-int(timeout * 1_000_000) // 1000))
    return [fd for fd, _ in ready]


def is_patched() -> bool:
    """Would a native poll() stop other greenlets?"""
    return _patched_by_gevent() or _patched_by_eventlet()


def _poll_class():
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
