"""Runs the sender's engine: the native loop and the broker side of its control plane behind one small interface.

A new engine can take over from one that was killed (`PredecessorState`). It gets the state region and the metadata
snapshot of the old one, and for each front-end the descriptors and settings of its attachment.
"""

import logging
import time
from collections.abc import Callable
from typing import Any

from cyproducer.record.compression import import_library
from cyproducer.sender.brokers.broker import NOTHING_DUE_MS
from cyproducer.sender.brokers.broker_connections import Brokers
from cyproducer.sender.brokers.connection_setup import import_security
from cyproducer.sender.brokers.topic_requests import IdleTopics, TopicRequests, TopicShares
from cyproducer.sender.brokers.transaction_rows import Command
from cyproducer.sender.engine.events import EventHandlers, Violated, Violation
from cyproducer.sender.engine.native import Connections, FrontEnds, Loop, TopicNumbers, TransactionTable
from cyproducer.sender.engine.predecessor import PredecessorState

__all__ = ["Engine"]


_VIOLATIONS: dict[int, str] = {
    Violation.RING: "its submission ring claims more entries than it can hold",
    Violation.HINT: "its submission ring has an invalid entry",
    Violation.CHAIN: "a batch that it committed is not a valid chain of records",
    Violation.CHANGED: "it changed a batch after it had committed it",
    Violation.TOPIC: "it committed a batch with a topic number that it had not looked up",
}


def _now_ms() -> int:
    return time.monotonic_ns() // 1_000_000


