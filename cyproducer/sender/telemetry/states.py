"""Decides when brokers are asked for a subscription, and when metrics are pushed (DefaultClientTelemetrySender).

    SUBSCRIPTION_NEEDED -> SUBSCRIPTION_IN_PROGRESS -> PUSH_NEEDED -> PUSH_IN_PROGRESS -> PUSH_NEEDED ...
                                                    -> SUBSCRIPTION_NEEDED (no metrics are requested, or an error)
    at the end -> TERMINATING_PUSH_NEEDED -> TERMINATING_PUSH_IN_PROGRESS -> TERMINATED

It does no I/O: responses and a clock go in, decisions come out.
"""

import random
import uuid
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any, NamedTuple

from cyproducer.codes import (
    INVALID_RECORD,
    INVALID_REQUEST,
    TELEMETRY_TOO_LARGE,
    THROTTLING_QUOTA_EXCEEDED,
    UNKNOWN_SUBSCRIPTION_ID,
    UNSUPPORTED_COMPRESSION_TYPE,
    UNSUPPORTED_VERSION,
)
from cyproducer.protocol.fields import ZERO_UUID

__all__ = ["ClientTelemetry", "State", "Subscription"]

DEFAULT_PUSH_INTERVAL_MS = 300_000
#: The first push is delayed by the interval times a number between these, so that clients do not push all at once.
JITTER = (0.5, 1.5)
#: Pause before a subscription is requested again after an error for which Kafka's client makes no pause. A broker that
#: answers each request so would otherwise get one after the other.
AT_ONCE_MS = 1000

#: Errors after which the subscription is requested again at once, and after the interval. All others end the push.
ASK_AT_ONCE = (UNKNOWN_SUBSCRIPTION_ID, UNSUPPORTED_COMPRESSION_TYPE)
ASK_LATER = (TELEMETRY_TOO_LARGE, THROTTLING_QUOTA_EXCEEDED)
#: Those of the others that Kafka's client expects.
FATAL = (INVALID_REQUEST, INVALID_RECORD, UNSUPPORTED_VERSION)


class State(Enum):
    """The states of Kafka's ClientTelemetryState."""

    SUBSCRIPTION_NEEDED = 1
    SUBSCRIPTION_IN_PROGRESS = 2
    PUSH_NEEDED = 3
    PUSH_IN_PROGRESS = 4
    TERMINATING_PUSH_NEEDED = 5
    TERMINATING_PUSH_IN_PROGRESS = 6
    TERMINATED = 7


_BEGUN = {
    State.SUBSCRIPTION_NEEDED: State.SUBSCRIPTION_IN_PROGRESS,
    State.PUSH_NEEDED: State.PUSH_IN_PROGRESS,
    State.TERMINATING_PUSH_NEEDED: State.TERMINATING_PUSH_IN_PROGRESS,
}
_TERMINATING = (State.TERMINATING_PUSH_NEEDED, State.TERMINATING_PUSH_IN_PROGRESS)


class Subscription(NamedTuple):
    """What a broker wants. `accepted`: its codecs, the preferred one first. `prefixes`: of the names of metrics."""

    client_instance_id: uuid.UUID
    subscription_id: int
    push_interval_ms: int
    accepted: tuple[int, ...]
    max_bytes: int
    delta: bool
    prefixes: tuple[str, ...]


