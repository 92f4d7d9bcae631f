"""Flushes all producers when the process exits."""

import atexit
import logging
import os
import sys
import weakref
from typing import Any

from cyproducer.producer.channel.channel import Channel
from cyproducer.producer.channel.delivery import describe
from cyproducer.shm import system_clock

__all__ = ["register"]

_REATTACH_S = 5.0  # the time to find another sender for unsent batches
_LAST = -100  # priority among multiprocessing's finalizers: others that run before may still send

_log = logging.getLogger("cyproducer")
_channels: "weakref.WeakSet[Channel]" = weakref.WeakSet()
_flushed_process: int | None = None  # PID that was flushed at exit
_registered_process = os.getpid()  # PID that has registered with atexit
_finalized_process: int | None = None  # PID that has registered with multiprocessing's finalizers
_flushed_s = 0.0  # seconds that the flush at exit has waited so far
_reported: set[tuple[int, int, int]] = set()  # (channel, batches, records) that were logged as left at exit


def register(channel: Channel) -> None:
    """Flush this channel at exit, if it is still used then."""
    _channels.add(channel)
    _register_in_children()
    _flush_in_children()


def _flush_at_exit() -> None:
    """Flush all producers when the process exits; wait up to exit_flush_timeout_ms for their outcomes.

    First find another sender for unsent batches: they would be lost with this process. A forked child, and one that
    multiprocessing has spawned, calls this twice, because atexit functions that run in between may send.
    """
    global _flushed_process, _flushed_s
    if _flushed_process != os.getpid():
        _flushed_process, _flushed_s = os.getpid(), 0.0
        _reported.clear()
    began = system_clock.monotonic()
    try:
        _flush_all(began - _flushed_s)
    finally:
        _flushed_s += system_clock.monotonic() - began


def _flush_all(started: float) -> None:
    for channel in _open_channels():
        channel.poll()
        channel.session.arena.seal_all()
    for channel in list(_channels):
        if not channel.recover(started + _REATTACH_S):
            batches, records = channel.outstanding()
            if (id(channel), batches, records) in _reported:
                continue
            _reported.add((id(channel), batches, records))
            _log.error("no sender was found before exit for %d records in %d batches: they are lost", records, batches)
    for channel in _open_channels():
        timeout = channel.settings.exit_flush_timeout_ms
        if timeout > 0 and not channel.finish_at_exit(started + timeout / 1000):
            batches, records = channel.outstanding()
            if (id(channel), batches, records) in _reported:
                continue
            _reported.add((id(channel), batches, records))
            if batches == 0:
                _log.warning("after exit_flush_timeout_ms=%d %s", timeout, describe(channel.delivery))
                continue
            _log.warning(
                "%d records in %d batches have no outcome after exit_flush_timeout_ms=%d; %s%s",
                records,
                batches,
                timeout,
                "they are lost if the container ends with this process (PID 1)"
                if os.getpid() == 1
                else "the sender continues to deliver them",
                channel.why_late,
            )


def _open_channels() -> list[Channel]:
    """Return the channels of this process whose producers are not closed."""
    return [channel for channel in list(_channels) if not channel.closing and not channel.foreign]


def _register_in_children() -> None:
    """Register the flush again in a forked child, which may have cleared the functions of atexit, as Airflow does."""
    global _registered_process
    if _registered_process != os.getpid():
        _registered_process = os.getpid()
        atexit.register(_flush_at_exit)


def _flush_in_children() -> None:
    """Register the flush with multiprocessing: its forked children run its finalizers, but not atexit, at exit."""
    global _finalized_process
    process: Any = sys.modules.get("multiprocessing.process")
    util: Any = sys.modules.get("multiprocessing.util")
    if process is None or util is None or process.parent_process() is None or _finalized_process == os.getpid():
        return
    _finalized_process = os.getpid()
    util.Finalize(None, _flush_at_exit, exitpriority=_LAST)


atexit.register(_flush_at_exit)
