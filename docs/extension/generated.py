"""Replaces each line `<!-- generated: NAME -->` of a page with the text of that name: the Sphinx extension."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING

from extension import api, tables

if TYPE_CHECKING:
    from sphinx.application import Sphinx  # the tests of the pages do without it

PLACE = re.compile(r"^<!-- generated: ([a-z-]+) -->$", re.MULTILINE)

TEXTS: dict[str, Callable[[], str]] = {
    "settings": tables.settings,
    "security-settings": tables.security_settings,
    "secret-settings": tables.secret_settings,
    "kafka-settings": tables.kafka_settings,
    "setting-spellings": tables.spellings,
    "librdkafka-settings": tables.librdkafka_settings,
    "confluent-methods": tables.confluent_methods,
    "kafka-python-settings": tables.kafka_python_settings,
    "kafka-python-methods": tables.kafka_python_methods,
    "client-errors": tables.client_errors,
    "broker-errors": lambda: tables.broker_errors("producer"),
    "transaction-errors": lambda: tables.broker_errors("transactions"),
    "other-broker-errors": lambda: tables.broker_errors(""),
    "base-errors": tables.base_errors,
    "error-aliases": tables.error_aliases,
    "commands": tables.commands,
    "metrics": tables.metrics,
    "process-metrics": tables.process_metrics,
    "sender-metrics": tables.sender_metrics,
    "api-versions": tables.api_versions,
    "api-producer": lambda: api.reference(api.PRODUCER),
    "api-futures": lambda: api.reference(api.FUTURES),
    "api-values": lambda: api.reference(api.VALUES),
    "api-operations": lambda: api.reference(api.OPERATIONS),
}


def filled(page: str) -> str:
    """Return a page with the texts in their places. Raise KeyError if it names an unknown text."""
    return PLACE.sub(lambda place: TEXTS[place[1]](), page)


def fill(app: Sphinx, name: str, source: list[str]) -> None:
    """Put the texts into a page before it is parsed."""
    source[0] = filled(source[0])


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the extension; Sphinx calls this function."""
    app.connect("source-read", fill)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
