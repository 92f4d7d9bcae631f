"""Tests the payload of a push: sums without what was counted before, and its limit in bytes."""

import math
from typing import Any

import pytest
from support.otlp_payload import CUMULATIVE, DELTA, Payload, decompressed

from cyproducer import metric_table
from cyproducer.sender.telemetry.otlp import Request, payload

SECOND = 1_000_000_000
START, PRESENT = 1_700_000_000 * SECOND, 1_700_000_060 * SECOND


def reading(total: int) -> tuple[int, ...]:
    return (total, total, total, 1, total, SECOND)


def counts(total: int, topics: int = 1, nodes: int = 1) -> metric_table.Counts:
    found = metric_table.nothing()
    found["client"] = [reading(total)] * len(metric_table.CLIENT)
    found["errors"] = reading(total)
    found["topics"] = {f"topic-{number}": [reading(total)] * len(metric_table.TOPIC) for number in range(topics)}
    found["nodes"] = {f"node-{number}": [reading(total)] * len(metric_table.NODE) for number in range(nodes)}
    return found


def request(now: metric_table.Counts, **changes: Any) -> Request:
    whole = Request(now, None, False, START, PRESENT, ["*"], [], 1 << 20, "")
    return whole._replace(**changes)


def decoded(wanted: Request) -> Payload:
    return Payload(decompressed(*payload(wanted)))


def test_names_values_and_attributes() -> None:
    found = decoded(request(counts(5, topics=2, nodes=2)))
    groups = metric_table.groups(counts(5, topics=2, nodes=2))
    expected = {}
    for group, values in groups.items():
        prefix, _, member = group.partition(".")
        middle = {"producer-metrics": "", "producer-node-metrics": "node.", "producer-topic-metrics": "topic."}[prefix]
        key = {"": (), "node.": (("node_id", member),), "topic.": (("topic", member),)}[middle]
        for name, value in values.items():
            if not math.isnan(value):
                expected["org.apache.kafka.producer." + middle + name.replace("-", "."), key] = value
    assert found.values == expected
    assert found.resource == {}
    assert set(found.times.values()) == {(START, PRESENT)}
    assert found.temporalities == {CUMULATIVE}


@pytest.mark.parametrize("delta", [False, True])
def test_sums_do_not_contain_what_was_counted_before(delta: bool) -> None:
    found = decoded(request(counts(5, topics=2), since=counts(3), delta=delta))
    assert found.temporalities == {DELTA if delta else CUMULATIVE}
    assert found.value("record.send.total") == 2
    assert found.value("topic.record.send.total", topic="topic-0") == 2
    assert found.value("topic.record.send.total", topic="topic-1") == 5  # it was not known before
    assert found.value("batch.size.max") == 5
    assert found.value("flush.time.ns.total") == 0


def test_a_total_that_has_fallen_gives_no_negative_sum() -> None:
    """A front-end writes some of the counts itself, so that they can have any value."""
    assert decoded(request(counts(3), since=counts(5))).value("record.send.total") == 0


def test_a_payload_that_is_too_large_has_no_topics_and_then_no_nodes() -> None:
    many = counts(5, topics=300, nodes=300)
    whole = len(payload(request(many))[1])
    without_topics = len(payload(request(counts(5, topics=0, nodes=300)))[1])
    for limit, topics, nodes in ((whole, 300, 300), (whole - 1, 0, 300), (without_topics - 1, 0, 0), (1, 0, 0)):
        found = decoded(request(many, max_bytes=limit))
        assert len({key for _, key in found.values if key and key[0][0] == "topic"}) == topics
        assert len({key for _, key in found.values if key and key[0][0] == "node_id"}) == nodes
        assert found.value("record.send.total") == 5
    assert len(decoded(request(many, max_bytes=0)).values) > 6000
    smaller = len(payload(request(many, accepted=[4]))[1])
    assert len(decoded(request(many, accepted=[4], max_bytes=smaller)).values) > 6000


def test_no_metric_is_selected() -> None:
    assert decoded(request(counts(5), prefixes=["x"])).values == {}
