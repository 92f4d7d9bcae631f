"""Tracks which front-ends wait for the metadata of which topics, so that a topic wakes only those that need it."""

from collections.abc import Collection

__all__ = ["TopicRequests"]


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
