"""Runs the sender's engine: the native loop and the broker side of its control plane behind one small interface.

A new engine can take over from one that was killed (`PredecessorState`). It gets the state region and the metadata
snapshot of the old one, and for each front-end the descriptors and settings of its attachment.
"""

import functools
import logging
import time
from typing import TYPE_CHECKING, Any, NamedTuple

from cyproducer.config.kinds import host_port
from cyproducer.config.table import PAUSE_MIN_MS
from cyproducer.record.compression import import_library
from cyproducer.sender.cluster import resolver
from cyproducer.sender.cluster.backoff import ExponentialBackoff
from cyproducer.sender.cluster.broker import backoff_between
from cyproducer.sender.cluster.calls import Calls
from cyproducer.sender.cluster.client_id import ClientId
from cyproducer.sender.cluster.cluster_metadata import ClusterMetadata
from cyproducer.sender.cluster.connection import Setup, import_security
from cyproducer.sender.cluster.connections import Connections
from cyproducer.sender.cluster.finalized_features import FinalizedFeatures
from cyproducer.sender.cluster.metadata import Metadata
from cyproducer.sender.cluster.producer_ids import ProducerIds
from cyproducer.sender.cluster.queries import Queries
from cyproducer.sender.cluster.report import Report
from cyproducer.sender.cluster.telemetry import Telemetry
from cyproducer.sender.cluster.transactions import Transactions
from cyproducer.sender.cluster.violations import Violations
from cyproducer.sender.engine.events import EventHandlers, Resync, TransactionChanged, Violated
from cyproducer.sender.engine.native import FrontEnds, Loop, Nodes, TransactionTable
from cyproducer.sender.engine.predecessor import PredecessorState
from cyproducer.sender.system.helper import Helper, Job
from cyproducer.sender.system.tasks import Tasks
from cyproducer.sender.telemetry import payload

if TYPE_CHECKING:
    from cyproducer.sender.cluster.supplied_tokens import SuppliedTokens  # only with OAUTHBEARER it is imported

__all__ = ["Engine", "Parts"]


CALL_MIN_MS = 5_000  # time for a call about transactions, also if request_timeout_ms is less
QUERY_CALL_MS = 5_000  # after this time a broker counts as one that does not answer a question


def _helper_jobs(settings: dict[str, Any]) -> dict[str, Job]:
    jobs = resolver.JOBS | payload.JOBS
    if settings.get("security_protocol", "PLAINTEXT").startswith("SASL"):
        from cyproducer.sender.cluster import sasl_login  # import_security() has loaded it

        jobs |= sasl_login.jobs(settings)
    return jobs


def _now_ms() -> int:
    return time.monotonic_ns() // 1_000_000


class Parts(NamedTuple):
    """What the objects of the control server are made from, in the order of dependency.

    regions  the descriptors of the state and the snapshot, which are writable and belong to the engine
    tokens   None if the connections need no OAuth tokens of front-ends
    """

    front_ends: FrontEnds
    regions: tuple[int, int]
    loop: Loop
    client_id: ClientId
    connections: Connections
    metadata: Metadata
    telemetry: Telemetry
    queries: Queries
    transactions: Transactions
    violations: Violations
    tokens: "SuppliedTokens | None"


