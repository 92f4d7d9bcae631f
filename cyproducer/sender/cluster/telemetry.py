"""Asks brokers which metrics they want, and pushes these (KIP-714), as TelemetrySender does in Kafka's NetworkClient.

The sender is one client instance, for all of its front-ends. A broker whose ApiVersions lacks the requests gets none.
The counts are read in the sender, which takes some 100 us. The helper makes the payload from them.
"""

import logging
import time
from collections.abc import Callable
from typing import Any

from cyproducer import metric_table
from cyproducer.error_table import describe
from cyproducer.protocol.fields import ZERO_UUID, ProtocolError
from cyproducer.protocol.kafka_messages import ApiKey
from cyproducer.sender.cluster.connection import Connection, NoAnswerError
from cyproducer.sender.cluster.connections import Connections
from cyproducer.sender.system.helper import Helper, HelperError
from cyproducer.sender.system.tasks import NOTHING_DUE_MS, Tasks
from cyproducer.sender.telemetry.otlp import Request
from cyproducer.sender.telemetry.payload import LibraryError, PayloadError, load_library, make_payload
from cyproducer.sender.telemetry.states import ClientTelemetry, State, Subscription

__all__ = ["Telemetry"]

LAST_PUSH_MS = 1000  # how long the end of the sender waits for its last push
CHECK_AGAIN_MS = 10_000  # pause before another look, if the connected brokers lack the requests
NOT_IMPORTED = (
    "brokers request metrics, but the sender cannot import the package opentelemetry-proto, so that none are pushed: "
    "pip install 'cyproducer[telemetry]', or set enable_metrics_push=False"
)

Counts = metric_table.Counts


