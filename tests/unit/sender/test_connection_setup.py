"""Tests which ends of a connection with TLS count as failed authentication."""

import logging
import ssl
from types import SimpleNamespace
from typing import Any

import pytest

from cyproducer.config.settings import Settings
from cyproducer.sender.cluster.broker import Backoffs, Broker
from cyproducer.sender.cluster.cluster_metadata import ClusterMetadata
from cyproducer.sender.cluster.connection import Connection, Setup, State
from cyproducer.sender.cluster.finalized_features import FinalizedFeatures
from cyproducer.sender.cluster.report import Report
from cyproducer.sender.engine.events import CloseReason
from cyproducer.sender.system.helper import Helper
from cyproducer.sender.system.tasks import Tasks

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
    nodes: Any = SimpleNamespace(
        count_authentication=lambda **what: counted.append(what), set_error=lambda *error: None, answers=lambda node: 0
    )
    loop: Any = SimpleNamespace(connection_state=lambda node: ("closed", 0))
    settings = Settings.parse(bootstrap_servers="localhost:9093", security_protocol="SSL").sender_settings()
    log, cluster = logging.getLogger("test"), ClusterMetadata([("localhost", 9093)])
    tasks = Tasks(0, log)
    setup = Setup(settings, SimpleNamespace(present="c"), Helper(dict), tasks, log)
    broker = Broker(1, "localhost", 9093, Backoffs.of(settings))
    connection = Connection(broker, 0, loop, nodes, tasks, setup, cluster, FinalizedFeatures(), Report(cluster))
    connection._state, connection._versions = State.SASL, negotiated
    connection._tls = SimpleNamespace(error=error)  # type: ignore[assignment]
    connection.on_closed(reason, 0)
    assert broker.auth_failed == counts
    assert counted == [{"failed": True, "again": False}] * counts
    assert connection.state is State.CLOSED
    setup.helper.close()
