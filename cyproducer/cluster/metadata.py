"""What the cluster looks like, and when to ask again: topics, leaders, epochs and brokers, without sockets.

The caller sends ``request_body()`` as a Metadata request when ``next_request_at()`` is due, to any broker,
and reports the answer with ``on_response()`` or its absence with ``on_failure()``. One request is under way
at a time. All times are milliseconds of one clock that the caller chooses. Source of the rules: Kafka's
ProducerMetadata and Metadata, KIP-899 (rebootstrap).
"""

import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from cyproducer.protocol.errors import describe, error_of

from .backoff import ExponentialBackoff
from .topics import PartitionMetadata, TopicMetadata, merge_topic

__all__ = ["ClusterMetadata", "MetadataChange", "PartitionMetadata", "TopicMetadata"]

Broker = tuple[str, int, str | None]
"""(host, port, rack or None)"""

UNKNOWN_TOPIC_OR_PARTITION = 3


@dataclass(slots=True)
class MetadataChange:
    """What an answer changed. `topics`: names whose metadata differs from before, forgotten ones included.

    `errors`: {topic: error code} of every topic that was answered with an error, changed or not; `forgotten`:
    names that went unused for too long; `left_out`: "host:port" of every broker whose id or port can be none;
    `ignored`: the answer was unusable and counts as a failure.
    """

    topics: set[str] = field(default_factory=set)
    brokers: bool = False
    errors: dict[str, int] = field(default_factory=dict)
    forgotten: set[str] = field(default_factory=set)
    left_out: set[str] = field(default_factory=set)
    ignored: bool = False


@dataclass(slots=True)
class _Want:
    """A topic that somebody uses: when last, and when to ask for it on its own (None: not needed)."""

    used_ms: int
    ask_at_ms: int | None
    attempts: int = 0


