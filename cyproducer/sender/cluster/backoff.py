"""Computes an exponential backoff with jitter, as Kafka's clients do."""

import random
from collections.abc import Callable


class ExponentialBackoff:
    """Delays of `base_ms` * 2^attempts, varied by +-`jitter`, never above `max_ms`.

    If the base is not below the maximum, every delay is the maximum. `jitter` is a share of the delay, 0 to below 1.
    `source` returns floats in [0, 1) and can be replaced to make delays predictable. Raises ValueError for a negative
    base or maximum, or an invalid jitter.
    """

    def __init__(
        self, base_ms: int, max_ms: int, jitter: float = 0.2, source: Callable[[], float] = random.random
    ) -> None:
        if base_ms < 0 or max_ms < 0:
            raise ValueError(f"a backoff from {base_ms} ms to {max_ms} ms is negative")
        if not 0 <= jitter < 1:
            raise ValueError(f"jitter {jitter} is not in [0, 1)")
        self.base_ms = base_ms
        self.max_ms = max_ms
        self.jitter = jitter
        self._source = source

    def delay_ms(self, attempts: int) -> int:
        """Return the delay after `attempts` earlier failures (0: after the first one), in whole milliseconds."""
        if self.base_ms >= self.max_ms:
            return self.max_ms
        # The limit of 31 keeps the product small; 2^31 times any base exceeds any sensible maximum.
        term = min(self.base_ms << min(max(attempts, 0), 31), self.max_ms)
        spread = 1 - self.jitter + 2 * self.jitter * self._source()
        return min(int(term * spread), self.max_ms)