class Engine:
    """Takes batches from front-ends and sends them to brokers. It does not decide who may attach.

    sender_settings: the sender-side settings (Settings.sender_settings()). If client_id is among them, all requests
    carry it.
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
        self._loop = Loop(self._front_ends)
        self._client_id = ClientId(self._loop, sender_settings.get("client_id"))
        self.refused: list[int] = list(self._front_ends.refused)
        self._transaction_table = TransactionTable(self._front_ends)
        self._tasks = Tasks(_now_ms(), log)
        backoff = backoff_between(sender_settings, "retry_backoff_ms", "retry_backoff_max_ms", PAUSE_MIN_MS)
        self._cluster = ClusterMetadata(
            [host_port(server) for server in sender_settings["bootstrap_servers"]],
            max_age_ms=int(sender_settings["metadata_max_age_ms"]),
            max_idle_ms=int(sender_settings["metadata_max_idle_ms"]),
            retry_backoff_ms=backoff.base_ms,
            retry_backoff_max_ms=backoff.max_ms,
        )
        self._report = Report(self._cluster)
        self._helper = Helper(functools.partial(_helper_jobs, sender_settings))
        self._setup = Setup(sender_settings, self._client_id, self._helper, self._tasks, log)
        features = FinalizedFeatures()
        self._connections = Connections(
            self._loop, Nodes(self._loop), self._tasks, self._setup, self._cluster, features, self._report
        )
        self._metadata = Metadata(
            self._loop,
            self._front_ends,
            self._connections,
            self._cluster,
            self._tasks,
            self._report,
            sender_settings,
            log,
        )
        self._producer_ids = ProducerIds(self._loop, self._connections, self._tasks, backoff, self._report, log)
        self._telemetry = Telemetry(self._connections, self._tasks, self._helper, sender_settings, log)
        self._telemetry.measure(self._front_ends.counts, predecessor_state is not None)
        brokers = self._connections, self._cluster, self._tasks, self._report
        self._queries = Queries(Calls(*brokers, QUERY_CALL_MS, backoff, is_patient=True), log)
        # As in Kafka's TransactionManager, the pause does not grow. A cluster needs seconds for a new coordinator. With
        # pauses that grow meanwhile, each request would wait for up to a second longer than that.
        pause_ms = min(backoff.base_ms, backoff.max_ms)
        steady = ExponentialBackoff(pause_ms, pause_ms)
        call_ms = max(int(sender_settings["request_timeout_ms"]), CALL_MIN_MS)
        calls = Calls(*brokers, call_ms, steady)
        self._transactions = Transactions(self._transaction_table, calls, self._tasks, features, steady, log)
        self._loop.watch(self._helper.fd)
        self._violations = Violations(self._front_ends, self._metadata)
        self._handlers = self._make_handlers()
        if predecessor_state is not None:
            self._metadata.restore(_now_ms())

    def _make_handlers(self) -> EventHandlers:
        handlers = EventHandlers()
        self._connections.add_handlers(handlers)
        self._metadata.add_handlers(handlers)
        self._producer_ids.add_handlers(handlers)
        handlers.add(TransactionChanged, lambda event, now_ms: self._transactions.on_event(event.row))
        handlers.add(Resync, self._on_resync)
        handlers.add(Violated, self._violations.on_event)
        return handlers

    def _on_resync(self, event: Resync, now_ms: int) -> None:
        self._transactions.on_lost_events()
        self._connections.resync(now_ms)

    def parts(self) -> Parts:
        """Return what the control server needs. It does not use the engine itself."""
        return Parts(
            self._front_ends,
            self.regions(),
            self._loop,
            self._client_id,
            self._connections,
            self._metadata,
            self._telemetry,
            self._queries,
            self._transactions,
            self._violations,
            self.supplied_tokens(),
        )

    def regions(self) -> tuple[int, int]:
        """Return (state, snapshot) for a successor: writable descriptors that the engine owns."""
        return self._front_ends.state.fd, self._front_ends.snapshot.region.fd

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
        due = self._do_due_work(_now_ms())
        self._metadata.publish()
        if self._metadata.is_unsettled:
            due = 0
        ready: list[int]
        events, ready = self._loop.run(due if timeout_ms < 0 else min(due, timeout_ms))
        now = self._tasks.now_ms = _now_ms()
        for event in events:
            self._handlers.handle(event, now)
            # A response is handled before the end of its connection, which may be the next event.
            self._tasks.run_ready()
        if self._helper.fd in ready:
            ready.remove(self._helper.fd)
            self._helper.collect()
        self._connections.changed.set()
        self._tasks.run(now)
        self._metadata.publish()
        return ready

    def _do_due_work(self, now_ms: int) -> int:
        """Do the work that is due outside of the loop. Return in how many ms something is due again."""
        self._tasks.now_ms = now_ms
        failures = self._report.failures
        self._transactions.tick()
        due_ms = min(
            self._connections.tick(now_ms),  # first: it closes idle connections, on which nothing was sent yet
            self._metadata.tick(now_ms),
            self._telemetry.tick(now_ms),
            self._tasks.run(now_ms),
        )
        return due_ms if self._report.failures == failures else 0

    def supplied_tokens(self) -> "SuppliedTokens | None":
        """Return the SuppliedTokens of the connections; None if they need no OAuth tokens of front-ends."""
        login = self._setup.login
        return None if login is None else login.tokens

    def undelivered(self) -> int:
        """Return the number of undelivered batches of all front-ends, ended ones included."""
        count: int = self._front_ends.undelivered()
        return count

    def abandon(self) -> None:
        """Release the engine in a forked child, instead of close(): the parent's engine is not changed.

        Free private memory and close the child's copies of descriptors that only the parent needs. The descriptors of
        regions() and of the front-ends stay open. The child must get them before this call, and then owns them.
        """
        self._helper.close()
        self._tasks.abandon()
        self._loop.abandon()

    def close(self) -> None:
        """Close all connections at once and unmap everything."""
        self._loop.unwatch(self._helper.fd)
        self._helper.close()
        self._loop.close()