class ClusterMetadata:
    """Metadata of one cluster, for the topics that are in use.

    `bootstrap` are (host, port) pairs; until the first answer they are the brokers -1, -2, ... A full refresh
    is due every `max_age_ms` and after ``request_update()``; a topic that nobody wanted for `max_idle_ms` is
    forgotten. `source` gives the jitter's floats of [0, 1).

    Attributes to read: `brokers` {node id: (host, port, rack)}, `topics` {name: TopicMetadata}, `controller`
    (-1: not known), `cluster_id`, `last_error` (one line; empty after an answer without errors).
    """

    def __init__(
        self,
        bootstrap: Iterable[tuple[str, int]],
        max_age_ms: int = 300_000,
        max_idle_ms: int = 300_000,
        retry_backoff_ms: int = 100,
        retry_backoff_max_ms: int = 1000,
        allow_auto_topic_creation: bool = True,
        source: Callable[[], float] = random.random,
    ) -> None:
        self.bootstrap = list(bootstrap)
        if not self.bootstrap:
            raise ValueError("no bootstrap server was given")
        self.max_age_ms = max_age_ms
        self.max_idle_ms = max_idle_ms
        self.allow_auto_topic_creation = allow_auto_topic_creation
        self._backoff = ExponentialBackoff(
            retry_backoff_ms, max(retry_backoff_ms, retry_backoff_max_ms), source=source
        )
        self.brokers: dict[int, Broker] = self._bootstrap_brokers()
        self.topics: dict[str, TopicMetadata] = {}
        self.controller = -1
        self.cluster_id: str | None = None
        self.last_error = ""
        self._wants: dict[str, _Want] = {}
        self._full_wanted = True
        self._in_flight: tuple[bool, tuple[str, ...]] | None = None
        self._failures = 0
        self._fruitless = 0
        self._not_before_ms: int | None = None
        self._full_not_before_ms: int | None = None
        self._refreshed_ms: int | None = None

    def _bootstrap_brokers(self) -> dict[int, Broker]:
        return {-1 - index: (host, port, None) for index, (host, port) in enumerate(self.bootstrap)}

    @property
    def bootstrapping(self) -> bool:
        """Whether only the bootstrap servers are known."""
        return all(node_id < 0 for node_id in self.brokers)

    @property
    def wanted(self) -> list[str]:
        """Names of the topics in use, known or not."""
        return list(self._wants)

    def want(self, topic: str, now_ms: int) -> bool:
        """Note that `topic` is in use. True if no usable metadata of it is there: it will be asked for."""
        want = self._wants.get(topic)
        if want is None:
            self._wants[topic] = _Want(now_ms, now_ms)
            return True
        want.used_ms = max(want.used_ms, now_ms)
        known = self.topics.get(topic)
        if known is not None and not known.error_code:
            return False
        if want.ask_at_ms is None and not self._is_asked(topic):
            # An error that is not retried by itself (an ACL may have been granted since), while it is used.
            want.ask_at_ms = now_ms + self._backoff.delay_ms(want.attempts)
            want.attempts += 1
        return True

    def request_update(self) -> None:
        """Ask for a full refresh, as after an error that says that metadata is outdated."""
        self._full_wanted = True

    def next_request_at(self, now_ms: int) -> int | None:
        """When to send the next request: due if not above `now_ms`. None while one is under way."""
        if self._in_flight is not None:
            return None
        due = min([self._full_due_ms(now_ms), *self._asks_ms()])
        if self._not_before_ms is not None:
            due = max(due, self._not_before_ms)
        return max(due, now_ms)

    def request_body(self, now_ms: int) -> dict[str, Any]:
        """The body of the request to send now, which is then under way.

        It asks for the topics that are new (or due for another try) alone, unless a full refresh is due: then
        for all that are in use. Raises RuntimeError if one is under way already.
        """
        if self._in_flight is not None:
            raise RuntimeError("a metadata request is under way")
        live = {name: want for name, want in self._wants.items() if not self._is_idle(want, now_ms)}
        full = self._full_due_ms(now_ms) <= now_ms
        asked = [n for n, w in live.items() if w.ask_at_ms is not None and w.ask_at_ms <= now_ms]
        if full or not asked:
            full, asked = True, list(live)
            self._full_wanted = False
        for name in asked:
            live[name].ask_at_ms = None
        self._in_flight = (full, tuple(asked))
        return {
            "topics": [{"name": name} for name in asked],
            "allow_auto_topic_creation": self.allow_auto_topic_creation,
        }

    def on_response(self, body: Mapping[str, Any], now_ms: int) -> MetadataChange:
        """Take the answer (a decoded MetadataResponse); one without usable brokers counts as a failure.

        Raises ProtocolError, with nothing changed but the failure noted, if a partition's number is absurd.
        """
        full, asked = self._in_flight or (True, ())
        usable = [item for item in body["brokers"] if _is_usable(item)]
        left_out = {f"{item['host']}:{item['port']}" for item in body["brokers"] if not _is_usable(item)}
        if not usable:
            self.on_failure(now_ms, f"a broker answered with an empty list of {'usable ' * bool(left_out)}brokers")
            return MetadataChange(left_out=left_out, ignored=True)
        try:
            merged = self._merge(body, asked)
        except Exception as error:  # whatever it is, the request is over
            self.on_failure(now_ms, str(error))
            raise
        self._in_flight = None
        self._failures = 0
        self._not_before_ms = None
        change = MetadataChange(brokers=self._take_cluster(body, usable), left_out=left_out)
        self.last_error = ""
        for name, topic in merged.items():
            self._take_topic(name, topic, change, now_ms)
        self._forget_idle(change, now_ms)
        self._fruitless = 0 if change.topics or change.brokers else self._fruitless + 1
        self._full_not_before_ms = now_ms + self._backoff.delay_ms(self._fruitless)
        if full:
            self._refreshed_ms = now_ms
        if any(topic.needs_update or self._lacks_a_broker(topic) for topic in merged.values()):
            self._full_wanted = True
        return change

    def on_failure(self, now_ms: int, text: str) -> None:
        """The request under way got no usable answer, `text` says why. It is repeated after a pause."""
        if self._in_flight is not None:
            full, asked = self._in_flight
            self._in_flight = None
            self._full_wanted = self._full_wanted or full
            for name in asked:
                known = self.topics.get(name)
                if name in self._wants and (known is None or known.error_code):
                    self._wants[name].ask_at_ms = now_ms
        self._not_before_ms = now_ms + self._backoff.delay_ms(self._failures)
        self._failures += 1
        self.last_error = text

    def rebootstrap(self) -> MetadataChange:
        """Start again from the bootstrap servers, because no known broker can be used.

        Topics keep their number of partitions but have no leaders, and epochs start afresh: behind the
        bootstrap servers there may be another cluster by now. A pause after failures goes on.
        """
        self.brokers = self._bootstrap_brokers()
        self.controller = -1
        self.cluster_id = None
        for topic in self.topics.values():
            topic.partitions = [PartitionMetadata() for _ in topic.partitions]
        self._in_flight = None
        self._full_wanted = True
        self._full_not_before_ms = None
        return MetadataChange(topics=set(self.topics), brokers=True)

    def _is_idle(self, want: _Want, now_ms: int) -> bool:
        return now_ms - want.used_ms > self.max_idle_ms

    def _is_asked(self, topic: str) -> bool:
        return self._in_flight is not None and topic in self._in_flight[1]

    def _asks_ms(self) -> list[int]:
        return [want.ask_at_ms for want in self._wants.values() if want.ask_at_ms is not None]

    def _full_due_ms(self, now_ms: int) -> int:
        """When the next full refresh is due, failures aside."""
        if self._refreshed_ms is None:
            return now_ms
        due = now_ms if self._full_wanted else self._refreshed_ms + self.max_age_ms
        return due if self._full_not_before_ms is None else max(due, self._full_not_before_ms)

    def _merge(self, body: Mapping[str, Any], asked: Iterable[str]) -> dict[str, TopicMetadata]:
        """The topics of an answer, merged with what was known. Asked but not answered means unknown."""
        answers = {item["name"]: item for item in body["topics"] if item["name"] in self._wants}
        merged = {name: merge_topic(self.topics.get(name), item) for name, item in answers.items()}
        for name in asked:
            if name in self._wants and name not in merged:
                old = self.topics.get(name, TopicMetadata())
                merged[name] = TopicMetadata(UNKNOWN_TOPIC_OR_PARTITION, old.topic_id, old.partitions)
        return merged

    def _take_cluster(self, body: Mapping[str, Any], usable: Iterable[Mapping[str, Any]]) -> bool:
        """Take brokers, controller and cluster id; whether the brokers changed."""
        brokers = {item["node_id"]: (item["host"], item["port"], item["rack"]) for item in usable}
        changed = brokers != self.brokers
        self.brokers = brokers
        self.controller = body["controller_id"]
        if body["cluster_id"] is not None:
            self.cluster_id = body["cluster_id"]
        return changed

    def _take_topic(self, name: str, topic: TopicMetadata, change: MetadataChange, now_ms: int) -> None:
        """Store one topic; plan another try if its error is a retriable one."""
        if self.topics.get(name) != topic:
            change.topics.add(name)
        self.topics[name] = topic
        want = self._wants[name]
        want.ask_at_ms = None
        if not topic.error_code:
            want.attempts = 0
            return
        change.errors[name] = topic.error_code
        self.last_error = f"topic {name!r}: {describe(topic.error_code)}"
        if error_of(topic.error_code).retriable:
            want.ask_at_ms = now_ms + self._backoff.delay_ms(want.attempts)
            want.attempts += 1

    def _lacks_a_broker(self, topic: TopicMetadata) -> bool:
        """Whether a partition's leader is none of the brokers that were named."""
        return any(p.leader_id >= 0 and p.leader_id not in self.brokers for p in topic.partitions)

    def _forget_idle(self, change: MetadataChange, now_ms: int) -> None:
        """Drop the topics that nobody wanted for too long."""
        for name in [name for name, want in self._wants.items() if self._is_idle(want, now_ms)]:
            del self._wants[name]
            change.forgotten.add(name)
            change.errors.pop(name, None)
            if self.topics.pop(name, None) is not None:
                change.topics.add(name)


def _is_usable(broker: Mapping[str, Any]) -> bool:
    """Whether its id and its port can be a broker's: a negative id is a bootstrap server's here."""
    return bool(broker["node_id"] >= 0 and 0 < broker["port"] < 1 << 16)
