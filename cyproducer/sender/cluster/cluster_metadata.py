"""Keeps a cluster's metadata (topics, leaders, epochs, brokers) and decides when to refresh it, without sockets.

When ``next_request_at()`` is due, the caller sends ``request_body()`` as a Metadata request to any broker. It
passes the response to ``on_response()``, or calls ``on_failure()`` if there is none. Only one request is in flight
at a time. All times are milliseconds of one clock that the caller chooses. Source of the rules: Kafka's
ProducerMetadata and Metadata, KIP-899 (rebootstrap).
"""

import heapq
import math
import random
from collections import OrderedDict
from collections.abc import Callable, Iterable, KeysView, Mapping
from dataclasses import dataclass, field
from typing import Any

from cyproducer.codes import UNKNOWN_TOPIC_OR_PARTITION
from cyproducer.error_table import describe, error_of
from cyproducer.protocol.fields import ZERO_UUID

from .backoff import ExponentialBackoff
from .topic_state import PartitionMetadata, TopicMetadata, merge_topic

__all__ = ["ClusterMetadata", "MetadataChange", "PartitionMetadata", "TopicMetadata"]

Broker = tuple[str, int, str | None]
"""(host, port, rack or None)"""

PARTITIONS_PER_REQUEST = 256
"""Limit of topics plus known partitions per request, so that decoding the response takes only some milliseconds."""

FORGOTTEN_PER_ANSWER = 512

NEEDED_FOR_MS = 2000
"""How long a topic is requested again because it lacks a partition; a waiting thread calls want() each second."""


@dataclass(slots=True)
class MetadataChange:
    """The changes by a response.

    `topics`: names whose metadata changed, forgotten topics included; `brokers`: whether the brokers changed;
    `errors`: {topic: error code} of every topic with an error in the response, changed or not; `forgotten`:
    names that were unused for too long; `left_out`: "host:port" of every broker with an invalid id or port;
    `ignored`: the response was unusable and counts as a failure.
    """

    topics: set[str] = field(default_factory=set)
    brokers: bool = False
    errors: dict[str, int] = field(default_factory=dict)
    forgotten: set[str] = field(default_factory=set)
    left_out: set[str] = field(default_factory=set)
    ignored: bool = False


@dataclass(slots=True)
class _WantedTopic:
    """A topic in use. `used_ms`: time of the last use.

    `request_at_ms`: when to request this topic apart from a full refresh (None: not needed). `attempts`: number of such
    requests. `refresh`: number of the full refresh that requested the topic last. `needed`: number of a partition that
    is needed until `needed_until_ms`. `answered_ms`: time of the last response with this topic.
    """

    used_ms: int
    request_at_ms: int | None
    attempts: int = 0
    refresh: int = 0
    needed: int = 0
    needed_until_ms: int = 0
    answered_ms: int = 0


def metadata_request(names: Iterable[str], allow_auto_topic_creation: bool = True) -> dict[str, Any]:
    """Return the body of a request for these topics. The response names the brokers of the cluster in any case."""
    return {
        "topics": [{"name": name} for name in names],
        "allow_auto_topic_creation": allow_auto_topic_creation,
        "include_cluster_authorized_operations": False,
        "include_topic_authorized_operations": False,
    }


