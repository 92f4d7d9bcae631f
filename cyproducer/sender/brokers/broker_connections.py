"""Does the rare work on the broker connections: addresses, connecting, metadata, producer ids.

The loop requests them through events, and every result goes back to the loop as a method call. There is one connection
per broker, and a second one if partitions may be slow to acknowledge (slow_links.py). connection_setup.py sets them up.
The bootstrap connection is kept if it leads to a broker of the metadata, and closed otherwise.
"""

import contextlib
import errno
import functools
import logging
import math
import os
from collections.abc import Callable
from typing import Any

from cyproducer.cluster.metadata import ClusterMetadata, PartitionMetadata
from cyproducer.cluster.topic_state import UNKNOWN_TOPIC_OR_PARTITION
from cyproducer.error_table import describe
from cyproducer.protocol.codec import decode_response, encode_request
from cyproducer.protocol.fields import ProtocolError
from cyproducer.protocol.versions import ApiKey
from cyproducer.sender.brokers.broker import (
    CLOSE_REASONS,
    NOTHING_DUE_MS,
    Link,
    connecting_socket,
)
from cyproducer.sender.brokers.connection_setup import ConnectionSetup
from cyproducer.sender.brokers.connection_states import PAUSE_MIN_MS, ConnectionStates, backoff_between
from cyproducer.sender.brokers.finalized_features import FinalizedFeatures
from cyproducer.sender.brokers.leader_hints import take_leader_hints
from cyproducer.sender.brokers.node_choice import NodeChoice
from cyproducer.sender.brokers.producer_id_requests import ProducerIdRequests
from cyproducer.sender.brokers.producer_state_notes import ProducerStateNotes
from cyproducer.sender.brokers.rebootstrap import Rebootstrap
from cyproducer.sender.brokers.resolver import CANONICAL_NAMES, Address, Resolver, host_port
from cyproducer.sender.brokers.silent_brokers import SilentBrokers
from cyproducer.sender.brokers.slow_links import SlowLinks
from cyproducer.sender.brokers.telemetry_requests import TelemetryRequests
from cyproducer.sender.brokers.throttling import apply_throttle, tell_of_throttling
from cyproducer.sender.brokers.transaction_manager import TransactionManager
from cyproducer.sender.brokers.transaction_queries import TransactionQueries
from cyproducer.sender.engine.events import (
    Answered,
    Closed,
    CloseReason,
    Connected,
    EventHandlers,
    Handshake,
    HasWork,
    Late,
    LeadersNamed,
    ProducerIdWanted,
    ProducerStateDenied,
    ProducerStateLost,
    RefreshWanted,
    Resync,
    Silent,
    TransactionChanged,
)
from cyproducer.sender.engine.native import Connections, Loop, TransactionTable

__all__ = ["Brokers"]

IDLE_MIN_MS = 1000  # a connection that was just made for a request is not closed as idle
PARTITIONS_PER_ITERATION = 1024  # new leaders that are set in one loop iteration: takes some milliseconds
TOPICS_USED_EVERY_MS = 30_000  # at most half of metadata_max_idle_ms, after which a topic is forgotten
REBOOTSTRAP_REQUIRED = 129  # the error of a whole Metadata response (KIP-1102)
RELIABLE_EPOCHS_FROM = 9  # MetadataResponse.hasReliableLeaderEpochs

Handler = Callable[[Link, bytes, int], None]
"""Takes a link, a response of its broker, and the time in ms."""


