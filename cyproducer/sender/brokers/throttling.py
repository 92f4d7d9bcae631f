"""Obeys the throttle time in the response of a broker: it gets no requests for so long, at most for five minutes."""

from typing import TYPE_CHECKING, Any

from cyproducer.protocol.tables import NEVER
from cyproducer.protocol.versions import ApiKey
from cyproducer.sender.brokers.broker import Link
from cyproducer.sender.engine.native import Loop

if TYPE_CHECKING:
    from cyproducer.sender.brokers.broker_connections import Brokers

__all__ = ["apply_throttle", "tell_of_throttling"]

#: A longer time than Kafka's quotas demand is logged, and records that expire meanwhile name it.
LONG_MS = 15_000

#: From these versions on a broker responds at once and the client must wait (KIP-219). Before, the broker delays the
#: response itself. Kafka's client does not wait after a response to another request.
THROTTLES_FROM = {
    ApiKey.METADATA: 6,
    ApiKey.FIND_COORDINATOR: 2,
    ApiKey.API_VERSIONS: 2,
    ApiKey.INIT_PRODUCER_ID: 1,
    ApiKey.ADD_PARTITIONS_TO_TXN: 1,
    ApiKey.ADD_OFFSETS_TO_TXN: 1,
    ApiKey.END_TXN: 1,
    ApiKey.TXN_OFFSET_COMMIT: 1,
    ApiKey.OFFSET_FETCH: 4,
    ApiKey.DESCRIBE_CONFIGS: 2,
}


def apply_throttle(loop: Loop, link: Link, api: ApiKey, version: int, body: dict[str, Any]) -> None:
    """Count the throttle time of a response for the metrics, and let the loop wait if the client must."""
    loop.note_throttle(body.get("throttle_time_ms", 0))
    if version >= THROTTLES_FROM.get(api, NEVER):
        loop.throttle(link.index, body["throttle_time_ms"])


def tell_of_throttling(brokers: "Brokers", loop: Loop, link: Link, now_ms: int) -> None:
    """Make it the error of a broker that it throttles this client for long, once for each such time."""
    left_ms = loop.throttled_ms(link.index)
    if left_ms > LONG_MS and now_ms + left_ms > link.throttled_until_ms + LONG_MS:
        link.throttled_until_ms = now_ms + left_ms
        text = (
            f"it throttles this client, and gets no request for {left_ms / 1000:.0f} s; check the quotas of the broker"
        )
        brokers.note_error(link, text)