class ClusterMetadata:
    """Metadata of one cluster, for the topics that are in use.

    `bootstrap` are (host, port) pairs; until the first response they are the brokers -1, -2, ... A full refresh
    is due every `max_age_ms` and after ``request_update()``. For many topics it takes several requests, so that no
    single response takes long. A topic that is unused for `max_idle_ms` is forgotten. `source` returns the floats in
    [0, 1) for the jitter. The cost of a call depends on the topics it concerns, not on the number of known topics.

    Attributes to read: `brokers` {node id: (host, port, rack)}, `topics` {name: TopicMetadata}, `controller`
    (-1: not known), `cluster_id`, `last_error` (one line; empty after a response without errors), `answers` (how many
    responses with brokers have come).
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
            raise ValueError("the list of bootstrap servers is empty")
        self.max_age_ms = max_age_ms
        self.max_idle_ms = max_idle_ms
        self.allow_auto_topic_creation = allow_auto_topic_creation
        self._backoff = ExponentialBackoff(retry_backoff_ms, retry_backoff_max_ms, source=source)
        self.brokers: dict[int, Broker] = self._bootstrap_brokers()
        self.topics: dict[str, TopicMetadata] = {}
        self.controller = -1
        self.cluster_id: str | None = None
        self.last_error = ""
        self.answers = 0
        self._wanted: OrderedDict[str, _WantedTopic] = OrderedDict()  # least recently used topic first
        # A heap of (time, topic). An entry is valid if the topic's request_at_ms is the same time.
        self._scheduled: list[tuple[int, str]] = []
        self._full_wanted = True
        self._full_left: list[str] | None = None  # the topics that the current full refresh still has to request
        self._full_progress = False
        self._refresh = 0
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

    def knows(self, broker_id: int) -> bool:
        """Return whether the broker is one of the cluster, as far as that is known."""
        return self.bootstrapping or broker_id in self.brokers

    @property
    def wanted(self) -> KeysView[str]:
        """The names of the topics in use, with or without metadata."""
        return self._wanted.keys()

    def any_idle(self, now_ms: int) -> bool:
        """Return whether a topic has been unused for so long that the next response makes it forgotten."""
        oldest = next(iter(self._wanted.values()), None)
        return oldest is not None and self._is_idle(oldest, now_ms)

    def want(self, topic: str, now_ms: int, partition: int = 0) -> bool:
        """Note that `topic` is in use. Return True if there is no usable metadata of it; then it will be requested.

        The result is also True if the topic has no partition of the number `partition`: the partition may be new, or
        the last response may come from a broker with outdated metadata. The topic is then requested again, with pauses,
        for two seconds.
        """
        want = self._wanted.get(topic)
        if want is None:
            want = _WantedTopic(now_ms, None, needed=partition, needed_until_ms=now_ms + NEEDED_FOR_MS)
            self._wanted[topic] = want
            self._schedule(topic, want, now_ms)
            return True
        want.used_ms = max(want.used_ms, now_ms)
        self._wanted.move_to_end(topic)
        known = self.topics.get(topic)
        since_ms = now_ms
        if known is not None and not known.error_code:
            if partition < len(known.partitions):
                return False
            since_ms = want.answered_ms
        want.needed, want.needed_until_ms = partition, now_ms + NEEDED_FOR_MS
        if want.request_at_ms is None and not self._is_requested(topic):
            # The topic has an error without automatic retry. Try again while it is used: an ACL may have been added.
            self._schedule(topic, want, max(since_ms + self._backoff.delay_ms(want.attempts), now_ms))
            want.attempts += 1
        return True

    def _schedule(self, topic: str, want: _WantedTopic, at_ms: int) -> None:
        """Schedule a request for this topic at `at_ms`, apart from full refreshes."""
        want.request_at_ms = at_ms
        heapq.heappush(self._scheduled, (at_ms, topic))

    def request_update(self) -> None:
        """Request a full refresh, for example after an error which shows that the metadata is out of date."""
        self._full_wanted = True

    def next_request_at(self, now_ms: int) -> int | None:
        """Return when to send the next request: it is due if not above `now_ms`. None while a request is in flight."""
        if self._in_flight is not None:
            return None
        due = min(self._full_due_ms(now_ms), self._next_scheduled_ms())
        if self._not_before_ms is not None:
            due = max(due, self._not_before_ms)
        return int(max(due, now_ms))

    def request_body(self, now_ms: int) -> dict[str, Any]:
        """Return the body of the request to send now, and count that request as in flight.

        It requests the topics that are new or due for another attempt. If a full refresh is due, it also requests the
        next topics of all that are in use, the most recently used first. Raise RuntimeError if a request is in flight.
        """
        if self._in_flight is not None:
            raise RuntimeError("a metadata request is already in flight")
        names = self._take_scheduled(now_ms)
        full = self._full_due_ms(now_ms) <= now_ms or not names
        if full:
            names = self._add_full_refresh(names, now_ms)
        self._in_flight = (full, tuple(names))
        return metadata_request(names, self.allow_auto_topic_creation)

    def _take_scheduled(self, now_ms: int) -> list[str]:
        """Take the scheduled topics that are due, as many as fit into a request, and return them."""
        names: list[str] = []
        while self._next_scheduled_ms() <= now_ms and len(names) < PARTITIONS_PER_REQUEST:
            _, name = heapq.heappop(self._scheduled)
            self._wanted[name].request_at_ms = None
            if not self._is_idle(self._wanted[name], now_ms):
                names.append(name)
        return names

    def _add_full_refresh(self, names: list[str], now_ms: int) -> list[str]:
        """Return `names` with the next topics of the full refresh in front; begin a full refresh if there is none."""
        if self._full_left is None:
            self._full_left = list(self._wanted)
            self._refresh += 1
            self._full_progress = False
            self._full_wanted = False
        left, chosen = self._full_left, []
        for name in names:
            self._wanted[name].refresh = self._refresh
        space = PARTITIONS_PER_REQUEST - len(names)
        while left and space > 0:
            name = left.pop()
            want, known = self._wanted.get(name), self.topics.get(name)
            if want is None or want.refresh == self._refresh or self._is_idle(want, now_ms):
                continue
            want.refresh = self._refresh
            want.request_at_ms = None
            chosen.append(name)
            space -= 1 if known is None else 1 + len(known.partitions)
        return chosen[::-1] + names

    def on_response(self, body: Mapping[str, Any], now_ms: int, *, reliable_epochs: bool = True) -> MetadataChange:
        """Apply the response (a decoded MetadataResponse). A response without usable brokers counts as a failure.

        `reliable_epochs`: leader epochs show which of two responses is newer, as those of Metadata v9 do.

        Raise ProtocolError if a partition's number is out of range; then only the failure is noted.
        """
        full, names = self._in_flight or (True, ())
        usable = [item for item in body["brokers"] if _is_usable(item)]
        left_out = {f"{item['host']}:{item['port']}" for item in body["brokers"] if not _is_usable(item)}
        if not usable:
            self.on_failure(now_ms, f"a broker sent metadata with an empty list of {'usable ' * bool(left_out)}brokers")
            return MetadataChange(left_out=left_out, ignored=True)
        try:
            merged = self._merge(body, names, reliable_epochs)
        except Exception as error:  # after any error the request is no longer in flight
            self.on_failure(now_ms, str(error))
            raise
        self._in_flight = None
        self._failures = 0
        self._not_before_ms = None
        change = MetadataChange(brokers=self._apply_brokers(body, usable), left_out=left_out)
        self.last_error = ""
        for name, topic in merged.items():
            self._apply_topic(name, topic, change, now_ms)
        self._forget_idle(change, now_ms)
        self._end_round(full, change, now_ms)
        if any(topic.needs_update or self._lacks_a_broker(topic) for topic in merged.values()):
            self._full_wanted = True
        return change

    def _end_round(self, full: bool, change: MetadataChange, now_ms: int) -> None:
        """Note after a response whether the full refresh is complete, and when the next one may begin."""
        self._full_progress = self._full_progress or bool(change.topics) or change.brokers
        if full and self._full_left:
            return
        self._fruitless = 0 if self._full_progress else self._fruitless + 1
        self._full_not_before_ms = now_ms + self._backoff.delay_ms(self._fruitless)
        self._full_progress = False
        if full:
            self._full_left = None
            self._refreshed_ms = now_ms

    def on_failure(self, now_ms: int, text: str) -> None:
        """Note that the request got no usable response, for the reason in `text`. It is repeated after a pause."""
        if self._in_flight is not None:
            full, names = self._in_flight
            self._in_flight = None
            if full and self._full_left is not None:
                self._full_left.extend(names)
                for name in names:
                    if name in self._wanted:
                        self._wanted[name].refresh = 0
            for name in names:
                known = self.topics.get(name)
                if name in self._wanted and (known is None or known.error_code):
                    self._schedule(name, self._wanted[name], now_ms)
        self._not_before_ms = now_ms + self._backoff.delay_ms(self._failures)
        self._failures += 1
        self.last_error = text

    def apply_leaders(
        self, leaders: Mapping[tuple[str, int], tuple[int, int]], endpoints: Mapping[int, Broker]
    ) -> MetadataChange:
        """Apply newer leaders that a broker has named in another response (KIP-951), and return the changes.

        `leaders`: {(topic, partition): (leader, leader epoch)}. `endpoints`: addresses of brokers. A leader counts if
        its epoch is newer, the broker is known or in `endpoints`, and the topic is usable. If none counts, the
        endpoints are not taken either.
        """
        change = MetadataChange()
        if self.bootstrapping:  # the answer may come from another cluster
            return change
        usable = {node: broker for node, broker in endpoints.items() if _is_address(node, broker[1])}
        for (name, index), (leader, epoch) in leaders.items():
            known = self.topics.get(name)
            if known is None or not 0 <= index < len(known.usable):
                continue
            partition = known.partitions[index]
            if leader >= 0 and epoch > partition.leader_epoch and (leader in usable or leader in self.brokers):
                partition.leader_id, partition.leader_epoch = leader, epoch
                change.topics.add(name)
        if change.topics:
            brokers = {**self.brokers, **usable}
            change.brokers = brokers != self.brokers
            self.brokers = brokers
        return change

    def rebootstrap(self) -> MetadataChange:
        """Start again from the bootstrap servers, because no known broker can be used.

        Topics keep their number of partitions, but leaders and epochs are dropped: the bootstrap servers may belong to
        another cluster now. A pause after failures continues.
        """
        self.brokers = self._bootstrap_brokers()
        self.controller = -1
        self.cluster_id = None
        for topic in self.topics.values():
            topic.partitions = [PartitionMetadata() for _ in topic.partitions]
        self._in_flight = None
        self._full_wanted = True
        self._full_left = None
        self._full_not_before_ms = None
        return MetadataChange(topics=set(self.topics), brokers=True)

    def _is_idle(self, want: _WantedTopic, now_ms: int) -> bool:
        return now_ms - want.used_ms > self.max_idle_ms

    def _is_requested(self, topic: str) -> bool:
        return self._in_flight is not None and topic in self._in_flight[1]

    def _next_scheduled_ms(self) -> float:
        """Return when the next scheduled topic is due; infinity if none is scheduled."""
        while self._scheduled:
            at_ms, name = self._scheduled[0]
            want = self._wanted.get(name)
            if want is not None and want.request_at_ms == at_ms:
                return at_ms
            heapq.heappop(self._scheduled)
        return math.inf

    def _full_due_ms(self, now_ms: int) -> int:
        """Return when the next full refresh is due, without the pause after failures."""
        if self._refreshed_ms is None or self._full_left is not None:
            return now_ms
        due = now_ms if self._full_wanted else self._refreshed_ms + self.max_age_ms
        return due if self._full_not_before_ms is None else max(due, self._full_not_before_ms)

    def _merge(self, body: Mapping[str, Any], names: Iterable[str], reliable_epochs: bool) -> dict[str, TopicMetadata]:
        """Return the topics of a response, merged with the known metadata.

        A topic that was requested and is not in the response counts as UNKNOWN_TOPIC_OR_PARTITION.
        """
        answers = {item["name"]: item for item in body["topics"] if item["name"] in self._wanted}
        merged = {name: merge_topic(self.topics.get(name), item, reliable_epochs) for name, item in answers.items()}
        for name in names:
            if name in self._wanted and name not in merged:
                unknown = {"error_code": UNKNOWN_TOPIC_OR_PARTITION, "topic_id": ZERO_UUID}
                merged[name] = merge_topic(self.topics.get(name), unknown, reliable_epochs)
        return merged

    def _apply_brokers(self, body: Mapping[str, Any], usable: Iterable[Mapping[str, Any]]) -> bool:
        """Store brokers, controller and cluster id. Return whether the brokers changed."""
        brokers = {item["node_id"]: (item["host"], item["port"], item["rack"]) for item in usable}
        changed = brokers != self.brokers
        self.brokers = brokers
        self.answers += 1
        self.controller = body["controller_id"]
        if body["cluster_id"] is not None:
            self.cluster_id = body["cluster_id"]
        return changed

    def _apply_topic(self, name: str, topic: TopicMetadata, change: MetadataChange, now_ms: int) -> None:
        """Store one topic. Schedule another attempt if its error is retriable."""
        if self.topics.get(name) != topic:
            change.topics.add(name)
        self.topics[name] = topic
        want = self._wanted[name]
        want.request_at_ms = None
        want.answered_ms = now_ms
        if not topic.error_code:
            if want.needed >= len(topic.partitions) and now_ms < want.needed_until_ms:
                self._schedule(name, want, now_ms + self._backoff.delay_ms(want.attempts))
                want.attempts += 1
            else:
                want.attempts = 0
            return
        change.errors[name] = topic.error_code
        self.last_error = f"topic {name!r}: {describe(topic.error_code)}"
        if error_of(topic.error_code).retriable:
            self._schedule(name, want, now_ms + self._backoff.delay_ms(want.attempts))
            want.attempts += 1

    def _lacks_a_broker(self, topic: TopicMetadata) -> bool:
        """Return whether the leader of a partition is not among the known brokers."""
        return any(p.leader_id >= 0 and p.leader_id not in self.brokers for p in topic.usable)

    def _forget_idle(self, change: MetadataChange, now_ms: int) -> None:
        """Drop topics that were unused for too long."""
        while self.any_idle(now_ms) and len(change.forgotten) < FORGOTTEN_PER_ANSWER:
            name, _ = self._wanted.popitem(last=False)
            change.forgotten.add(name)
            change.errors.pop(name, None)
            if self.topics.pop(name, None) is not None:
                change.topics.add(name)


def _is_usable(broker: Mapping[str, Any]) -> bool:
    """Return whether id and port of the broker are valid. Negative ids belong to bootstrap servers here."""
    return _is_address(broker["node_id"], broker["port"])


def _is_address(node_id: int, port: int) -> bool:
    return node_id >= 0 and 0 < port < 1 << 16