class Telemetry:
    """Sends the requests when they are due, one at a time."""

    def __init__(
        self, connections: Connections, tasks: Tasks, helper: Helper, settings: dict[str, Any], log: logging.Logger
    ) -> None:
        self.enabled: bool = settings["enable_metrics_push"]
        self._connections = connections
        self._tasks = tasks
        self._helper = helper
        self._rack: str = settings["client_rack"]
        self._log = log
        self._counts: Callable[[], Counts] = metric_table.nothing
        self._sticky: Connection | None = None  # the broker of the last request
        self._is_busy = False  # a payload is being made, or a request is in flight
        self._next_check_ms = 0
        self._id_wanted = False
        self._logged_error = 0
        self._telemetry = ClientTelemetry(self.enabled)
        self._end_by_ms: int | None = None
        self._sent: tuple[Counts, int] | None = None  # what the push in flight contains, and its time
        # Sums begin here, in ns since 1970: those of all pushes, and those of the next push with delta temporality.
        self._origin: Counts | None = None
        self._origin_ns = time.time_ns()
        self._since: Counts | None = None
        self._since_ns = self._origin_ns

    def measure(self, counts: Callable[[], Counts], continues: bool) -> None:
        """Push these counts. `continues`: they contain what a predecessor has counted, and may have pushed."""
        self._counts = counts
        if self.enabled and continues:
            self._origin = self._since = counts()

    def client_instance_id(self) -> str | None:
        """Return the id that a broker has assigned. Without one, let it be requested, also if nothing is sent."""
        self._id_wanted = self.enabled
        known = self._telemetry.subscription
        return None if known is None else str(known.client_instance_id)

    # ------------------------------------------------------------ the end

    def end(self, now_ms: int) -> bool:
        """Begin the last push, if there is a subscription. Return whether the sender need not wait for it any more."""
        if self._end_by_ms is None:
            self._telemetry.terminate()
            self._end_by_ms = now_ms + LAST_PUSH_MS
        return not self._telemetry.terminating or now_ms >= self._end_by_ms

    def resume(self) -> None:
        """Go on after `end()`, as another client instance: the broker refuses more metrics of this one."""
        if self._end_by_ms is None:
            return
        self._end_by_ms = None
        self._telemetry = ClientTelemetry(self._telemetry.enabled)
        self._is_busy = False
        self._confirm()
        self._origin, self._origin_ns = self._since, self._since_ns

    # ------------------------------------------------------------ requests

    def tick(self, now_ms: int) -> int:
        """Send the request that is due. Return in how many ms something is due again."""
        due_ms = self._telemetry.due_ms(now_ms)
        if due_ms is None or self._is_busy or now_ms < self._next_check_ms:
            return NOTHING_DUE_MS
        if due_ms > 0:
            return due_ms
        asks = self._telemetry.state is State.SUBSCRIPTION_NEEDED
        api = ApiKey.GET_TELEMETRY_SUBSCRIPTIONS if asks else ApiKey.PUSH_TELEMETRY
        connection = self._choose(api)
        if connection is None:
            return self._without_connection(asks, now_ms)
        self._telemetry.begin()
        self._is_busy = True
        self._tasks.start(self._ask_for_subscription(connection) if asks else self._make_and_push())
        return NOTHING_DUE_MS

    def _choose(self, api: ApiKey) -> Connection | None:
        """Return the broker of the last request if it can take another one, or the one with the fewest requests."""
        known = self._sticky
        has_api = known is not None and known.version_of(api) is not None
        if known is not None and has_api and known.is_ready and known.can_send_request and not known.throttled_ms:
            return known
        self._sticky = self._connections.least_loaded(api)
        return self._sticky

    def _without_connection(self, asks: bool, now_ms: int) -> int:
        """Connect to a broker for a push, and for an id that a process waits for. Return in how many ms to look again.

        A sender without a subscription makes no connection only to ask for one.
        """
        if self._telemetry.terminating:
            self._telemetry.push_again()
        elif self._connections.least_loaded() is not None:
            self._next_check_ms = now_ms + CHECK_AGAIN_MS
        elif not asks or (self._id_wanted and self._telemetry.subscription is None):
            return self._connections.connect_any()
        return NOTHING_DUE_MS

    async def _ask_for_subscription(self, connection: Connection) -> None:
        known = self._telemetry.subscription
        body = {"client_instance_id": ZERO_UUID if known is None else known.client_instance_id}
        await self._ask(connection, ApiKey.GET_TELEMETRY_SUBSCRIPTIONS, body, self._on_subscription)

    async def _ask(
        self, connection: Connection, api: ApiKey, body: dict[str, Any], then: Callable[[dict[str, Any], int], None]
    ) -> None:
        """Send a request, and handle its end. What was pushed on a connection that has ended counts as pushed."""
        telemetry, name = self._telemetry, connection.broker.name
        answer: dict[str, Any] | None = None
        error: Exception | None = None
        try:
            answer = await connection.ask(api, body, exact=False)
        except Exception as caught:
            error = caught
            if not isinstance(caught, NoAnswerError | ProtocolError):
                self._log.exception("a request about metrics could not be handled")
        if telemetry is not self._telemetry:
            return  # of the client instance that has ended
        self._is_busy = False
        now_ms = self._tasks.now_ms
        if isinstance(error, NoAnswerError):
            self._confirm()
            telemetry.on_lost(now_ms, at_once=error.closed_here)
        elif answer is None:  # the connection is kept: it has the batches of all processes
            telemetry.on_lost(now_ms)
            self._disable(f"broker {name} has sent an invalid response: {error}")
        else:
            then(answer, now_ms)
            self._log_error(name, answer["error_code"])

    def _on_subscription(self, body: dict[str, Any], now_ms: int) -> None:
        before = self._telemetry.subscription
        self._telemetry.on_subscription(body, now_ms)
        found = self._telemetry.subscription
        if not self._telemetry.enabled and not body["error_code"]:
            self._disable("a broker has assigned no client instance id")
        if found is None or found is before:
            return
        if before is None or before.client_instance_id != found.client_instance_id:
            self._log.info("client instance id %s (KIP-714)", found.client_instance_id)
        self._follow(before, found)

    def _follow(self, before: Subscription | None, found: Subscription) -> None:
        if before is not None and before.delta != found.delta:
            self._since, self._since_ns = self._origin, self._origin_ns  # the receiver begins anew
        if not found.prefixes:
            return
        if before is None or not before.prefixes:
            self._log.info("brokers request metrics, every %d ms", found.push_interval_ms)
        self._tasks.start(self._load_library())

    async def _load_library(self) -> None:
        """Import the library before the first push is due, and find out whether that is possible."""
        telemetry = self._telemetry
        try:
            await load_library(self._helper)
        except PayloadError as error:
            if telemetry is self._telemetry and not self._is_busy:  # a push that is being made fails as well
                self._on_not_made(error)
        except HelperError:
            pass  # the push tries again

    # ------------------------------------------------------------ pushes

    async def _make_and_push(self) -> None:
        telemetry, found = self._telemetry, self._telemetry.subscription
        assert found is not None
        counts = self._counts()
        wanted = Request(
            counts,
            self._since if found.delta else self._origin,
            found.delta,
            self._since_ns if found.delta else self._origin_ns,
            time.time_ns(),
            list(found.prefixes),
            list(found.accepted),
            found.max_bytes,
            self._rack,
        )
        try:
            made = await make_payload(self._helper, wanted)
        except PayloadError as error:
            if telemetry is self._telemetry:
                self._is_busy = False
                self._on_not_made(error)
            return
        if telemetry is not self._telemetry:
            return  # of the client instance that has ended
        connection = self._choose(ApiKey.PUSH_TELEMETRY)
        if telemetry.state is State.TERMINATING_PUSH_NEEDED:
            telemetry.begin()  # the end has begun while this push was made, so it is the last one
        if connection is None:
            self._is_busy = False
            telemetry.push_again()
            return
        self._sent = counts, wanted.now_ns
        body = {
            "client_instance_id": found.client_instance_id,
            "subscription_id": found.subscription_id,
            "terminating": telemetry.terminating,
            "compression_type": made.codec,
            "metrics": made.data,
        }
        await self._ask(connection, ApiKey.PUSH_TELEMETRY, body, self._on_pushed)

    def _on_not_made(self, error: PayloadError) -> None:
        self._telemetry.on_not_made(self._tasks.now_ms)
        if isinstance(error, LibraryError):
            self._disable(f"{NOT_IMPORTED} ({error})")
        else:
            self._log.warning("the metrics for the brokers could not be prepared: %s", error)

    def _on_pushed(self, body: dict[str, Any], now_ms: int) -> None:
        if body["error_code"]:
            self._sent = None
        self._confirm()
        self._telemetry.on_pushed(body["error_code"], now_ms)

    def _confirm(self) -> None:
        """Let the next push with delta temporality begin where the push in flight ends."""
        if self._sent is not None:
            (self._since, self._since_ns), self._sent = self._sent, None

    # ------------------------------------------------------------ errors

    def _log_error(self, name: str, code: int) -> None:
        """Log an error of a broker, and not the same one again and again."""
        if code and not self._telemetry.enabled:
            self._disable(f"broker {name}: {describe(code)}")
        elif code and code != self._logged_error:
            self._log.info("metrics were not pushed to broker %s: %s", name, describe(code))
        self._logged_error = code

    def _disable(self, reason: str) -> None:
        self._telemetry.disable()
        self._log.warning("metrics are not pushed to brokers: %s", reason)
