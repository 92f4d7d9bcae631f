"""Answers the requests of KIP-714 for a stand-in of a broker."""

import uuid
from collections import deque
from collections.abc import Iterable
from typing import Any

from kfake.codes import PUSH

GZIP, SNAPPY, LZ4, ZSTD = range(1, 5)
ALL = ["*"]
CLOSE = -1000  # instead of an error code: the connection ends without a response
MALFORMED = -1001  # a response that cannot be decoded


class Telemetry:
    """A subscription. `asked` and `pushed` have the requests, each with the node that got it.

    `codes` and `push_codes`: the error codes of the next responses; an empty queue means success.
    """

    def __init__(
        self,
        metrics: list[str] | None = None,
        interval_ms: int = 20,
        *,
        codes: Iterable[int] = (),
        push_codes: Iterable[int] = (),
        **changes: Any,
    ) -> None:
        """Make a subscription. `changes`: values of the attributes from `accepted` to `holds_pushes`."""
        self.metrics = ALL if metrics is None else metrics
        self.interval_ms = interval_ms
        self.accepted = [ZSTD, LZ4, GZIP, SNAPPY]
        self.delta = False
        self.max_bytes = 1 << 20
        self.subscription_id = 17
        self.nodes: set[int] | None = None  # those that support the requests; None: all
        self.repeats_id = True  # the response repeats the id that a request has
        self.codes = deque(codes)
        self.push_codes = deque(push_codes)
        self.holds_pushes = False  # pushes get no response
        for name, value in changes.items():
            assert hasattr(self, name), name
            setattr(self, name, value)
        self.asked: list[tuple[int, uuid.UUID]] = []
        self.pushed: list[tuple[int, dict[str, Any]]] = []

    def supports(self, node: int) -> bool:
        return self.nodes is None or node in self.nodes

    def answer(self, api: int, node: int, body: dict[str, Any]) -> dict[str, Any] | int | None:
        """Return the body of the response, or CLOSE or MALFORMED; None: there is no response."""
        if api == PUSH:
            self.pushed.append((node, body))
            code = self.push_codes.popleft() if self.push_codes else 0
            if self.holds_pushes:
                return None
            return code if code <= CLOSE else {"error_code": code}
        asked = body["client_instance_id"]
        self.asked.append((node, asked))
        code = self.codes.popleft() if self.codes else 0
        if code <= CLOSE:
            return code
        return {
            "error_code": code,
            "client_instance_id": uuid.uuid4() if asked.int == 0 else asked if self.repeats_id else uuid.UUID(int=0),
            "subscription_id": self.subscription_id,
            "accepted_compression_types": self.accepted,
            "push_interval_ms": self.interval_ms,
            "telemetry_max_bytes": self.max_bytes,
            "delta_temporality": self.delta,
            "requested_metrics": [] if code else self.metrics,
        }
