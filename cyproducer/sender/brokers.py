"""The connections of a sender, as far as they are rare: addresses, connecting, ApiVersions, metadata, producer id.

The loop asks through events; every answer goes back to it as a call. One connection per broker: the bootstrap
connection is used on if it turns out to lead to a broker of the metadata, and closed otherwise.
"""

import contextlib
import logging
import os
import random
import socket
import struct
import time
from collections.abc import Callable
from typing import Any

from cyproducer.cluster.backoff import ExponentialBackoff
from cyproducer.cluster.metadata import ClusterMetadata, PartitionMetadata
from cyproducer.protocol.codec import decode_response, encode_request
from cyproducer.protocol.errors import describe, error_of
from cyproducer.protocol.fields import ProtocolError
from cyproducer.protocol.versions import ApiKey, ApiVersionsExchange, negotiate
from cyproducer.sender.resolver import Address, Resolver

__all__ = ["Brokers", "Link"]

CONNECTION_SETUP_TIMEOUT_MS = 10_000        # socket.connection.setup.timeout.ms
LOOPBACK_SNDBUF = 512 * 1024                # more in flight on loopback costs cache misses and gains nothing
SAME_ERROR_LOGGED_EVERY_S = 60.0
TOPICS_USED_EVERY_MS = 30_000               # well below metadata.max.idle.ms, after which a topic is forgotten
CLOSE_REASONS = {
    -1: "the broker closed the connection",
    -2: "no answer within request_timeout_ms",
    -3: "what answers there does not speak Kafka's protocol",
    -4: "closed",
}
PRODUCE_MALFORMED_VERSION = 5               # librdkafka's mock cluster leaves a field out of its v5


class Link:
    """One broker, or one bootstrap address (negative id), and its node in the loop."""

    def __init__(self, index: int, broker_id: int, host: str, port: int) -> None:
        self.index = index
        self.broker_id = broker_id
        self.host = host
        self.port = port
        self.peer: Address | None = None
        self.versions: dict[int, int] | None = None     # agreed; None: not connected
        self.exchange: ApiVersionsExchange | None = None
        self.addresses: list[Address] = []              # left to try
        self.resolving = False
        self.wanted = False                             # the loop has something to send
        self.failures = 0
        self.retry_at_ms = 0
        self.connect_deadline_ms: int | None = None
        self.last_error = ""
        self.logged_s = 0.0

    @property
    def name(self) -> str:
        return f"{self.host}:{self.port}"


