"""Defines the events by which the native loop tells the control plane what has happened, and hands them out.

`node` is the index of a broker's node in the loop. Times in handlers are milliseconds of the monotonic clock.
"""

from collections.abc import Callable
from enum import IntEnum
from typing import Any, NamedTuple, TypeVar

__all__ = [
    "Answered",
    "CloseReason",
    "Closed",
    "Connected",
    "Event",
    "EventHandlers",
    "Handshake",
    "HasWork",
    "LeadersNamed",
    "ProducerIdWanted",
    "ProducerStateDenied",
    "ProducerStateLost",
    "RefreshWanted",
    "RequestsWait",
    "Resync",
    "Silent",
    "TransactionChanged",
    "Violated",
    "Violation",
]


class CloseReason(IntEnum):
    """Why the loop has closed a connection. A number above 0 is an errno."""

    BY_PEER = -1
    TIMEOUT = -2
    PROTOCOL = -3
    BY_US = -4
    TLS = -5  # TlsStream.error says why
    NEEDS_TLS = -6  # a TLS alert came on a connection without TLS


class Violation(IntEnum):
    """How a front-end broke the protocol of the shared memory."""

    RING = 1  # its submission ring claims more entries than it can hold
    HINT = 2  # an entry of its submission ring is invalid
    CHAIN = 3  # a committed batch is not a valid chain of records
    CHANGED = 4  # it changed a batch after it was committed
    TOPIC = 5  # a committed batch has a generation that the topic's name never had


class Connected(NamedTuple):
    """A connection is established. With TLS the handshake follows."""

    node: int


class Handshake(NamedTuple):
    """The TLS handshake, or that with a proxy, can go on: the socket is readable, or writable as awaited."""

    node: int


class Closed(NamedTuple):
    """A connection was closed. reason: a CloseReason, or an errno."""

    node: int
    reason: int


class Answered(NamedTuple):
    """The broker has answered a request of the control plane."""

    node: int
    correlation_id: int
    payload: bytes


class HasWork(NamedTuple):
    """There are batches for a broker without a connection."""

    node: int


class RequestsWait(NamedTuple):
    """Requests to a broker wait for each other on all its connections: another one is wanted."""

    node: int


class Silent(NamedTuple):
    """The broker has not answered the oldest request of a connection for SILENT_NS."""

    node: int


class LeadersNamed(NamedTuple):
    """A broker has named newer leaders (KIP-951).

    leaders    (row of the partition table, broker id, leader epoch) of each partition
    endpoints  the field NodeEndpoints of the response as it was sent; empty if it has none
    """

    node: int
    leaders: list[tuple[int, int, int]]
    endpoints: bytes


class ProducerIdWanted(NamedTuple):
    """A new producer id is needed."""


class ProducerStateLost(NamedTuple):
    """The broker has lost the state of a partition's producer. row: of the partition table."""

    node: int
    row: int


class ProducerStateDenied(NamedTuple):
    """The broker does not say whether it has the state of a partition's producer. error: Kafka's code."""

    node: int
    row: int
    error: int


class Violated(NamedTuple):
    """A front-end broke the protocol of the shared memory. reason: a Violation."""

    attach_id: int
    reason: int


class TransactionChanged(NamedTuple):
    """Something has changed for a row of the table of transactions."""

    row: int


class RefreshWanted(NamedTuple):
    """An answer of a broker shows that the metadata is old."""


class Resync(NamedTuple):
    """There was no memory for events. The state of each connection is to be compared with what is known of it."""


Event = (
    Connected
    | Handshake
    | Closed
    | Answered
    | HasWork
    | RequestsWait
    | Silent
    | LeadersNamed
    | ProducerIdWanted
    | ProducerStateLost
    | ProducerStateDenied
    | Violated
    | TransactionChanged
    | RefreshWanted
    | Resync
)
_E = TypeVar("_E", bound=tuple[Any, ...])


class EventHandlers:
    """Calls the handler of each event, by its type."""

    def __init__(self) -> None:
        self._handlers: dict[type, Callable[..., None]] = {}

    def add(self, kind: type[_E], handler: Callable[[_E, int], None]) -> None:
        """Let the handler be called with each event of a type, and the time in ms."""
        self._handlers[kind] = handler

    def handle(self, event: Event, now_ms: int) -> None:
        self._handlers[type(event)](event, now_ms)
