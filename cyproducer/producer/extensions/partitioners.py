"""Chooses partitions by a custom partitioner or by turns, instead of by the built-in rule.

A partitioner chooses for the records that name no partition. It is asked once for each record, on the thread that
sends, after serialization and as soon as the topic is known.
"""

import operator
from typing import Any

from cyproducer.config.kinds import ROUND_ROBIN
from cyproducer.errors import PartitionerError
from cyproducer.producer.core.native import Session
from cyproducer.producer.extensions.interceptors import close_quietly


class Cluster:
    """The topics of the cluster, as far as this process knows them. The methods have kafka-python's names.

    Nothing waits here: a topic that this process has not used, and whose metadata the sender lacks, is None.
    """

    __slots__ = ("_session",)

    def __init__(self, session: Session) -> None:
        self._session = session

    def partitions_for_topic(self, topic: str) -> set[int] | None:
        """Return the numbers of all partitions, also of those without a leader. None: the topic is not known."""
        return set(range(len(leaders))) if (leaders := self._leaders(topic)) else None

    def available_partitions_for_topic(self, topic: str) -> set[int] | None:
        """Return the numbers of the partitions that have a leader. None: the topic is not known."""
        return set(_available(leaders)) if (leaders := self._leaders(topic)) else None

    def partition_count_for_topic(self, topic: str) -> int | None:
        """Return the number of partitions. None: the topic is not known."""
        return len(self._leaders(topic)) or None

    def topics(self) -> set[str]:
        """Return the names of the topics that this process has used."""
        return {name for name in self._session.topics.by_name if self._session.topics.state(name)[0]}

    def _leaders(self, topic: str) -> bytes:
        return self._session.topic_leaders(topic)


class RoundRobin:
    """Takes the partitions that have a leader by turns, with a counter for each topic (`RoundRobinPartitioner`)."""

    def __init__(self) -> None:
        self._counters: dict[str, int] = {}
        self._known: dict[str, tuple[bytes, list[int]]] = {}

    def place(self, session: Session, topic: str, leaders: bytes, pair: Any, serialized: Any) -> int:
        """Return the partition of the next record of the topic."""
        partitions, first = self.next_turns(topic, leaders, 1)
        return partitions[first]

    def next_turns(self, topic: str, leaders: bytes, count: int) -> tuple[list[int], int]:
        """Take the next `count` turns. Return (partitions, index of the first turn among them)."""
        known = self._known.get(topic)
        if known is None or known[0] != leaders:
            # As in Java, all partitions take part if none has a leader.
            known = self._known[topic] = leaders, _available(leaders) or list(range(len(leaders)))
        counter = self._counters.get(topic, 0)
        self._counters[topic] = counter + count
        return known[1], counter % len(known[1])

    def close(self) -> None:
        """Do nothing: there is nothing to close."""


class Custom:
    """A partitioner of the application, which is a callable or an object with the method `partition`."""

    def __init__(self, partitioner: Any) -> None:
        self.partitioner = partitioner
        self._method = getattr(partitioner, "partition", None)
        self._name = getattr(partitioner, "__qualname__", None) or type(partitioner).__qualname__
        self._known: dict[str, tuple[bytes, list[int], list[int]]] = {}

    def place(self, session: Session, topic: str, leaders: bytes, pair: Any, serialized: Any) -> int:
        """Return the partition that the partitioner chooses.

        leaders      one byte per partition of the topic, 0 without a leader
        pair         key and value before serialization
        serialized   key and value after serialization: bytes, another buffer, or None

        Raise PartitionerError.
        """
        try:
            if self._method is not None:
                arguments = topic, pair[0], _bytes(serialized[0]), pair[1], _bytes(serialized[1]), Cluster(session)
                answer = self._method(*arguments)
            else:
                known = self._known.get(topic)
                if known is None or known[0] != leaders:
                    known = self._known[topic] = leaders, list(range(len(leaders))), _available(leaders)
                # Copies, because the partitioner may change a list.
                answer = self.partitioner(_bytes(serialized[0]), list(known[1]), list(known[2]))
        except Exception as error:
            raise PartitionerError(
                f"the partitioner {self._name} raised {type(error).__name__} for topic {topic!r}: {error}"
            ) from error
        return self._checked(answer, topic, len(leaders))

    def _checked(self, answer: Any, topic: str, count: int) -> int:
        if type(answer) is not int:
            if isinstance(answer, bool) or not hasattr(answer, "__index__"):
                raise PartitionerError(
                    f"the partitioner {self._name} returned {type(answer).__name__} for topic {topic!r}, "
                    "not the number of a partition (an int)"
                )
            answer = operator.index(answer)
        if not 0 <= answer < count:
            raise PartitionerError(
                f"the partitioner {self._name} returned {answer} for topic {topic!r}, "
                f"whose partitions are 0 to {count - 1}"
            )
        return int(answer)

    def close(self) -> None:
        """Call `close()` of the application's partitioner if it has it."""
        close_quietly(self.partitioner, "partitioner")


def partitioner_of(setting: Any) -> RoundRobin | Custom | None:
    """Return the partitioner of a value of the setting `partitioner`. None: the built-in rule."""
    if setting is None:
        return None
    return RoundRobin() if setting == ROUND_ROBIN and isinstance(setting, str) else Custom(setting)


def _available(leaders: bytes) -> list[int]:
    return [number for number, has_leader in enumerate(leaders) if has_leader]


def _bytes(data: Any) -> bytes | None:
    return data if data is None or type(data) is bytes else bytes(data)
