"""Tests that the status of senders of other versions, which count other sensors, becomes metrics of this version."""

from typing import Any

import pytest

from cyproducer import metric_table
from cyproducer.observe import status as module

READING = (7, 7, 7, 7, 7, 1_000_000_000)


def counts(sensors_more: int) -> metric_table.Counts:
    """Return the counts of a sender whose rows have so many sensors more than those of this version."""

    def row(sensors: tuple[str, ...]) -> list[metric_table.Reading]:
        return [READING] * (len(sensors) + sensors_more)

    found = metric_table.nothing()
    found.update(client=row(metric_table.CLIENT), own=row(metric_table.OWN), network=row(metric_table.NETWORK))
    found.update(nodes={"node-1": row(metric_table.NODE)}, topics={"t": row(metric_table.TOPIC)})
    return found


def shown(monkeypatch: pytest.MonkeyPatch, *of_senders: metric_table.Counts | None) -> list[dict[str, Any]]:
    answers = {f"/run/{at}": {"socket": f"/run/{at}", "counts": each} for at, each in enumerate(of_senders)}
    monkeypatch.setattr(module, "senders", lambda: list(answers))
    monkeypatch.setattr(module, "request_document", lambda path, *_: dict(answers[path]))
    return module.status()


def test_an_older_sender_has_counted_nothing_of_later_sensors(monkeypatch: pytest.MonkeyPatch) -> None:
    (older,) = shown(monkeypatch, counts(-1))
    producer = older["metrics"]["producer-metrics"]
    assert (producer["record-send-total"], producer["batch-split-total"]) == (7, 0)
    assert older["metrics"]["producer-node-metrics.node-1"]["request-latency-avg"] is None
    assert older["metrics"]["producer-topic-metrics.t"]["record-error-total"] == 0
    assert older["metrics"]["producer-topic-metrics.t"]["record-send-total"] == 7


def test_senders_of_three_versions_have_metrics_together(monkeypatch: pytest.MonkeyPatch) -> None:
    found = shown(monkeypatch, counts(-1), counts(0), counts(1))
    assert [each["metrics"]["producer-metrics"]["batch-split-total"] for each in found] == [0, 7, 7]
    for each in found:
        assert each["host_metrics"]["record-send-total"] == 21
        assert each["host_metrics"]["batch-split-total"] == 14


def test_a_sender_without_counts_has_zeros(monkeypatch: pytest.MonkeyPatch) -> None:
    found = shown(monkeypatch, counts(0), None)
    assert [each["metrics"]["producer-metrics"]["record-send-total"] for each in found] == [7, 0]
