"""Compares the resource limits that decide how many front-ends a sender can serve; both sides of an attach do so."""

import errno
import resource
from collections.abc import Mapping
from typing import Any

from cyproducer.host.control_messages import TruncatedError

__all__ = ["are_higher", "current", "describe", "reachable", "shortage_of"]

_LIMITS = {
    "RLIMIT_NOFILE": resource.RLIMIT_NOFILE,
    "RLIMIT_AS": resource.RLIMIT_AS,
    "RLIMIT_DATA": resource.RLIMIT_DATA,
    "RLIMIT_FSIZE": resource.RLIMIT_FSIZE,
}
#: For each resource that may be short: the limits that may be the reason.
_OF_SHORTAGE = {
    "descriptors": ("RLIMIT_NOFILE",),
    "memory": ("RLIMIT_AS", "RLIMIT_DATA"),
    "file size": ("RLIMIT_FSIZE",),
}
#: Without ENFILE, which is the limit of the whole system. ETOOMANYREFS: too many descriptors in unread messages.
_SHORTAGES = {
    errno.EMFILE: "descriptors",
    errno.ETOOMANYREFS: "descriptors",
    errno.ENOMEM: "memory",
    errno.EFBIG: "file size",
}


def current() -> dict[str, int]:
    """Return the limits in force for this process (the soft limits); -1: no limit."""
    return {name: resource.getrlimit(number)[0] for name, number in _LIMITS.items()}


def reachable() -> dict[str, int]:
    """Return the limits that a sender started by this process has at least (the hard limits); -1: no limit."""
    return {name: resource.getrlimit(number)[1] for name, number in _LIMITS.items()}


def shortage_of(error: BaseException) -> str:
    """Return the limited resource that an error reports as short: "descriptors", "memory", "file size"; else ""."""
    if isinstance(error, TruncatedError):
        return "descriptors"
    if isinstance(error, MemoryError):
        found = "memory"
    else:
        found = _SHORTAGES.get(error.errno or 0, "") if isinstance(error, OSError) else ""
    return found if describe(found, current()) else ""


def describe(shortage: str, limits: Mapping[str, Any]) -> str:
    """Return the limits that exist for a short resource, as text for a message: "RLIMIT_AS=4294967296"."""
    names = [name for name in _OF_SHORTAGE.get(shortage, ()) if limits.get(name, -1) != resource.RLIM_INFINITY]
    return ", ".join(f"{name}={limits[name]}" for name in names)


def are_higher(limits: Any, others: Any, shortage: str = "") -> bool:
    """Return whether none of `limits` is lower than in `others` and at least one of those for `shortage` is higher.

    This is a strict order, so processes that replace only senders with lower limits cannot replace each other for ever.
    Return False for invalid values, since they may come from another process.
    """
    if not _are_limits(limits) or not _are_limits(others):
        return False
    if any(_is_less(limits[name], others[name]) for name in _LIMITS):
        return False
    return any(_is_less(others[name], limits[name]) for name in _OF_SHORTAGE.get(shortage, _LIMITS))


def _are_limits(limits: Any) -> bool:
    return isinstance(limits, dict) and all(type(limits.get(name)) is int for name in _LIMITS)


def _is_less(limit: int, other: int) -> bool:
    if limit == resource.RLIM_INFINITY:
        return False
    return other == resource.RLIM_INFINITY or limit < other
