"""Keeps the virtual time of a simulation and the events that are due later, and records what happens."""

import hashlib
import heapq
import itertools
from collections.abc import Callable

MS = 1_000_000


class Events:
    """The queue of events. `now` is set by the simulation from the virtual clock."""

    def __init__(self) -> None:
        self.now = 0
        self.lines: list[str] = []
        self._queue: list[tuple[int, int, Callable[[], None]]] = []
        self._numbers = itertools.count()

    def at(self, time_ns: int, then: Callable[[], None]) -> None:
        """Call `then` at a time."""
        heapq.heappush(self._queue, (max(time_ns, self.now), next(self._numbers), then))

    def after(self, delay_ms: float, then: Callable[[], None]) -> None:
        """Call `then` so many milliseconds from now."""
        self.at(self.now + int(delay_ms * MS), then)

    @property
    def next_at(self) -> int | None:
        return self._queue[0][0] if self._queue else None

    def run_due(self) -> None:
        """Call everything that is due."""
        while self._queue and self._queue[0][0] <= self.now:
            heapq.heappop(self._queue)[2]()

    def note(self, text: str) -> None:
        """Add a line to the printed schedule."""
        self.lines.append(f"{self.now / MS:12.3f} ms  {text}")

    def digest(self) -> str:
        """Return a hash of the schedule: the same for every run of a seed."""
        return hashlib.sha256("\n".join(self.lines).encode()).hexdigest()[:16]
