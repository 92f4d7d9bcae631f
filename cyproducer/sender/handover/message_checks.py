"""Checks the messages of a handover before a new supervisor uses them.

They come from a process of the same user or of root, but perhaps of another build. What has the wrong form would
otherwise end the new supervisor, or its senders, with an error that says nothing about the cause.
"""

import os
import stat
from collections.abc import Callable
from typing import Any, NoReturn

from cyproducer.errors import SenderUnavailableError
from cyproducer.sender.handover.handover import CONTROL, HELD, PIDFD

__all__ = ["check_message", "refuse"]

#: The descriptors of a front-end that has ended, which are those without CONTROL and PIDFD.
_HELD_ENDED = HELD - 2
_LEDGER_ROW = {"app": str, "topic": str, "cause": str, "count": int, "first": (int, float), "last": (int, float)}
_META = {"app": str, "pid": int, "slots": int, "settings": dict}


def check_message(message: dict[str, Any], fds: list[int]) -> None:
    """Raise SenderUnavailableError if a message has not the form that upgrade.py describes. Unknown messages pass."""
    check = _CHECKS.get(str(message.get("op")))
    if check is not None and not check(message, fds):
        refuse(message, f"it has another form than this build knows, with {len(fds)} descriptors")


def refuse(message: dict[str, Any], why: str) -> NoReturn:
    """Raise SenderUnavailableError for a message of the former supervisor."""
    raise SenderUnavailableError(
        f'the running sender is not replaced: its supervisor has sent a message "{message["op"]}" that cannot be used: '
        f"{why}; end that sender with `cyproducer stop`, then the producers find the next one"
    )


def _is_post(_: dict[str, Any], fds: list[int]) -> bool:
    return len(fds) == 2 and _is_socket(fds[1])


def _is_regions(_: dict[str, Any], fds: list[int]) -> bool:
    return len(fds) in (0, 2)  # none: no sender has started yet


def _is_waiting(_: dict[str, Any], fds: list[int]) -> bool:
    return bool(fds) and all(map(_is_socket, fds))


def _is_held(message: dict[str, Any], fds: list[int]) -> bool:
    ended = message.get("ended")
    return (
        _is(message.get("attach_id"), int)
        and _has(message.get("meta"), _META)
        and _is(message.get("answered"), bool)
        and _is(ended, bool)
        and len(fds) == (_HELD_ENDED if ended else HELD)
        and (bool(ended) or (_is_socket(fds[CONTROL]) and _is_pidfd(fds[PIDFD])))
    )


def _is_facts(message: dict[str, Any], fds: list[int]) -> bool:
    deaths, ledger = message.get("deaths"), message.get("ledger")
    cluster_id, timeout_s = message.get("cluster_id"), message.get("idle_timeout_s")
    return (
        not fds
        and _is(message.get("draining"), str)
        and (cluster_id is None or _is(cluster_id, str))
        and (timeout_s is None or _is(timeout_s, (int, float)))
        and isinstance(deaths, list)
        and all(isinstance(pair, list) and len(pair) == 2 and all(_is(n, int) for n in pair) for pair in deaths)
        and isinstance(ledger, list)
        and all(_has(row, _LEDGER_ROW) for row in ledger)
    )


_CHECKS: dict[str, Callable[[dict[str, Any], list[int]], bool]] = {
    "post": _is_post,
    "regions": _is_regions,
    "waiting": _is_waiting,
    "hold": _is_held,
    "quarantined": _is_held,
    "facts": _is_facts,
}


def _is(value: object, kind: type | tuple[type, ...]) -> bool:
    return isinstance(value, kind) and (kind is bool or not isinstance(value, bool))


def _has(value: object, fields: dict[str, Any]) -> bool:
    return isinstance(value, dict) and all(_is(value.get(name), kind) for name, kind in fields.items())


def _is_socket(fd: int) -> bool:
    return stat.S_ISSOCK(os.fstat(fd).st_mode)


def _is_pidfd(fd: int) -> bool:
    return os.readlink(f"/proc/self/fd/{fd}").startswith(("anon_inode:[pidfd]", "pidfd:"))
