"""Asks for the metadata of the topics in use, gives it to the loop, and publishes it for the front-ends.

It also decides when the bootstrap servers are asked for the cluster again (KIP-899, KIP-1102).
"""

import logging
from collections.abc import Iterable
from typing import Any

from cyproducer.codes import REBOOTSTRAP_REQUIRED, UNKNOWN_TOPIC_OR_PARTITION
from cyproducer.error_table import describe
from cyproducer.protocol.fields import decode_exactly
from cyproducer.protocol.kafka_messages import ApiKey
from cyproducer.protocol.schema import RESPONSES, field_type
from cyproducer.sender.cluster.cluster_metadata import ClusterMetadata, MetadataChange, PartitionMetadata
from cyproducer.sender.cluster.connection import Connection, NoAnswerError
from cyproducer.sender.cluster.connections import Connections
from cyproducer.sender.cluster.report import Report
from cyproducer.sender.cluster.topic_requests import IdleTopics, TopicRequests, TopicShares
from cyproducer.sender.engine.events import EventHandlers, LeadersNamed, RefreshWanted
from cyproducer.sender.engine.native import FrontEnds, Loop, TopicNumbers
from cyproducer.sender.system.tasks import NOTHING_DUE_MS, Tasks

__all__ = ["PARTITIONS_PER_ITERATION", "TRIGGER_MIN_MS", "Metadata", "Rebootstrap"]

PARTITIONS_PER_ITERATION = 1024  # new leaders that are set in one loop iteration: takes some milliseconds
TOPICS_USED_EVERY_MS = 30_000  # at most half of metadata_max_idle_ms, after which a topic is forgotten
RELIABLE_EPOCHS_FROM = 9  # MetadataResponse.hasReliableLeaderEpochs
TRIGGER_MIN_MS = 1000  # metadata_recovery_rebootstrap_trigger_ms: a broker must be able to answer within this time
ENDPOINTS = field_type(RESPONSES[ApiKey.PRODUCE], "node_endpoints", RESPONSES[ApiKey.PRODUCE].last)


class Rebootstrap:
    """Knows since when metadata is needed in vain. With the strategy "none" it never asks for a rebootstrap.

    As in Kafka, the time begins when a request is due, and ends with a usable response.
    """

    def __init__(self, settings: dict[str, Any]) -> None:
        self.enabled = settings["metadata_recovery_strategy"] == "rebootstrap"
        self._trigger_ms = max(int(settings["metadata_recovery_rebootstrap_trigger_ms"]), TRIGGER_MIN_MS)
        self._since_ms: int | None = None

    def begin(self, now_ms: int) -> None:
        """Record that a metadata request is due. The time does not begin again before `end()`."""
        if self._since_ms is None:
            self._since_ms = now_ms

    def end(self) -> None:
        """Record that usable metadata was obtained, or that the bootstrap servers are asked now."""
        self._since_ms = None

    def due_ms(self, now_ms: int) -> int:
        """Return in how many ms the time without metadata is over; 0 or less: it is over."""
        if not self.enabled or self._since_ms is None:
            return NOTHING_DUE_MS
        return self._since_ms + self._trigger_ms - now_ms