class Brokers:
    """Maintains the connections and the metadata of one cluster."""

    def __init__(
        self,
        loop: Loop,
        connections: Connections,
        settings: dict[str, Any],
        log: logging.Logger,
        transaction_table: TransactionTable,
    ) -> None:
        self.loop = loop
        self._settings = settings
        self.log = log
        self.resolver = Resolver()
        retry_backoff = backoff_between(settings, "retry_backoff_ms", "retry_backoff_max_ms", PAUSE_MIN_MS)
        self.metadata = ClusterMetadata(
            [host_port(server) for server in settings["bootstrap_servers"]],
            max_age_ms=int(settings["metadata_max_age_ms"]),
            max_idle_ms=int(settings["metadata_max_idle_ms"]),
            retry_backoff_ms=retry_backoff.base_ms,
            retry_backoff_max_ms=retry_backoff.max_ms,
        )
        self._states = ConnectionStates(settings)
        self._rebootstrap = Rebootstrap(settings)
        max_idle_ms = int(settings["connections_max_idle_ms"])
        # Negative: never closed as idle, as in Kafka.
        self._max_idle_ms = math.inf if max_idle_ms < 0 else max(max_idle_ms, IDLE_MIN_MS)
        self._rack = settings["client_rack"] if settings["partitioner_rack_aware"] else None
        self.links: dict[int, Link] = {}  # by broker id
        self.node_choice = NodeChoice(self.metadata, self.links, loop)
        self.setup = ConnectionSetup(self, connections, settings)
        self._slow_links = SlowLinks(self, loop, connections)
        self._silent_brokers = SilentBrokers(self, connections)
        self.by_index: dict[int, Link] = {}
        self._pending: dict[tuple[int, int], Handler] = {}
        self._metadata_link: Link | None = None
        self.producer_ids = ProducerIdRequests(self, loop, retry_backoff, log)
        self.telemetry = TelemetryRequests(self, loop, settings, log)
        self.transactions = TransactionQueries(self, loop, retry_backoff, log)
        pause_ms = min(retry_backoff.base_ms, retry_backoff.max_ms)
        self.transaction_manager = TransactionManager(
            self, loop, transaction_table, pause_ms, int(settings["request_timeout_ms"]), log
        )
        self.features = FinalizedFeatures()
        self._used_at_ms = 0
        self._now_ms = 0
        self._left_out: set[str] = set()  # invalid brokers of the last metadata response
        self._truncated: dict[str, int] = {}  # partitions in the loop, of topics that do not fit into it
        self._state_notes = ProducerStateNotes(loop, log)
        self.forgotten: list[str] = []  # topics that have left the metadata
        self.unsettled: dict[str, None] = {}  # topics whose new metadata must be applied and published
        self._leaderless: dict[int, set[str]] = {}  # by broker id: topics that need a link which does not exist yet
        self.changed = True  # the number of brokers or the last error must be published
        self.last_error = ""
        self.auth_failed = False  # authentication has failed and no broker can be used: to be published

    # ------------------------------------------------------------ events of the loop

    def add_handlers(self, handlers: EventHandlers) -> None:
        """Say what is done for each event of the loop that is about connections and the cluster."""
        handlers.add(RefreshWanted, self._on_refresh_wanted)
        handlers.add(Resync, lambda event, now_ms: self._resync(now_ms))
        handlers.add(ProducerIdWanted, self._on_producer_id_wanted)
        handlers.add(TransactionChanged, lambda event, now_ms: self.transaction_manager.on_event(event.row, now_ms))
        handlers.add(HasWork, self._on_work)
        handlers.add(Late, self._on_late)
        handlers.add(Silent, self._on_silent)
        handlers.add(ProducerStateLost, self._on_state_lost)
        handlers.add(ProducerStateDenied, self._on_state_denied)
        handlers.add(Connected, lambda event, now_ms: self._set_up(event.node, self.setup.on_connected, now_ms))
        handlers.add(Handshake, lambda event, now_ms: self._set_up(event.node, self.setup.on_handshake, now_ms))
        handlers.add(Closed, self._on_close)
        handlers.add(LeadersNamed, self._on_leaders_named)
        handlers.add(Answered, self._on_answer)

    def _on_refresh_wanted(self, event: RefreshWanted, now_ms: int) -> None:
        self.metadata.request_update()
        self._used_at_ms = 0  # after a takeover only the loop knows which topics are in use

    def _on_producer_id_wanted(self, event: ProducerIdWanted, now_ms: int) -> None:
        self.producer_ids.wanted = True

    def _on_work(self, event: HasWork, now_ms: int) -> None:
        if event.node in self.by_index:
            self.by_index[event.node].wanted = True

    def _on_late(self, event: Late, now_ms: int) -> None:
        if event.node in self.by_index:
            self._now_ms = now_ms
            self._slow_links.ask(self.by_index[event.node], now_ms)

    def _on_silent(self, event: Silent, now_ms: int) -> None:
        if event.node in self.by_index:
            self._silent_brokers.on_silent(self.by_index[event.node])

    def _on_state_lost(self, event: ProducerStateLost, now_ms: int) -> None:
        if event.node in self.by_index:
            self._state_notes.on_lost(self.by_index[event.node], event)

    def _on_state_denied(self, event: ProducerStateDenied, now_ms: int) -> None:
        if event.node in self.by_index:
            self._state_notes.on_denied(self.by_index[event.node], event)

    def _set_up(self, node: int, step: Callable[[Link, int], None], now_ms: int) -> None:
        link = self.by_index.get(node)
        if link is not None:
            self.guarded(link, now_ms, functools.partial(step, link, now_ms))

    def _on_close(self, event: Closed, now_ms: int) -> None:
        if event.node in self.by_index:
            self._on_closed(self.by_index[event.node], event.reason, now_ms)

    def _on_leaders_named(self, event: LeadersNamed, now_ms: int) -> None:
        link = self.by_index.get(event.node)
        if link is not None:
            self.guarded(link, now_ms, functools.partial(self._on_leaders, event, now_ms))

    def _on_answer(self, event: Answered, now_ms: int) -> None:
        link, handler = self.by_index.get(event.node), self._pending.pop((event.node, event.correlation_id), None)
        if link is not None and handler is not None:
            self.guarded(link, now_ms, functools.partial(handler, link, event.payload, now_ms))

    def _resync(self, now_ms: int) -> None:
        """Make up for lost events, from the present states of the connections."""
        self.transaction_manager.on_lost_events()
        for link in list(self.by_index.values()):
            state, _ = self.loop.connection_state(link.index)
            opened = link.connect_deadline_ms is not None or link.versions is not None or link.exchange is not None
            if state == "closed" and opened:
                self._on_closed(link, errno.ENOMEM, now_ms)
            elif state == "handshaking":
                self.guarded(link, now_ms, functools.partial(self.setup.on_handshake, link, now_ms))
            elif state == "negotiating" and link.exchange is None and not link.negotiated:
                self.guarded(link, now_ms, functools.partial(self.setup.on_connected, link, now_ms))

    def guarded(self, link: Link, now_ms: int, work: Callable[[], None]) -> None:
        """Do work for a connection. An error ends the connection: it must not end the sender, and each one after it."""
        self._now_ms = now_ms
        try:
            work()
        except Exception as error:
            if not isinstance(error, ProtocolError):
                self.log.exception("a response of broker %s could not be handled", link.name)
            self.give_up(link, self.setup.describe_defect(link, error), now_ms)

    def note_ready(self, link: Link) -> None:
        """Note that a connection takes batches: its setup is complete."""
        self._states.ready(link)
        self.loop.note_auth(False)
        self.changed = True  # the present error may have been its own
        self.log.info("connected to broker %s (id %d%s)", link.name, link.broker_id, self.setup.describe_tls(link))

    def next_correlation_id(self, link: Link) -> int:
        return int(self.loop.next_correlation_id(link.index))

    def _on_closed(self, link: Link, error: int, now_ms: int) -> None:
        was_ready = link.versions is not None
        link.versions = None
        if self.is_closed(link):  # otherwise a new attempt to connect has begun already
            link.connect_deadline_ms = None
        for key in [key for key in self._pending if key[0] == link.index]:
            del self._pending[key]
        ended_here = error == CloseReason.BY_US or link.given_up
        text = self.setup.describe_end(link, error) or CLOSE_REASONS.get(error) or os.strerror(error)
        self.setup.on_closed(link, error)
        if not ended_here:
            self.note_error(link, text)
        self._fail_metadata(link, text, now_ms)
        self.producer_ids.on_closed(link)
        self._silent_brokers.on_closed(link)
        self.telemetry.on_closed(link, ended_here, now_ms)
        self.transactions.on_closed(link, now_ms)
        self.transaction_manager.on_closed(link, now_ms)
        if ended_here:
            return
        self.metadata.request_update()
        if was_ready:
            self._states.broken(link, now_ms)
        else:
            self._states.failed(link, now_ms)
        self._after_failure(link)

    def give_up(self, link: Link, text: str, now_ms: int) -> None:
        """Close a connection because of a broker's error. This counts as a failed attempt, unlike in _on_closed()."""
        link.given_up = True  # the broker may have closed the connection meanwhile, which says less than `text`
        self.note_error(link, text)
        self._fail_metadata(link, text, now_ms)
        self.loop.close_node(link.index)
        self.metadata.request_update()
        self._states.failed(link, now_ms)
        self._after_failure(link)

    def _fail_metadata(self, link: Link, text: str, now_ms: int) -> None:
        """Fail the metadata request in flight, if it was sent to this broker."""
        if self._metadata_link is link:
            self._metadata_link = None
            self.metadata.on_failure(now_ms, f"broker {link.name}: {text}")

    def note_status(self, text: str) -> None:
        """Set the present error for the status and the snapshot; an empty text means none."""
        self.last_error, self.changed = text, True
        if text and self.metadata.last_error:
            self.metadata.last_error = text  # which would be shown instead, and is older

    def note_error(self, link: Link, text: str) -> None:
        """Set and log the error of a broker. The same one is logged once a minute. Batches that expire name it."""
        text += link.hint
        self.setup.connections.note_error(link.index, f"broker {link.name}: {text}".encode())
        self.note_status(f"broker {link.name}: {text}")
        if link.is_new_error(text):
            self.log.warning("broker %s: %s", link.name, text)

    def _after_failure(self, link: Link) -> None:
        """If no broker of the metadata can be used, ask the bootstrap servers for other brokers (KIP-899).

        If authentication has failed, note it for the front-ends that wait for metadata, and for records that expire.
        """
        known = [self.links[broker_id] for broker_id in self.metadata.brokers if broker_id in self.links]
        if link.auth_failed and all(each.unreachable for each in known):
            self.auth_failed = self.changed = True
            self.loop.note_auth(True)
        if not self.metadata.bootstrapping and self._rebootstrap.is_needed(known):
            self._ask_bootstrap_servers("no known broker can be used")

    def _ask_bootstrap_servers(self, reason: str) -> None:
        self.log.warning("%s: asking the bootstrap servers again", reason)
        self._rebootstrap.end()
        change = self.metadata.rebootstrap()
        for link in self.links.values():
            link.unreachable = False
        self.unsettled.update(dict.fromkeys(change.topics))

    def _maintain_rebootstrap(self, now_ms: int) -> int:
        """Close all connections if there is no metadata for too long, and ask the bootstrap servers (KIP-1102)."""
        due_ms = self._rebootstrap.due_ms(now_ms)
        if due_ms > 0:
            return due_ms
        self._close_and_ask("no metadata within metadata_recovery_rebootstrap_trigger_ms", now_ms)
        return NOTHING_DUE_MS

    def _close_and_ask(self, reason: str, now_ms: int) -> None:
        """Close all connections, and ask the bootstrap servers."""
        for link in self.links.values():
            self._slow_links.close(link)
            if not self.is_closed(link):
                self._fail_metadata(link, "closed for another attempt with the bootstrap servers", now_ms)
                link.connect_deadline_ms = None
                link.addresses = []
                self.loop.close_node(link.index)
        self._ask_bootstrap_servers(reason)

    # ------------------------------------------------------------ scheduled work

    def maintain(self, now_ms: int) -> int:
        """Do what is due. Return in how many ms something is due again."""
        self._now_ms = now_ms
        if now_ms >= self._used_at_ms:
            self._note_used(now_ms)
        due = self._maintain_rebootstrap(now_ms)
        due = min(due, self._maintain_metadata(now_ms), self._silent_brokers.maintain(now_ms))
        due = min(due, self.producer_ids.maintain(now_ms), self.telemetry.maintain(now_ms))
        due = min(due, self.transactions.maintain(now_ms), self.transaction_manager.maintain(now_ms))
        for link in [*self.links.values(), *self._slow_links]:
            if link.connect_deadline_ms is not None:
                if link.connect_deadline_ms <= now_ms:
                    link.connect_deadline_ms = None
                    self.give_up(link, self.setup.describe_delay(link), now_ms)
                else:
                    due = min(due, link.connect_deadline_ms - now_ms)
            due = min(due, self.setup.maintain(link, now_ms))
            tell_of_throttling(self, self.loop, link, now_ms)
            if link.versions is not None and self.loop.idle_ms(link.index) > self._max_idle_ms:
                self.log.info("broker %s: closing the idle connection", link.name)
                self.loop.close_node(link.index)
            if link.wanted and self.is_closed(link):
                due = min(due, self._connect_for_batches(link, now_ms))
        return max(due, 1)

    def _connect_for_batches(self, link: Link, now_ms: int) -> int:
        """Call connect() if the broker still has batches and is one of the cluster. Return the same as connect()."""
        if not self.loop.wants_connection(link.index):
            link.wanted = False
            return NOTHING_DUE_MS
        if link.broker_id in self.metadata.brokers:
            return self.connect(link, now_ms)
        at = self.metadata.next_request_at(now_ms)
        if at is None:
            return NOTHING_DUE_MS  # the response to the request in flight may name another leader
        self.metadata.request_update()
        return max(at, now_ms + PAUSE_MIN_MS) - now_ms

    def _note_used(self, now_ms: int) -> None:
        """Keep the topics with batches in the metadata, or add them to it again."""
        self._used_at_ms = now_ms + min(TOPICS_USED_EVERY_MS, self.metadata.max_idle_ms // 2)
        for name in self.loop.take_used_topics():
            self.metadata.want(name, now_ms)

    def _keep_used(self, now_ms: int) -> None:
        """Get the used topics from the loop if a topic is about to be forgotten as unused."""
        if self.metadata.any_idle(now_ms):
            self._note_used(now_ms)

    def _maintain_metadata(self, now_ms: int) -> int:
        needed = self.metadata.wanted or self.transactions.wanted or self.transaction_manager.wanted
        at = self.metadata.next_request_at(now_ms) if needed or self.metadata.bootstrapping else None
        if at is None or not (needed or self.producer_ids.wanted):
            return NOTHING_DUE_MS
        if at > now_ms:
            return at - now_ms
        self._rebootstrap.begin(now_ms)
        link = self.least_loaded()
        if link is not None:
            self._send_metadata(link, now_ms)
            return NOTHING_DUE_MS
        return self.connect_any(now_ms)

    def least_loaded(self, api: ApiKey = ApiKey.METADATA) -> Link | None:
        """Return the broker with the fewest requests in flight among those that can take one; None if none can.

        A broker that has no room for a further request is returned only if no other one can be waited for.
        """
        free, busy = self.node_choice.ready(api)
        if free or not busy or self.node_choice.any_other(self._now_ms):
            return free
        return busy

    def connect_any(self, now_ms: int) -> int:
        """Start a connection to some broker, as none can take a request. Return in how many ms to look again."""
        self._ensure_links()
        due_ms, link = self.node_choice.to_connect(now_ms)
        return due_ms if link is None else min(due_ms, self.connect(link, now_ms))

    # ------------------------------------------------------------ connecting

    def _ensure_links(self) -> None:
        for broker_id, (host, port, rack) in self.metadata.brokers.items():
            link = self.links.get(broker_id)
            if link is None:
                link = Link(self.loop.add_node(broker_id), broker_id, host, port)
                self.by_index[link.index] = link
                self._add_link(link)
            elif (link.host, link.port) != (host, port):
                self._states.renew(link, host, port)
                self.loop.close_node(link.index)
                self._slow_links.close(link)
            if self._rack is not None:
                self.loop.set_in_rack(link.index, rack == self._rack)

    def _add_link(self, link: Link) -> None:
        """Add the link of a broker. settle() then sets it as the leader of its partitions."""
        self.links[link.broker_id] = link
        self.unsettled.update(dict.fromkeys(self._leaderless.pop(link.broker_id, ())))

    def is_closed(self, link: Link) -> bool:
        return bool(self.loop.connection_state(link.index)[0] == "closed")

    def connect(self, link: Link, now_ms: int) -> int:
        """Start connecting unless the link is not closed, backs off, or its name is being resolved.

        Return in how many ms to look again.
        """
        if link.resolving or not self.is_closed(link):
            return NOTHING_DUE_MS
        pause_ms = self.node_choice.pause_ms(link, now_ms)
        if pause_ms:
            return pause_ms
        if link.addresses:
            self.connect_to(link, link.addresses.pop(0))
            return self._due_of(link, now_ms)
        link.resolving, link.resolving_since_ms = True, now_ms
        asked = link.host, link.port

        def resolved(answer: list[Address] | OSError) -> None:
            link.resolving = False
            if (link.host, link.port) != asked:
                return  # the address of the broker has changed meanwhile
            if link.broker_id not in self.metadata.brokers:
                return  # it has left the cluster, or another bootstrap server was faster
            if isinstance(answer, OSError) or not answer:
                self._fail_to_connect(link, f"the host name cannot be resolved ({answer or 'no address'})")
                return
            link.addresses, link.auth_failed = list(answer), False
            if link.peer is not None and link.addresses[0][:2] == link.peer[:2]:
                link.addresses.append(link.addresses.pop(0))  # the address of the last attempt is the last one now
            self.connect_to(link, link.addresses.pop(0))

        is_canonical = link.broker_id < 0 and self._settings["client_dns_lookup"] == CANONICAL_NAMES
        (self.resolver.resolve_canonical if is_canonical else self.resolver.resolve)(*asked, resolved)
        return NOTHING_DUE_MS if link.resolving else self._due_of(link, now_ms)

    @staticmethod
    def _due_of(link: Link, now_ms: int) -> int:
        """Return in how many ms to look again at an attempt that has begun, or failed at once (network unreachable)."""
        if link.connect_deadline_ms is not None:
            return link.connect_deadline_ms - now_ms
        return max(link.retry_at_ms - now_ms, 0)

    def _fail_to_connect(self, link: Link, text: str) -> None:
        self.note_error(link, text)
        self._states.failed(link, self._now_ms)
        if self.metadata.bootstrapping:
            self.metadata.last_error = self.last_error
        self.metadata.request_update()
        self._after_failure(link)

    def connect_to(self, link: Link, address: Address) -> None:
        """Start connecting to an address of the broker."""
        try:
            sizes = int(self._settings["send_buffer_bytes"]), int(self._settings["receive_buffer_bytes"])
            sock = connecting_socket(address, *sizes)
        except Exception as error:  # a broker or a resolver may give an invalid address
            self._fail_to_connect(link, getattr(error, "strerror", None) or str(error))
            return
        try:
            self.loop.open_connection(link.index, sock.detach())
        except OSError as error:
            self._fail_to_connect(link, error.strerror or str(error))
            return
        link.peer = address
        link.wanted = link.given_up = link.was_answered = False
        self._states.connecting(link, self._now_ms)

    # ------------------------------------------------------------ requests

    def request(self, link: Link, api: ApiKey, body: dict[str, Any], then: Handler, version: int | None = None) -> None:
        """Send a request, in the negotiated version of its API unless another one is given.

        While the connection authenticates again, the broker takes no other request, so this one is held until then.
        """
        assert link.versions is not None
        if link.sasl is not None:
            link.held.append(lambda: self.request(link, api, body, then, version))
            return
        used = link.versions[api] if version is None else version
        correlation_id = self.loop.next_correlation_id(link.index)
        frame = encode_request(api, used, correlation_id, self._settings["client_id"], body)
        self.send_frame(link, correlation_id, frame, then)

    def send_frame(self, link: Link, correlation_id: int, frame: bytes, then: Handler) -> None:
        self._pending[link.index, correlation_id] = then
        with contextlib.suppress(ConnectionError):  # a "closed" event follows and removes the pending handler
            self.loop.send(link.index, frame, correlation_id)

    def take_answer(
        self, link: Link, api: ApiKey, payload: bytes, *, exact: bool = True, version: int | None = None
    ) -> dict[str, Any]:
        """Return the body of a response and apply its throttle time. `exact`: bytes after the body are an error.

        `version`: that of the request, if it is not the negotiated one.
        """
        assert link.versions is not None
        link.was_answered = True
        body: dict[str, Any]
        used = link.versions[api] if version is None else version
        _, body = decode_response(api, used, payload, exact=exact)
        apply_throttle(self.loop, link, api, used, body)
        return body

    def _send_metadata(self, link: Link, now_ms: int) -> None:
        self._metadata_link = link
        self._keep_used(now_ms)
        self.request(link, ApiKey.METADATA, self.metadata.request_body(now_ms), self._on_metadata)

    def _on_metadata(self, link: Link, payload: bytes, now_ms: int) -> None:
        assert link.versions is not None
        # librdkafka's mock cluster adds a byte after the body; the Java client ignores such bytes, too.
        body = self.take_answer(link, ApiKey.METADATA, payload, exact=False)
        self._metadata_link = None
        if body["error_code"] == REBOOTSTRAP_REQUIRED:
            self.metadata.on_failure(now_ms, f"broker {link.name}: {describe(REBOOTSTRAP_REQUIRED)}")
            if self._rebootstrap.enabled:
                self._close_and_ask("the cluster asks the client to bootstrap again", now_ms)
            return
        self._keep_used(now_ms)  # topics may have become idle meanwhile, if this process was stopped
        reliable = link.versions[ApiKey.METADATA] >= RELIABLE_EPOCHS_FROM
        change = self.metadata.on_response(body, now_ms, reliable_epochs=reliable)
        for name in change.forgotten:
            self.loop.forget_topic(name)
            self._truncated.pop(name, None)
        self.forgotten += change.forgotten
        for broker in sorted(change.left_out - self._left_out):
            self.log.warning("ignoring broker %s of the metadata response: its id or port is invalid", broker)
        self._left_out = change.left_out
        self.changed = True
        if change.ignored:
            return
        self._rebootstrap.end()
        self.loop.note_metadata()
        if not self.metadata.last_error:
            self.last_error = ""
        if link.broker_id < 0:
            self._settle_bootstrap(link)
        self._ensure_links()
        self.unsettled.update(dict.fromkeys(change.topics))

    def _on_leaders(self, event: LeadersNamed, now_ms: int) -> None:
        """Take the newer leaders that the broker names, so that their batches need not wait for the next metadata."""
        change = take_leader_hints(self.metadata, self.loop, event)
        self.changed = self.changed or change.brokers
        self._ensure_links()
        self.unsettled.update(dict.fromkeys(change.topics))

    def _settle_bootstrap(self, link: Link) -> None:
        """Make the bootstrap connection that of the broker to which it leads, or close it."""
        for broker_id, (host, port, _) in self.metadata.brokers.items():
            if broker_id in self.links or not link.leads_to(host, port):
                continue
            del self.links[link.broker_id]
            self.loop.set_node_id(link.index, broker_id)
            link.broker_id, link.host, link.port = broker_id, host, port
            self._add_link(link)
            break
        else:
            self.loop.close_node(link.index)
        for other in [other for other in self.links.values() if other.broker_id < 0 and other is not link]:
            if not self.is_closed(other):
                self.loop.close_node(other.index)

    def settle(self) -> list[str]:
        """Give the loop the new leaders of some topics, the oldest change first. Return their names, to be published.

        The rest stays in `unsettled` for the next loop iteration, so that many changed leaders do not make one long.
        """
        names: list[str] = []
        left = PARTITIONS_PER_ITERATION
        while self.unsettled and left > 0:
            name = next(iter(self.unsettled))
            del self.unsettled[name]
            topic = self.metadata.topics.get(name)
            if topic is None:
                continue
            names.append(name)
            left -= 1 + len(topic.partitions)
            number = self.loop.add_topic(name)
            self.loop.set_topic_error(number, topic.error_code)
            if not topic.error_code:
                self.loop.set_topic_id(number, topic.topic_id.bytes if topic.topic_id is not None else b"")
            if topic.partitions or topic.error_code == UNKNOWN_TOPIC_OR_PARTITION:
                # After a retriable error no partition has a leader: queued batches wait, as in Kafka's producer.
                self._set_leaders(name, topic.usable)
        return names

    def _set_leaders(self, name: str, partitions: list[PartitionMetadata]) -> None:
        leaders, epochs = [], [partition.leader_epoch for partition in partitions]
        for partition in partitions:
            # as a leader -1 means none; as a key of `links` it is the first bootstrap address
            link = self.links.get(partition.leader_id) if partition.leader_id >= 0 else None
            leaders.append(-1 if link is None else link.index)
            if link is None and partition.leader_id >= 0:
                self._leaderless.setdefault(partition.leader_id, set()).add(name)
        self._note_truncated(name, len(leaders), self.loop.set_leaders(self.loop.add_topic(name), leaders, epochs))

    def _note_truncated(self, name: str, count: int, kept: int) -> None:
        if kept == count:
            self._truncated.pop(name, None)
            return
        if name not in self._truncated:
            self.log.warning(
                "the %d partitions of topic %s do not fit into the sender's table: only the first %d are used",
                count,
                name,
                kept,
            )
        self._truncated[name] = kept

    def partitions(self, name: str) -> list[PartitionMetadata]:
        """Return the partitions of a topic that can get batches; none for a topic with an error."""
        return self.metadata.topics[name].usable[: self._truncated.get(name)]

    def close(self) -> None:
        self.resolver.close()
        self.telemetry.close()
        self.setup.close()
