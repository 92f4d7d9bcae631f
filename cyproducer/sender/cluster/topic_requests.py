"""Tracks which front-ends wait for which topics, shares the table of topics, and says which topics are not in use."""

import heapq
from collections.abc import Collection, Iterable

__all__ = ["IdleTopics", "TopicRequests", "TopicShares"]

GIVEN_BACK_AT_ONCE = 512  # takes some milliseconds


class TopicRequests:
    """Topics that front-ends have requested and whose metadata is not published yet."""

    def __init__(self) -> None:
        self._by_topic: dict[str, set[int]] = {}
        self._by_front_end: dict[int, set[str]] = {}
        self._unknown: set[str] = set()

    def add(self, attach_id: int, name: str) -> None:
        """Note that the front-end waits for the topic."""
        self._by_topic.setdefault(name, set()).add(attach_id)
        self._by_front_end.setdefault(attach_id, set()).add(name)

    def add_unknown(self, name: str) -> None:
        """Note that a front-end of the predecessor waits for the topic; it is not known which one."""
        self._unknown.add(name)

    def take(self, name: str, granted: bool) -> Collection[int] | None:
        """Return the front-ends that wait for the topic; None: not known which. If `granted`, remove their requests."""
        waiting: Collection[int] | None = self._by_topic.get(name, ())
        if name in self._unknown:
            waiting = None
        if granted:
            self._unknown.discard(name)
            for attach_id in self._by_topic.pop(name, ()):
                wanted = self._by_front_end[attach_id]
                wanted.discard(name)
                if not wanted:
                    del self._by_front_end[attach_id]
        return waiting

    def drop(self, attach_id: int) -> None:
        """Forget the requests of a front-end that has ended."""
        for name in self._by_front_end.pop(attach_id, ()):
            waiting = self._by_topic[name]
            waiting.discard(attach_id)
            if not waiting:
                del self._by_topic[name]


class TopicShares:
    """How many names each front-end has added to the sender's table of topics.

    A front-end may add a name while the table has more free numbers than it has added names. So one that adds names
    without end leaves half of the table free, and each further one leaves half of the rest. A name that gives its
    number back does not count any more.
    """

    def __init__(self) -> None:
        self._added: dict[int, int] = {}
        self._adder: dict[str, int] = {}

    def add(self, attach_id: int, name: str, free: int) -> None:
        """Count a name that the front-end adds. `free`: so many can be added. Raise OverflowError if it may not."""
        added = self._added.get(attach_id, 0)
        if added >= free:
            raise OverflowError(
                f"this process has added {added} topic names to its sender, whose table has space for {free} more: use "
                "fewer names, or give the process a sender of its own (the setting sender)"
            )
        self._added[attach_id] = added + 1
        self._adder[name] = attach_id

    def give_back(self, name: str) -> None:
        """Note that the name has given its number back."""
        attach_id = self._adder.pop(name, None)
        if attach_id in self._added:
            self._added[attach_id] -= 1

    def drop(self, attach_id: int) -> None:
        """Forget the count of a front-end that has ended."""
        self._added.pop(attach_id, None)


class IdleTopics:
    """Topics that are not in the metadata, and when they may give their numbers back (topic_numbers.pyx)."""

    def __init__(self) -> None:
        self._due_ms: dict[str, int] = {}
        self._heap: list[tuple[int, str]] = []

    def add(self, names: Iterable[str], due_ms: int) -> None:
        """Note topics that may give their numbers back at `due_ms`."""
        for name in names:
            self._due_ms[name] = due_ms
            heapq.heappush(self._heap, (due_ms, name))

    def next_due(self) -> int | None:
        """Return when the next topic may give its number back; None if there is none."""
        while self._heap and self._due_ms.get(self._heap[0][1]) != self._heap[0][0]:
            heapq.heappop(self._heap)  # it was noted again
        return self._heap[0][0] if self._heap else None

    def take_due(self, now_ms: int) -> list[str]:
        """Remove and return the topics that are due, some of them if there are many."""
        names: list[str] = []
        while len(names) < GIVEN_BACK_AT_ONCE:
            due_ms = self.next_due()
            if due_ms is None or due_ms > now_ms:
                break
            name = heapq.heappop(self._heap)[1]
            del self._due_ms[name]
            names.append(name)
        return names
