"""Tests which ends of a connection with TLS count as failed authentication."""

import logging
import ssl
from types import SimpleNamespace
from typing import Any

import pytest

from cyproducer.sender.brokers.broker import Link
from cyproducer.sender.brokers.connection_setup import ConnectionSetup
from cyproducer.sender.engine.events import CloseReason

REFUSED = ssl.SSLError(1, "tlsv13 alert certificate required")
REFUSED.reason = "TLSV13_ALERT_CERTIFICATE_REQUIRED"
ENDED = ssl.SSLEOFError(8, "EOF occurred in violation of protocol")


@pytest.mark.parametrize(
    ("reason", "error", "negotiated", "counts"),
    [
        (CloseReason.TLS, REFUSED, {}, True),
        (CloseReason.TLS, ENDED, {}, False),
        (CloseReason.BY_PEER, None, {}, False),
        (CloseReason.TLS, REFUSED, {0: 9}, False),
    ],
    ids=["refused", "ended by the broker", "closed by the broker", "in use"],
)
def test_only_a_refusal_before_the_first_answer_counts(
    reason: int, error: Exception | None, negotiated: dict[int, int], counts: bool
) -> None:
    """An error of a connection that the broker has accepted says nothing about the credentials."""
    counted: list[dict[str, Any]] = []
    connections = SimpleNamespace(count_authentication=lambda **what: counted.append(what))
    brokers: Any = SimpleNamespace(log=logging.getLogger("test"))
    setup = ConnectionSetup(brokers, connections, {"security_protocol": "SSL"})
    link = Link(0, 1, "localhost", 9093)
    link.tls, link.negotiated = SimpleNamespace(error=error), negotiated
    setup.describe_end(link, reason)
    setup.on_closed(link, reason)
    assert link.auth_failed == counts
    assert counted == [{"failed": True, "again": False}] * counts