class Metadata:
    """The metadata of the topics that front-ends use.

    rows_published, waiters_woken  counters of work; tests compare them with the number of topics
    """

    def __init__(
        self,
        loop: Loop,
        front_ends: FrontEnds,
        connections: Connections,
        cluster: ClusterMetadata,
        tasks: Tasks,
        report: Report,
        settings: dict[str, Any],
        log: logging.Logger,
    ) -> None:
        self.rows_published = 0
        self.waiters_woken = 0
        self._loop = loop
        self._front_ends = front_ends
        self._connections = connections
        self._cluster = cluster
        self._tasks = tasks
        self._report = report
        self._log = log
        self._rebootstrap = Rebootstrap(settings)
        self._requests = TopicRequests()
        self._shares = TopicShares()
        self._numbers = TopicNumbers(front_ends)
        self._idle = IdleTopics()
        self._given_back: list[str] = []
        self._forgotten: list[str] = []  # topics that have left the metadata
        self._changed_topics: dict[str, None] = {}  # topics whose new metadata must be applied and published
        self._leaderless: dict[int, set[str]] = {}  # by broker id: topics that need a connection which does not exist
        self._truncated: dict[str, int] = {}  # partitions in the loop, of topics that do not fit into it
        self._left_out: set[str] = set()  # invalid brokers of the last metadata response
        self._used_at_ms = 0
        self._failures = 0  # of connections, that were looked at

    def restore(self, now_ms: int) -> None:
        """Keep the predecessor's published metadata until there is newer metadata.

        Request metadata at once for topics that a front-end has requested and that have none.
        """
        for name in self._loop.topics_without_metadata():
            self._cluster.want(name, now_ms)
            self._requests.add_unknown(name)
        self._idle.add(self._loop.topics(), now_ms + self._cluster.max_idle_ms)
        self._report.take_changed()

    # ------------------------------------------------------------ topics of front-ends

    @property
    def is_unsettled(self) -> bool:
        """Whether metadata has come that is not applied and published yet."""
        return bool(self._changed_topics)

    def want(self, attach_id: int, name: str, partition: int = 0) -> None:
        """Request metadata of a topic in which `partition` exists. Wake the front-end when there is new metadata.

        Raise OverflowError if the name is new and the front-end has used up its share of the table of topics.
        """
        known, free = self._loop.room_for_topic(name)
        if not known:
            self._shares.add(attach_id, name, free)
        self._loop.add_topic(name)
        self._requests.add(attach_id, name)
        if not self._cluster.want(name, self._tasks.now_ms, partition) and name not in self._changed_topics:
            self.waiters_woken += self._front_ends.wake_snapshot_waiters((attach_id,))  # it is already published

    def drop(self, attach_id: int) -> None:
        """Forget the requests of a front-end that has ended."""
        self._requests.drop(attach_id)
        self._shares.drop(attach_id)

    def take_given_back(self) -> list[str]:
        """Return the names of the topics that have given their numbers back since the last call."""
        names, self._given_back = self._given_back, []
        return names

    # ------------------------------------------------------------ scheduled work

    def add_handlers(self, handlers: EventHandlers) -> None:
        """Say what is done for each event of the loop that is about metadata."""
        handlers.add(RefreshWanted, self._on_refresh_wanted)
        handlers.add(LeadersNamed, self._on_leaders_named)

    def _on_refresh_wanted(self, event: RefreshWanted, now_ms: int) -> None:
        self._cluster.request_update()
        self._used_at_ms = 0  # after a takeover only the loop knows which topics are in use

    def tick(self, now_ms: int) -> int:
        """Do what is due. Return in how many ms something is due again."""
        due_ms = self._give_numbers_back(now_ms)
        if now_ms >= self._used_at_ms:
            self._keep_used_topics(now_ms)
        self._after_failures()
        due_ms = min(due_ms, self._bootstrap_again(now_ms), self._request(now_ms))
        return 0 if self._changed_topics else due_ms

    def _request(self, now_ms: int) -> int:
        """Send a request for metadata if that is due. Return in how many ms something is due again."""
        cluster = self._cluster
        if not (cluster.wanted or self._connections.has_users):
            return NOTHING_DUE_MS
        at_ms = cluster.next_request_at(now_ms)
        if at_ms is None:
            return NOTHING_DUE_MS
        if at_ms > now_ms:
            return at_ms - now_ms
        self._rebootstrap.begin(now_ms)
        connection = self._connections.least_loaded()
        if connection is None:
            return self._connections.connect_any()
        if cluster.any_idle(now_ms):
            self._keep_used_topics(now_ms)
        version = connection.version_of(ApiKey.METADATA)
        assert version is not None  # without Metadata, a connection is not set up
        self._tasks.start(self._ask(connection, version, cluster.request_body(now_ms)))
        return NOTHING_DUE_MS

    async def _ask(self, connection: Connection, version: int, body: dict[str, Any]) -> None:
        try:
            # librdkafka's mock cluster adds a byte after the body; the Java client ignores such bytes, too.
            answer = await connection.ask_or_close(ApiKey.METADATA, body, version=version, exact=False)
        except NoAnswerError as error:
            self._cluster.on_failure(self._tasks.now_ms, f"broker {connection.broker.name}: {error}")
            return
        try:
            self._on_response(connection, version, answer)
        except Exception as error:
            connection.close_for(error)

    def _on_response(self, connection: Connection, version: int, body: dict[str, Any]) -> None:
        now_ms, cluster = self._tasks.now_ms, self._cluster
        if body["error_code"] == REBOOTSTRAP_REQUIRED:
            cluster.on_failure(now_ms, f"broker {connection.broker.name}: {describe(REBOOTSTRAP_REQUIRED)}")
            if self._rebootstrap.enabled:
                self._close_all_and_ask("the cluster asks the client to bootstrap again")
            return
        if cluster.any_idle(now_ms):  # topics may have become idle meanwhile, if this process was stopped
            self._keep_used_topics(now_ms)
        change = cluster.on_response(body, now_ms, reliable_epochs=version >= RELIABLE_EPOCHS_FROM)
        for name in change.forgotten:
            self._loop.forget_topic(name)
            self._truncated.pop(name, None)
        self._forgotten += change.forgotten
        for broker in sorted(change.left_out - self._left_out):
            self._log.warning("ignoring broker %s of the metadata response: its id or port is invalid", broker)
        self._left_out = change.left_out
        self._report.set_changed()
        if change.ignored:
            return
        self._rebootstrap.end()
        self._loop.set_metadata_time()
        if not cluster.last_error:
            self._report.set_error("")
        if connection.broker.id < 0:
            self._connections.keep_bootstrap(connection)
        self._apply(change)

    def _on_leaders_named(self, event: LeadersNamed, now_ms: int) -> None:
        """Take the newer leaders that a broker names (KIP-951): their batches need not wait for the next metadata."""
        try:
            endpoints = decode_exactly(ENDPOINTS, event.endpoints, "node_endpoints") if event.endpoints else []
            change = self._cluster.apply_leaders(
                {self._loop.partition_name(row): (leader, epoch) for row, leader, epoch in event.leaders},
                {item["node_id"]: (item["host"], item["port"], item["rack"]) for item in endpoints},
            )
            if change.brokers:
                self._report.set_changed()
            self._apply(change)
        except Exception as error:
            self._connections.close_for(event.node, error)

    def _apply(self, change: MetadataChange) -> None:
        self._connections.update()
        self._schedule_publication(change.topics)

    def _schedule_publication(self, names: Iterable[str]) -> None:
        self._changed_topics.update(dict.fromkeys(names))

    def _keep_used_topics(self, now_ms: int) -> None:
        """Keep the topics with batches in the metadata, or add them to it again."""
        self._used_at_ms = now_ms + min(TOPICS_USED_EVERY_MS, self._cluster.max_idle_ms // 2)
        for name in self._loop.take_used_topics():
            self._cluster.want(name, now_ms)

    # ------------------------------------------------------------ bootstrap servers

    def _after_failures(self) -> None:
        """If no broker of the metadata can be used, ask the bootstrap servers for other brokers (KIP-899).

        If authentication has failed, tell the front-ends that wait for metadata, and records that expire.
        """
        if self._report.failures == self._failures:
            return
        self._failures = self._report.failures
        if self._connections.is_refused:
            self._report.set_auth_failed()
            self._loop.set_auth_failed(True)
        if not self._cluster.bootstrapping and self._rebootstrap.enabled and self._connections.all_unreachable:
            self._ask_bootstrap_servers("no known broker can be used")

    def _bootstrap_again(self, now_ms: int) -> int:
        """Close all connections if there is no metadata for too long, and ask the bootstrap servers (KIP-1102)."""
        due_ms = self._rebootstrap.due_ms(now_ms)
        if due_ms > 0:
            return due_ms
        self._close_all_and_ask("no metadata within metadata_recovery_rebootstrap_trigger_ms")
        return NOTHING_DUE_MS

    def _close_all_and_ask(self, reason: str) -> None:
        self._connections.drop_all("closed for another attempt with the bootstrap servers")
        self._ask_bootstrap_servers(reason)

    def _ask_bootstrap_servers(self, reason: str) -> None:
        self._log.warning("%s: asking the bootstrap servers again", reason)
        self._rebootstrap.end()
        change = self._cluster.rebootstrap()
        self._connections.count_as_reachable()
        self._schedule_publication(change.topics)

    # ------------------------------------------------------------ publishing

    def publish(self) -> None:
        """Apply and publish what has changed since the last call, and wake the front-ends that wait for it."""
        report, snapshot, cluster = self._report, self._front_ends.snapshot, self._cluster
        if report.take_changed():
            # before the topics, since a front-end that they wake may read it; after a takeover the predecessor's count
            # of brokers stays until this sender has learned of the cluster
            brokers = snapshot.brokers_known() if cluster.bootstrapping else len(cluster.brokers)
            snapshot.describe(brokers, self.present_error())
            if report.take_auth_failed():
                snapshot.publish_auth_failure()
                self.waiters_woken += self._front_ends.wake_snapshot_waiters()
        for name in self._publish_leaders():
            self._publish_topic(name)

    @property
    def cluster_id(self) -> str | None:
        """The cluster id that a broker has reported; None before that, and while no known broker can be used."""
        return self._cluster.cluster_id

    def present_error(self) -> str:
        """Return the last error with the cluster, or else that of a broker that could not be reached."""
        return self._cluster.last_error or self._report.last_error or self._connections.error_of_brokers()

    def _publish_topic(self, name: str) -> None:
        topic = self._cluster.topics[name]
        partitions = topic.usable[: self._truncated.get(name)]
        leaders = bytes(partition.leader_id >= 0 for partition in partitions)
        try:
            changed = self._front_ends.snapshot.store(self._loop.add_topic(name), topic.error_code, leaders)
        except OverflowError as error:
            self._log.error("cannot publish the metadata of topic %s: %s", name, error)
            return
        if changed:
            self.rows_published += 1
            waiting = self._requests.take(name, bool(leaders and not topic.error_code))
            self.waiters_woken += self._front_ends.wake_snapshot_waiters(waiting)

    def _publish_leaders(self) -> list[str]:
        """Give the loop the new leaders of some topics, the oldest change first. Return their names, to be published.

        The rest stays for the next loop iteration, so that many changed leaders do not make one long.
        """
        for broker_id in self._connections.take_added():
            self._schedule_publication(self._leaderless.pop(broker_id, ()))
        names: list[str] = []
        left = PARTITIONS_PER_ITERATION
        while self._changed_topics and left > 0:
            name = next(iter(self._changed_topics))
            del self._changed_topics[name]
            topic = self._cluster.topics.get(name)
            if topic is None:
                continue
            names.append(name)
            left -= 1 + len(topic.partitions)
            number = self._loop.add_topic(name)
            self._loop.set_topic_error(number, topic.error_code)
            if not topic.error_code:
                self._loop.set_topic_id(number, topic.topic_id.bytes if topic.topic_id is not None else b"")
            if topic.partitions or topic.error_code == UNKNOWN_TOPIC_OR_PARTITION:
                # After a retriable error no partition has a leader: queued batches wait, as in Kafka's producer.
                self._set_leaders(name, topic.usable)
        return names

    def _set_leaders(self, name: str, partitions: list[PartitionMetadata]) -> None:
        leaders, epochs = [], [partition.leader_epoch for partition in partitions]
        for partition in partitions:
            node = self._connections.node_of(partition.leader_id)
            leaders.append(node)
            if node < 0 and partition.leader_id >= 0:
                self._leaderless.setdefault(partition.leader_id, set()).add(name)
        kept = self._loop.set_leaders(self._loop.add_topic(name), leaders, epochs)
        if kept == len(leaders):
            self._truncated.pop(name, None)
            return
        if name not in self._truncated:
            self._log.warning(
                "the %d partitions of topic %s do not fit into the sender's table: only the first %d are used",
                len(leaders),
                name,
                kept,
            )
        self._truncated[name] = kept

    # ------------------------------------------------------------ numbers of topics

    def _give_numbers_back(self, now_ms: int) -> int:
        """Let topics that have left the metadata give their numbers back. Return in how many ms to call this again.

        All events of the last iteration must be handled: they can refer to partitions.
        """
        numbers, cluster = self._numbers, self._cluster
        if self._forgotten:
            self._idle.add(self._forgotten, now_ms)
            self._forgotten = []
        if numbers.is_searching():
            reclaimed = numbers.reclaim() if numbers.search() else None
            if reclaimed is None:
                return 0
            self._given_back += reclaimed[0]
            for name in reclaimed[0]:
                self._shares.give_back(name)
                self._requests.take(name, True)
            self._idle.add(reclaimed[1], now_ms + cluster.max_idle_ms)
        due_ms = self._idle.next_due()
        if due_ms is None:
            return NOTHING_DUE_MS
        if due_ms > now_ms:
            return due_ms - now_ms
        names = [name for name in self._idle.take_due(now_ms) if name not in cluster.wanted]
        for name in names:
            self._loop.forget_topic(name)
        self._idle.add(numbers.retire(names), now_ms + cluster.max_idle_ms)
        return 0