class ClientTelemetry:
    """The state of one client instance. `enabled` is False as soon as a broker has refused what a retry cannot mend.

    `draw` returns a random number between its two arguments.
    """

    def __init__(self, enabled: bool = True, draw: Callable[[float, float], float] = random.uniform) -> None:
        self.state = State.SUBSCRIPTION_NEEDED
        self.subscription: Subscription | None = None
        self.enabled = enabled
        self._draw = draw
        self._from_ms: int | None = None  # the pause counts from here; None: there was no response yet
        self._pause_ms = 0

    def disable(self) -> None:
        """Send no more requests."""
        self.enabled = False

    @property
    def terminating(self) -> bool:
        """Whether the last push is due or in flight."""
        return self.state in _TERMINATING

    def due_ms(self, now_ms: int) -> int | None:
        """Return in how many ms the next request is due; None: a response must come first, or no request follows."""
        if not self.enabled or self.state not in _BEGUN:
            return None
        if self.state is State.TERMINATING_PUSH_NEEDED or self._from_ms is None:
            return 0
        return max(self._from_ms + self._pause_ms - now_ms, 0)

    def begin(self) -> None:
        """Note that the request that is due is being made."""
        self.state = _BEGUN[self.state]

    def push_again(self) -> None:
        """Note that the push that was being made could not be sent; it is due again."""
        if self.state is State.PUSH_IN_PROGRESS:
            self.state = State.PUSH_NEEDED
        elif self.terminating:
            self.state = State.TERMINATED

    def on_subscription(self, body: Mapping[str, Any], now_ms: int) -> None:
        """Take the response to GetTelemetrySubscriptions."""
        if self.state is not State.SUBSCRIPTION_IN_PROGRESS:
            return  # the end has begun meanwhile
        if body["error_code"]:
            self._on_error(body["error_code"], now_ms, AT_ONCE_MS)
            return
        known = self.subscription.client_instance_id if self.subscription is not None else ZERO_UUID
        # The broker need not repeat the id that the request has.
        client_instance_id = known if body["client_instance_id"] == ZERO_UUID else body["client_instance_id"]
        if client_instance_id == ZERO_UUID:
            self.enabled = False
            return
        interval_ms = body["push_interval_ms"] if body["push_interval_ms"] > 0 else DEFAULT_PUSH_INTERVAL_MS
        self.subscription = Subscription(
            client_instance_id,
            body["subscription_id"],
            interval_ms,
            tuple(body["accepted_compression_types"]),
            body["telemetry_max_bytes"],
            body["delta_temporality"],
            tuple(body["requested_metrics"]),
        )
        wanted = bool(self.subscription.prefixes)
        self.state = State.PUSH_NEEDED if wanted else State.SUBSCRIPTION_NEEDED
        self._pause(round(self._draw(*JITTER) * interval_ms) if wanted else interval_ms, now_ms)

    def on_pushed(self, error_code: int, now_ms: int) -> None:
        """Take the response to PushTelemetry."""
        if self.state is State.TERMINATING_PUSH_IN_PROGRESS:
            self.state = State.TERMINATED
        elif self.state is not State.PUSH_IN_PROGRESS:
            pass  # the end has begun meanwhile
        elif error_code:
            self._on_error(error_code, now_ms, 0)
        else:
            self.state = State.PUSH_NEEDED
            self._pause(self._interval_ms(), now_ms)

    def on_lost(self, now_ms: int, *, at_once: bool = False) -> None:
        """Note that the request in flight gets no response. The broker may be one that does not support it."""
        if self.terminating:
            self.state = State.TERMINATED
        elif self.state in (State.SUBSCRIPTION_IN_PROGRESS, State.PUSH_IN_PROGRESS):
            self.state = State.SUBSCRIPTION_NEEDED
            self._pause(0 if at_once else DEFAULT_PUSH_INTERVAL_MS, now_ms)

    def on_not_made(self, now_ms: int) -> None:
        """Note that the payload of the push could not be made; the next one is due after the interval."""
        self.push_again()
        self._pause(self._interval_ms(), now_ms)

    def terminate(self) -> None:
        """Let one more push be due, if there is a subscription with metrics. No request follows it."""
        wants_metrics = self.subscription is not None and bool(self.subscription.prefixes)
        if not self.enabled or not wants_metrics or self.state is State.SUBSCRIPTION_NEEDED:
            self.state = State.TERMINATED
        elif self.state is not State.TERMINATED and not self.terminating:
            self.state = State.TERMINATING_PUSH_NEEDED

    def _interval_ms(self) -> int:
        return DEFAULT_PUSH_INTERVAL_MS if self.subscription is None else self.subscription.push_interval_ms

    def _on_error(self, code: int, now_ms: int, at_once_ms: int) -> None:
        """Ask for the subscription again, or never (ClientTelemetryUtils.maybeFetchErrorIntervalMs)."""
        self.state = State.SUBSCRIPTION_NEEDED
        if code in ASK_AT_ONCE:
            self._pause(at_once_ms, now_ms)
        elif code in ASK_LATER:
            self._pause(self._interval_ms(), now_ms)
        else:
            self.enabled = False

    def _pause(self, pause_ms: int, now_ms: int) -> None:
        self._from_ms, self._pause_ms = now_ms, pause_ms