class Engine:
    """Takes batches from front-ends and sends them to brokers. It does not decide who may attach.

    sender_settings: the sender-side settings (Settings.sender_settings()).
    predecessor_state: the state of an engine with the same settings to take over from. The constructor raises
    ValueError if its layout differs.
    `refused` has the attach ids of front-ends that could not be taken over; the caller closes their connections.
    """

    @staticmethod
    def prepare(sender_settings: dict[str, Any]) -> None:
        """Import now what an engine with these settings, and its front-ends with any settings, may need.

        The environment may be removed while the sender runs. Only libraries that affect no record are imported later:
        those that encode metrics, and that read the dates of a certificate for an error message.
        """
        import_security(sender_settings)
        import_library()

    def __init__(
        self, sender_settings: dict[str, Any], log: logging.Logger, predecessor_state: PredecessorState | None = None
    ) -> None:
        self._settings = sender_settings
        self._log = log
        self._front_ends = FrontEnds(sender_settings, predecessor_state)
        self._loop = Loop(sender_settings, self._front_ends)
        self.refused: list[int] = list(self._front_ends.refused)
        self.transactions = TransactionTable(self._front_ends)
        self._brokers = Brokers(self._loop, Connections(self._loop), sender_settings, log, self.transactions)
        self._brokers.telemetry.measure(self._front_ends.counts, predecessor_state is not None)
        self._loop.watch(self._brokers.resolver.fd)
        if self._brokers.setup.fd >= 0:
            self._loop.watch(self._brokers.setup.fd)
        self._handlers = EventHandlers()
        self._brokers.add_handlers(self._handlers)
        self._handlers.add(Violated, self._on_violation)
        self._violators: list[int] = []
        #: Called with (attach id, what is wrong) for each of them.
        self.note_violation: Callable[[int, str], None] = self._log_violation
        self._topic_requests = TopicRequests()
        self._topic_shares = TopicShares()
        self._topic_numbers = TopicNumbers(self._front_ends)
        self._idle_topics = IdleTopics()
        self._given_back: list[str] = []
        #: Counters of work; tests compare them with the number of topics.
        self.rows_published = 0
        self.waiters_woken = 0
        if predecessor_state is not None:
            self._restore_topic_requests()

    def _restore_topic_requests(self) -> None:
        """Keep the predecessor's published metadata until there is newer metadata.

        Request metadata at once for topics that a front-end has requested and that have none.
        """
        for name in self._loop.topics_without_metadata():
            self._brokers.metadata.want(name, _now_ms())
            self._topic_requests.add_unknown(name)
        self._idle_topics.add(self._loop.topics(), _now_ms() + self._brokers.metadata.max_idle_ms)
        self._brokers.changed = False

    # ------------------------------------------------------------ front-ends

    def snapshot_fd(self) -> int:
        """Return a read-only descriptor of the metadata snapshot; the caller closes it."""
        descriptor: int = self._front_ends.snapshot.region.read_only_descriptor()
        return descriptor

    def attach(self, arena_fd: int, slot_count: int, settings: dict[str, Any], wake_fd: int) -> tuple[int, int, int]:
        """Attach a front-end. Return (attach id, outcomes, eventfd): see FrontEnds.attach.

        Raise OverflowError if the table of transactional producers is full.
        """
        attached: tuple[int, int, int] = self._front_ends.attach(arena_fd, slot_count, settings, wake_fd)
        return attached

    def detach(self, attach_id: int) -> None:
        """End a front-end; its committed batches are delivered: see FrontEnds.detach."""
        self._topic_requests.drop(attach_id)
        self._topic_shares.drop(attach_id)
        self._front_ends.detach(attach_id)

    def release(self, attach_id: int) -> None:
        """Release a front-end whose process lives, because this sender is ending: see FrontEnds.release."""
        self._front_ends.release(attach_id)

    def is_closing(self) -> bool:
        """Return whether slots of released or ended front-ends must still be scanned: see FrontEnds.is_closing."""
        closing: bool = self._front_ends.is_closing()
        return closing

    def released_before(self) -> bool:
        """Return whether the predecessor was ending: it had released one of the attached front-ends."""
        released: bool = self._front_ends.released_before()
        return released

    def _on_violation(self, event: Violated, now_ms: int) -> None:
        self.detach(event.attach_id)
        self._violators.append(event.attach_id)
        self.note_violation(event.attach_id, _VIOLATIONS.get(event.reason, str(event.reason)))

    def _log_violation(self, attach_id: int, why: str) -> None:
        self._log.warning("front-end %d broke the protocol and is detached: %s", attach_id, why)

    def take_violators(self) -> list[int]:
        """Return attach ids of front-ends that broke the protocol since the last call; they are already detached."""
        violators, self._violators = self._violators, []
        return violators

    def regions(self) -> tuple[int, int]:
        """Return (state, snapshot) for a successor: writable descriptors that the engine owns."""
        return self._front_ends.state.fd, self._front_ends.snapshot.region.fd

    def descriptors(self, attach_id: int) -> tuple[int, int, int, int]:
        """Return (arena, outcomes, front-end's eventfd, sender's eventfd) for a successor.

        The descriptors are writable and owned by the engine. Raise KeyError for a front-end that is completely ended.
        """
        found: tuple[int, int, int, int] = self._front_ends.descriptors(attach_id)
        return found

    def held(self) -> list[int]:
        """Return the attach ids of the front-ends that have `descriptors`, also ended ones with undelivered batches."""
        attach_ids: list[int] = self._front_ends.held()
        return attach_ids

    def take_gone(self) -> list[int]:
        """Return the attach ids of the front-ends that were completely ended since the last call."""
        gone: list[int] = self._front_ends.take_gone()
        return gone

    def take_given_back(self) -> list[str]:
        """Return the names of the topics that have given their numbers back since the last call."""
        names, self._given_back = self._given_back, []
        return names

    def want_topic(self, attach_id: int, name: str, partition: int = 0) -> None:
        """Request metadata of a topic in which `partition` exists. Wake the front-end when there is new metadata.

        Raise OverflowError if the name is new and the front-end has used up its share of the table of topics.
        """
        known, free = self._loop.room_for_topic(name)
        if not known:
            self._topic_shares.add(attach_id, name, free)
        self._loop.add_topic(name)
        self._topic_requests.add(attach_id, name)
        if not self._brokers.metadata.want(name, _now_ms(), partition) and name not in self._brokers.unsettled:
            self.waiters_woken += self._front_ends.wake_snapshot_waiters((attach_id,))  # it is already published

    # ------------------------------------------------------------ running

    def watch(self, fd: int) -> None:
        """Make run() return when `fd` is readable."""
        self._loop.watch(fd)

    def unwatch(self, fd: int) -> None:
        """Stop watching `fd`."""
        self._loop.unwatch(fd)

    def run(self, timeout_ms: int) -> list[int]:
        """Run native loop iterations. Return the watched descriptors that are ready.

        Return when a watched descriptor is ready, `timeout_ms` is over (-1: never), or an event was handled here (the
        result may be empty).
        """
        due = self._give_numbers_back(_now_ms())
        due = min(due, self._brokers.maintain(_now_ms()))
        self._publish()
        if self._brokers.unsettled:
            due = 0
        ready: list[int]
        events, ready = self._loop.run(due if timeout_ms < 0 else min(due, timeout_ms))
        now = _now_ms()
        for event in events:
            self._handlers.handle(event, now)
        if self._brokers.resolver.fd in ready:
            ready.remove(self._brokers.resolver.fd)
            self._brokers.resolver.collect()
        if self._brokers.telemetry.fd in ready:
            ready.remove(self._brokers.telemetry.fd)
            self._brokers.telemetry.collect(now)
        if self._brokers.setup.fd in ready:
            ready.remove(self._brokers.setup.fd)
            self._brokers.setup.collect(now)
        self._publish()
        return ready

    def _give_numbers_back(self, now_ms: int) -> int:
        """Let topics that have left the metadata give their numbers back. Return in how many ms to call this again.

        All events of the last iteration must be handled: they can refer to partitions.
        """
        numbers, metadata = self._topic_numbers, self._brokers.metadata
        if self._brokers.forgotten:
            self._idle_topics.add(self._brokers.forgotten, now_ms)
            self._brokers.forgotten = []
        if numbers.is_searching():
            settled = numbers.settle() if numbers.search() else None
            if settled is None:
                return 0
            self._given_back += settled[0]
            for name in settled[0]:
                self._topic_shares.give_back(name)
                self._topic_requests.take(name, True)
            self._idle_topics.add(settled[1], now_ms + metadata.max_idle_ms)
        due_ms = self._idle_topics.next_due()
        if due_ms is None:
            return NOTHING_DUE_MS
        if due_ms > now_ms:
            return due_ms - now_ms
        names = [name for name in self._idle_topics.take_due(now_ms) if name not in metadata.wanted]
        for name in names:
            self._loop.forget_topic(name)
        self._idle_topics.add(numbers.retire(names), now_ms + metadata.max_idle_ms)
        return 0

    def _publish(self) -> None:
        """Apply and publish what has changed since the last call, and wake the front-ends that wait for it."""
        if self._brokers.changed:
            self._brokers.changed = False
            metadata = self._brokers.metadata
            # before the topics, since a front-end that they wake may read it; after a takeover the predecessor's count
            # of brokers stays until this sender has learned of the cluster
            brokers = self._front_ends.snapshot.brokers_known() if metadata.bootstrapping else len(metadata.brokers)
            self._front_ends.snapshot.describe(brokers, self._present_error())
            if self._brokers.auth_failed:
                self._brokers.auth_failed = False
                self._front_ends.snapshot.note_auth_failure()
                self.waiters_woken += self._front_ends.wake_snapshot_waiters()
        for name in self._brokers.settle():
            self._publish_topic(name)

    def _present_error(self) -> str:
        """Return the last error with the cluster, or else that of a broker that could not be reached."""
        brokers = self._brokers
        known = [link for link in brokers.links.values() if brokers.metadata.knows(link.broker_id)]
        away = [link for link in known if link.setup_failures and link.last_error]
        of_broker = f"broker {away[0].name}: {away[0].last_error}" if away else ""
        return brokers.metadata.last_error or brokers.last_error or of_broker

    def _publish_topic(self, name: str) -> None:
        topic = self._brokers.metadata.topics[name]
        leaders = bytes(partition.leader_id >= 0 for partition in self._brokers.partitions(name))
        try:
            changed = self._front_ends.snapshot.store(self._loop.add_topic(name), topic.error_code, leaders)
        except OverflowError as error:
            self._log.error("cannot publish the metadata of topic %s: %s", name, error)
            return
        if changed:
            self.rows_published += 1
            waiting = self._topic_requests.take(name, bool(leaders and not topic.error_code))
            self.waiters_woken += self._front_ends.wake_snapshot_waiters(waiting)

    def supplied_tokens(self) -> Any:
        """Return the SuppliedTokens of the connections; None if they need no OAuth tokens of front-ends."""
        login = self._brokers.setup.login
        return None if login is None else login.tokens

    # ------------------------------------------------------------ the push of metrics (KIP-714)

    def client_instance_id(self) -> str | None:
        """Return the id that a broker has assigned to this sender; None: it is being requested, if that is possible."""
        return self._brokers.telemetry.client_instance_id()

    def pushes_metrics(self) -> bool:
        """Return the setting `enable_metrics_push`."""
        return self._brokers.telemetry.enabled

    def end_metrics_push(self) -> bool:
        """Begin the last push of metrics. Return whether the sender need not wait for it any more: after 1 s at most.

        Called again and again, between calls of run().
        """
        return self._brokers.telemetry.end(_now_ms())

    def resume_metrics_push(self) -> None:
        """Continue to push metrics: the sender does not end after all."""
        self._brokers.telemetry.resume()

    # ------------------------------------------------------------ transactions

    def ask_about_transactions(self, question: dict[str, Any], answer: Callable[[dict[str, Any]], None]) -> None:
        """Begin a query about transactions of the cluster; `answer` gets its result: see TransactionQueries.

        Raise ValueError for an invalid question.
        """
        self._brokers.transactions.ask(question, answer, _now_ms())

    def command_transaction(
        self, attach_id: int, fields: dict[str, Any], answer: Callable[[dict[str, Any]], None]
    ) -> None:
        """Do a command of a transactional producer; `answer` gets its result: see TransactionManager.command.

        `fields`: those of a Command.
        """
        self._brokers.transaction_manager.command(attach_id, Command(**fields), answer, _now_ms())

    def describe_transactions(self) -> list[dict[str, Any]]:
        """Return a row for each transactional producer, for the status: see TransactionManager.describe."""
        return self._brokers.transaction_manager.describe(_now_ms())

    def transactional_front_ends(self) -> dict[int, bool]:
        """Return by attach id whether a transaction is open, or is being ended: see TransactionManager.active."""
        return self._brokers.transaction_manager.active()

    # ------------------------------------------------------------ observing

    def undelivered(self) -> int:
        """Return the number of undelivered batches of all front-ends, ended ones included."""
        count: int = self._front_ends.undelivered()
        return count

    def delivered(self) -> int:
        """Return the number of acknowledged records."""
        records: int = self._loop.totals()["records"]
        return records

    def tables_in_use(self) -> dict[str, int]:
        """Return the number of used rows of each table: see FrontEnds.tables_in_use."""
        rows: dict[str, int] = self._front_ends.tables_in_use()
        return rows

    def attached(self) -> int:
        """Return the number of attached front-ends."""
        count: int = self._front_ends.attached()
        return count

    def take_failures(self) -> list[tuple[int, str, int, int]]:
        """Return [(attach id, topic, error code, records)] of failures since the last call."""
        failures: list[tuple[int, str, int, int]] = self._loop.take_failures()
        return failures

    def cluster_id(self) -> str | None:
        """Return the cluster id that a broker has reported; None before that, and while no known broker can be used."""
        return self._brokers.metadata.cluster_id

    def stats(self) -> dict[str, Any]:
        """Return figures for the status."""
        connections = []
        for link in self._brokers.links.values():
            state, in_flight = self._loop.connection_state(link.index)
            connections.append(
                {
                    "broker_id": link.broker_id,
                    "host": link.host,
                    "port": link.port,
                    "state": state,
                    "in_flight": in_flight,
                }
            )
        totals = self._loop.totals()
        return {
            "bootstrap_servers": list(self._settings["bootstrap_servers"]),
            "front_ends": self._front_ends.describe(),
            "connections": connections,
            "totals": {name: totals[name] for name in ("records", "bytes", "batches", "requests", "retries", "errors")},
            "counts": self._front_ends.counts(),
            "last_error": self._present_error(),
        }

    def abandon(self) -> None:
        """Release the engine in a forked child, instead of close(): the parent's engine is not changed.

        Free private memory and close the child's copies of descriptors that only the parent needs. The descriptors of
        regions() and descriptors() stay open. The child must get them before this call, and then owns them.
        """
        self._brokers.close()
        self._loop.abandon()

    def close(self) -> None:
        """Close all connections at once and unmap everything."""
        self._loop.unwatch(self._brokers.resolver.fd)
        self._loop.unwatch(self._brokers.telemetry.fd)
        if self._brokers.setup.fd >= 0:
            self._loop.unwatch(self._brokers.setup.fd)
        self._brokers.close()
        self._loop.close()
