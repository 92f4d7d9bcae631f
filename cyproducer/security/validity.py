"""Says whether a token or a certificate that a broker refuses is not valid by the clock of this host."""

import math
import time
from typing import Any

__all__ = ["describe_validity", "shown_time"]

_LATEST = 253_402_300_799  # the last second of the year 9999


def describe_validity(what: str, begins: Any, expires: Any, now: float) -> str:
    """Return why `what` is not valid at `now`, and what to do; "" if it is valid.

    begins, expires   in seconds since the epoch; anything else, for example None, means that it is not known
    """
    end, begin = _seconds(expires), _seconds(begins)
    clock = f"and the clock of this host shows {shown_time(now)}"
    if end is not None and end <= now:
        return f"{what} expired at {shown_time(end)}, {clock}: renew it, or correct the clock"
    if begin is not None and begin > now:
        return f"{what} is not valid before {shown_time(begin)}, {clock}: correct the clock, or that of the issuer"
    return ""


def shown_time(seconds: float) -> str:
    """Return a time (seconds since the epoch) for readers, in minutes: the same error must have the same text."""
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(seconds))


def _seconds(value: Any) -> float | None:
    """Return a time if it can be shown."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value) if 0 <= value <= _LATEST else None
