"""Exponential backoff with jitter, as Kafka's clients count it."""

import random
from collections.abc import Callable


class ExponentialBackoff:
    """Delays of `base_ms` * 2^attempts, spread by +-`jitter`, never above `max_ms`.

    `jitter` is a share of the delay, 0 to below 1. `source` gives floats of [0, 1) and may be replaced to
    make delays predictable. Raises ValueError for a negative base, a maximum below it, or a wrong jitter.
    """

    def __init__(
        self, base_ms: int, max_ms: int, jitter: float = 0.2, source: Callable[[], float] = random.random
    ) -> None:
        if base_ms < 0 or max_ms < base_ms:
            raise ValueError(f"a backoff from {base_ms} ms to {max_ms} ms is not possible")
        if not 0 <= jitter < 1:
            raise ValueError(f"jitter {jitter} is not in [0, 1)")
        self.base_ms = base_ms
        self.max_ms = max_ms
        self.jitter = jitter
        self._source = source

    def delay_ms(self, attempts: int) -> int:
        """How long to wait after `attempts` earlier failures (0: the first one), in whole milliseconds."""
        # 2^31 times any base is above any sensible maximum, and keeps the product small.
        term = min(self.base_ms << min(max(attempts, 0), 31), self.max_ms)
        spread = 1 - self.jitter + 2 * self.jitter * self._source()
        return min(int(term * spread), self.max_ms)