class Brokers:
    """Keeps the links and the metadata of one cluster going."""

    def __init__(self, loop: Any, settings: dict[str, Any], log: logging.Logger) -> None:
        self._loop = loop
        self._settings = settings
        self._log = log
        self.resolver = Resolver()
        self.metadata = ClusterMetadata(
            [_host_port(server) for server in settings["bootstrap_servers"]],
            max_age_ms=int(settings["metadata_max_age_ms"]),
            retry_backoff_ms=int(settings["retry_backoff_ms"]),
            retry_backoff_max_ms=int(settings["retry_backoff_max_ms"]),
        )
        self._backoff = ExponentialBackoff(
            int(settings["reconnect_backoff_ms"]),
            max(int(settings["reconnect_backoff_max_ms"]), int(settings["reconnect_backoff_ms"])),
        )
        self.links: dict[int, Link] = {}                # by broker id
        self._by_index: dict[int, Link] = {}
        self._pending: dict[tuple[int, int], Callable[[Link, bytes], None]] = {}
        self._metadata_link: Link | None = None
        self._producer_id_wanted = False
        self._producer_id_asked = False
        self._producer_id_at_ms = 0
        self._producer_id_attempts = 0
        self._used_at_ms = 0
        self._now_ms = 0
        self._left_out: set[str] = set()                # brokers, as the last answer named them
        self._cut: dict[str, int] = {}                  # topics of which the loop has so many partitions only
        self.changed = True                             # a snapshot is due
        self.last_error = ""

    # ------------------------------------------------------------ what the loop reports

    def on_event(self, event: tuple[Any, ...], now_ms: int) -> None:
        kind, index, correlation_id, error, _, payload = event
        link = self._by_index.get(index)
        if kind == "refresh":
            self.metadata.request_update()
            self._used_at_ms = 0  # a successor learns from the loop which topics are in use
        elif kind == "producer_id":
            self._producer_id_wanted = True
        elif link is None:
            return
        elif kind == "work":
            link.wanted = True
        elif kind == "connected":
            self._on_connected(link)
        elif kind == "closed":
            self._on_closed(link, error, now_ms)
        elif kind == "response":
            handler = self._pending.pop((index, correlation_id), None)
            if handler is not None:
                self._handle(link, handler, payload, now_ms)

    def _handle(self, link: Link, handler: Callable[[Link, bytes], None], payload: bytes, now_ms: int) -> None:
        self._now_ms = now_ms
        try:
            handler(link, payload)
        except ProtocolError as error:
            self._give_up(link, str(error), now_ms)
        except Exception as error:  # what a broker says must not end the sender, and then its successors
            self._log.exception("an answer of broker %s could not be handled", link.name)
            self._give_up(link, f"its answer could not be handled ({type(error).__name__}: {error})", now_ms)

    def _on_connected(self, link: Link) -> None:
        link.exchange = ApiVersionsExchange()
        self._ask_versions(link)

    def _ask_versions(self, link: Link) -> None:
        assert link.exchange is not None
        correlation_id = self._loop.next_correlation_id(link.index)
        frame = link.exchange.request(correlation_id, self._settings["client_id"])
        self._send(link, correlation_id, frame, self._on_versions)

    def _on_versions(self, link: Link, payload: bytes) -> None:
        assert link.exchange is not None
        ranges = link.exchange.on_response(payload)
        if ranges is None:
            self._ask_versions(link)
            return
        wanted = [api for api in ApiKey if api != ApiKey.INIT_PRODUCER_ID or api in ranges]
        versions = negotiate(ranges, wanted)
        if versions[ApiKey.PRODUCE] == PRODUCE_MALFORMED_VERSION:
            versions[ApiKey.PRODUCE] -= 1
        link.versions = versions
        link.exchange = None
        link.connect_deadline_ms = None
        link.failures = 0
        link.last_error = ""
        link.addresses = []
        self._loop.connection_ready(link.index, versions[ApiKey.PRODUCE])
        self._log.info("connected to broker %s (id %d)", link.name, link.broker_id)

    def _on_closed(self, link: Link, error: int, now_ms: int) -> None:
        was_ready = link.versions is not None
        link.versions = None
        link.exchange = None
        if self._is_closed(link):  # else it is being connected to again already
            link.connect_deadline_ms = None
        for key in [key for key in self._pending if key[0] == link.index]:
            del self._pending[key]
        text = CLOSE_REASONS.get(error) or os.strerror(error)
        if error != -4:
            self._note_error(link, text)
        self._fail_metadata(link, text, now_ms)
        if self._producer_id_asked:
            self._producer_id_asked = False
        if error == -4:
            return
        self.metadata.request_update()
        if was_ready or not link.addresses:  # else the next address is tried at once
            link.retry_at_ms = now_ms + self._backoff.delay_ms(link.failures)
            link.failures += not was_ready  # a connection that breaks is no broker that cannot be reached
        self._maybe_rebootstrap()

    def _give_up(self, link: Link, text: str, now_ms: int) -> None:
        """The broker's fault ends its connection. It is an attempt that failed, which _on_closed cannot tell."""
        self._note_error(link, text)
        self._fail_metadata(link, text, now_ms)
        self._loop.close_node(link.index)
        self.metadata.request_update()
        if not link.addresses:
            link.retry_at_ms = now_ms + self._backoff.delay_ms(link.failures)
            link.failures += 1
        self._maybe_rebootstrap()

    def _fail_metadata(self, link: Link, text: str, now_ms: int) -> None:
        """The metadata request under way gets no answer, if it is at this broker."""
        if self._metadata_link is link:
            self._metadata_link = None
            self.metadata.on_failure(now_ms, f"broker {link.name}: {text}")

    def _note_error(self, link: Link, text: str) -> None:
        """Kept for status and snapshot; logged once a minute while it stays the same."""
        self.last_error = f"broker {link.name}: {text}"
        self.changed = True
        now_s = time.monotonic()
        if link.last_error != text or now_s >= link.logged_s + SAME_ERROR_LOGGED_EVERY_S:
            link.logged_s = now_s
            self._log.warning("broker %s: %s", link.name, text)
        link.last_error = text

    def _maybe_rebootstrap(self) -> None:
        """When no broker of the metadata can be reached, the bootstrap servers may know others (KIP-899)."""
        if self.metadata.bootstrapping:
            return
        known = [self.links[broker_id] for broker_id in self.metadata.brokers if broker_id in self.links]
        if known and all(link.failures for link in known):
            change = self.metadata.rebootstrap()
            self._log.warning("no known broker can be reached: asking the bootstrap servers again")
            for link in self.links.values():
                link.failures = max(link.failures - 1, 0)
            self._apply_leaders(change.topics)

    # ------------------------------------------------------------ what is due

    def maintain(self, now_ms: int) -> int:
        """Does what is due; in how many ms something is due again."""
        self._now_ms = now_ms
        if now_ms >= self._used_at_ms:
            self._note_used(now_ms)
        due = 60_000
        due = min(due, self._maintain_metadata(now_ms))
        due = min(due, self._maintain_producer_id(now_ms))
        for link in list(self.links.values()):
            if link.connect_deadline_ms is not None:
                if link.connect_deadline_ms <= now_ms:
                    link.connect_deadline_ms = None
                    self._give_up(link, "no connection within 10 s", now_ms)
                else:
                    due = min(due, link.connect_deadline_ms - now_ms)
            if link.versions is not None and self._loop.idle_ms(link.index) > self._settings["connections_max_idle_ms"]:
                self._log.info("broker %s: idle, closed", link.name)
                self._loop.close_node(link.index)
            if link.wanted and self._is_closed(link):
                due = min(due, self._connect(link, now_ms))
        return max(due, 1)

    def _note_used(self, now_ms: int) -> None:
        """Topics with batches stay in the metadata, or come back into it."""
        self._used_at_ms = now_ms + TOPICS_USED_EVERY_MS
        for name in self._loop.take_used_topics():
            self.metadata.want(name, now_ms)

    def _maintain_metadata(self, now_ms: int) -> int:
        at = self.metadata.next_request_at(now_ms) if self.metadata.wanted or self.metadata.bootstrapping else None
        if at is None:
            return 60_000
        if not self.metadata.wanted and not self._producer_id_wanted:
            return 60_000
        if at > now_ms:
            return at - now_ms
        link = self._least_loaded()
        if link is not None:
            self._send_metadata(link, now_ms)
            return 60_000
        return self._connect_any(now_ms)

    def _maintain_producer_id(self, now_ms: int) -> int:
        if not self._producer_id_wanted or self._producer_id_asked:
            return 60_000
        if self._producer_id_at_ms > now_ms:
            return self._producer_id_at_ms - now_ms
        link = self._least_loaded(ApiKey.INIT_PRODUCER_ID)
        if link is None:
            return self._connect_any(now_ms)
        self._producer_id_asked = True
        body = {
            "transactional_id": None, "transaction_timeout_ms": 2**31 - 1, "producer_id": -1, "producer_epoch": -1,
        }
        self._request(link, ApiKey.INIT_PRODUCER_ID, body, self._on_producer_id)
        return 60_000

    def _least_loaded(self, api: ApiKey = ApiKey.METADATA) -> Link | None:
        ready = [
            link for link in self.links.values()
            if link.versions is not None and api in link.versions
            and self._loop.connection_state(link.index)[0] == "ready"  # it may have closed since the last event
        ]
        if not ready:
            return None
        return min(ready, key=lambda link: self._loop.connection_state(link.index)[1])

    def _connect_any(self, now_ms: int) -> int:
        """Gets some connection under way; when to look again."""
        self._ensure_links()
        known = [self.links[broker_id] for broker_id in self.metadata.brokers]
        if any(not self._is_closed(link) or link.resolving for link in known):
            return 60_000
        random.shuffle(known)
        return self._connect(min(known, key=lambda link: link.retry_at_ms), now_ms)

    # ------------------------------------------------------------ connecting

    def _ensure_links(self) -> None:
        for broker_id, (host, port, _) in self.metadata.brokers.items():
            link = self.links.get(broker_id)
            if link is None:
                link = Link(self._loop.add_node(broker_id), broker_id, host, port)
                self.links[broker_id] = link
                self._by_index[link.index] = link
            elif (link.host, link.port) != (host, port):
                link.host, link.port, link.addresses, link.retry_at_ms = host, port, [], 0
                self._loop.close_node(link.index)

    def _is_closed(self, link: Link) -> bool:
        return bool(self._loop.connection_state(link.index)[0] == "closed")

    def _connect(self, link: Link, now_ms: int) -> int:
        """Starts connecting unless it is backing off or its name is being resolved; when to look again."""
        if link.resolving:
            return 60_000
        if link.retry_at_ms > now_ms:
            return link.retry_at_ms - now_ms
        if link.addresses:
            self._connect_to(link, link.addresses.pop(0))
            return CONNECTION_SETUP_TIMEOUT_MS
        link.resolving = True

        def resolved(answer: list[Address] | OSError) -> None:
            link.resolving = False
            if isinstance(answer, OSError) or not answer:
                self._fail_to_connect(link, f"its name does not resolve ({answer})")
                return
            link.addresses = list(answer)
            self._connect_to(link, link.addresses.pop(0))

        self.resolver.resolve(link.host, link.port, resolved)
        return CONNECTION_SETUP_TIMEOUT_MS if not link.resolving else 60_000

    def _fail_to_connect(self, link: Link, text: str) -> None:
        self._note_error(link, text)
        link.retry_at_ms = self._now_ms + self._backoff.delay_ms(link.failures)
        link.failures += 1
        if self.metadata.bootstrapping:
            self.metadata.last_error = self.last_error
        self._maybe_rebootstrap()

    def _connect_to(self, link: Link, address: Address) -> None:
        family, target = address
        try:
            sock = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
        except OSError as error:
            self._fail_to_connect(link, str(error))
            return
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            # reset on close: bytes of a dead sender that are still queued must not reach the broker
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self._size_buffers(sock, str(target[0]))
            sock.connect(target)
        except BlockingIOError:
            pass
        except Exception as error:  # an address may be anything that a broker or a resolver says
            sock.close()
            self._fail_to_connect(link, getattr(error, "strerror", None) or str(error))
            return
        try:
            self._loop.open_connection(link.index, sock.detach())
        except OSError as error:
            self._fail_to_connect(link, error.strerror or str(error))
            return
        link.peer = address
        link.wanted = False
        link.connect_deadline_ms = self._now_ms + CONNECTION_SETUP_TIMEOUT_MS

    def _size_buffers(self, sock: socket.socket, host: str) -> None:
        send, receive = self._settings.get("send_buffer_bytes"), self._settings.get("receive_buffer_bytes")
        if send is not None and send > 0:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send)
        elif host.startswith("127.") or host == "::1":
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, LOOPBACK_SNDBUF)
        if receive is not None and receive > 0:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive)

    # ------------------------------------------------------------ requests

    def _request(self, link: Link, api: ApiKey, body: dict[str, Any], then: Callable[[Link, bytes], None]) -> None:
        assert link.versions is not None
        correlation_id = self._loop.next_correlation_id(link.index)
        frame = encode_request(api, link.versions[api], correlation_id, self._settings["client_id"], body)
        self._send(link, correlation_id, frame, then)

    def _send(self, link: Link, correlation_id: int, frame: bytes, then: Callable[[Link, bytes], None]) -> None:
        self._pending[link.index, correlation_id] = then
        with contextlib.suppress(ConnectionError):  # its "closed" is on the way, and ends what is pending
            self._loop.send(link.index, frame, correlation_id)

    def _send_metadata(self, link: Link, now_ms: int) -> None:
        self._metadata_link = link
        self._note_used(now_ms)
        self._request(link, ApiKey.METADATA, self.metadata.request_body(now_ms), self._on_metadata)

    def _on_metadata(self, link: Link, payload: bytes) -> None:
        assert link.versions is not None
        # librdkafka's mock cluster puts a byte behind it; Java's client ignores such a rest, too.
        _, body = decode_response(ApiKey.METADATA, link.versions[ApiKey.METADATA], payload, exact=False)
        self._metadata_link = None
        self._note_used(self._now_ms)  # since the last time the process may have been stopped
        change = self.metadata.on_response(body, self._now_ms)
        for name in change.forgotten:
            self._loop.forget_topic(name)
            self._cut.pop(name, None)
        for broker in sorted(change.left_out - self._left_out):
            self._log.warning("the cluster names a broker %s, which cannot be: it is left out", broker)
        self._left_out = change.left_out
        self.changed = True
        if change.ignored:
            return
        if not self.metadata.last_error:
            self.last_error = ""
        if link.broker_id < 0:
            self._settle_bootstrap(link)
        self._ensure_links()
        topics = set(self.metadata.topics) if change.brokers else change.topics
        self._apply_leaders(topics)

    def _settle_bootstrap(self, link: Link) -> None:
        """The bootstrap connection becomes that of the broker which it leads to, or is closed."""
        for broker_id, (host, port, _) in self.metadata.brokers.items():
            if broker_id in self.links or not self._leads_to(link, host, port):
                continue
            del self.links[link.broker_id]
            self._loop.set_node_id(link.index, broker_id)
            link.broker_id, link.host, link.port = broker_id, host, port
            self.links[broker_id] = link
            break
        else:
            self._loop.close_node(link.index)
        for other in [other for other in self.links.values() if other.broker_id < 0 and other is not link]:
            if not self._is_closed(other):
                self._loop.close_node(other.index)

    def _leads_to(self, link: Link, host: str, port: int) -> bool:
        if (link.host, link.port) == (host, port):
            return True
        return link.peer is not None and (str(link.peer[1][0]), link.peer[1][1]) == (host, port)

    def _apply_leaders(self, topics: set[str]) -> None:
        for name in topics:
            topic = self.metadata.topics.get(name)
            if topic is None or not topic.partitions:
                continue
            leaders = []
            for partition in topic.partitions:
                # -1 is no leader here, and the first bootstrap address there
                link = self.links.get(partition.leader_id) if partition.leader_id >= 0 else None
                leaders.append(-1 if link is None else link.index)
            self._note_cut(name, len(leaders), self._loop.set_leaders(self._loop.add_topic(name), leaders))

    def _note_cut(self, name: str, count: int, kept: int) -> None:
        if kept == count:
            self._cut.pop(name, None)
            return
        if name not in self._cut:
            self._log.warning(
                "the %d partitions of topic %s do not fit into the sender's table: it uses %d", count, name, kept
            )
        self._cut[name] = kept

    def partitions(self, name: str) -> list[PartitionMetadata]:
        """Those of a topic of the metadata that batches can be for."""
        return self.metadata.topics[name].partitions[:self._cut.get(name)]

    def _on_producer_id(self, link: Link, payload: bytes) -> None:
        assert link.versions is not None
        self._producer_id_asked = False
        _, body = decode_response(ApiKey.INIT_PRODUCER_ID, link.versions[ApiKey.INIT_PRODUCER_ID], payload)
        if body["error_code"]:
            delay = self._backoff.delay_ms(min(self._producer_id_attempts, 10))
            self._producer_id_attempts += 1
            self._producer_id_at_ms = self._now_ms + max(delay, int(self._settings["retry_backoff_ms"]))
            self.last_error = f"no producer id: {describe(body['error_code'])}"
            level = logging.INFO if error_of(body["error_code"]).retriable else logging.WARNING
            self._log.log(level, "%s", self.last_error)
            self.changed = True
            return
        self._producer_id_wanted = False
        self._producer_id_attempts = 0
        self.last_error = ""
        self.changed = True
        self._loop.set_producer_id(body["producer_id"], body["producer_epoch"])
        self._log.info("producer id %d, epoch %d", body["producer_id"], body["producer_epoch"])

    def close(self) -> None:
        self.resolver.close()


def _host_port(server: str) -> tuple[str, int]:
    host, _, port = server.rpartition(":")
    return host.strip("[]"), int(port)
