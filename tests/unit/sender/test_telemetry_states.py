"""Tests when a subscription is requested and when metrics are pushed, against the rules of Kafka's client."""

import uuid
from typing import Any

import pytest

from cyproducer.protocol.fields import ZERO_UUID
from cyproducer.sender.telemetry.states import ClientTelemetry, State

ID = uuid.uuid4()
INTERVAL_MS, DEFAULT_MS, NOW = 10_000, 300_000, 1_000_000
AT_ONCE, LATER, NEVER = (117, 76), (118, 89), (42, 87, 35, 29, -1)


def answer(code: int = 0, identity: uuid.UUID = ID, interval_ms: int = INTERVAL_MS, **changes: Any) -> dict[str, Any]:
    return {
        "error_code": code, "client_instance_id": identity, "subscription_id": 7,
        "accepted_compression_types": [4, 0], "push_interval_ms": interval_ms, "telemetry_max_bytes": 1000,
        "delta_temporality": False, "requested_metrics": ["*"], **changes,
    }  # fmt: skip


def subscribed(drawn: float = 1.0, **changes: Any) -> ClientTelemetry:
    found = ClientTelemetry(draw=lambda low, high: drawn)
    assert found.due_ms(NOW) == 0
    found.begin()
    assert found.due_ms(NOW) is None
    found.on_subscription(answer(**changes), NOW)
    return found


def pushing() -> ClientTelemetry:
    found = subscribed()
    found.begin()
    assert found.state is State.PUSH_IN_PROGRESS
    return found


@pytest.mark.parametrize("drawn", [0.5, 0.8, 1.5])
def test_the_first_push_comes_after_a_drawn_part_of_the_interval_and_later_ones_after_the_interval(
    drawn: float,
) -> None:
    telemetry = subscribed(drawn)
    assert telemetry.due_ms(NOW) == INTERVAL_MS * drawn
    telemetry.begin()
    telemetry.on_pushed(0, NOW + 20_000)
    assert telemetry.state is State.PUSH_NEEDED
    assert telemetry.due_ms(NOW + 20_000) == INTERVAL_MS
    assert telemetry.due_ms(NOW + 29_999) == 1
    assert telemetry.due_ms(NOW + 50_000) == 0


def test_the_number_is_drawn_from_kafkas_range() -> None:
    ranges = []
    telemetry = ClientTelemetry(draw=lambda low, high: ranges.append((low, high)) or 1.0)
    telemetry.begin()
    telemetry.on_subscription(answer(), NOW)
    assert ranges == [(0.5, 1.5)]


def test_without_metrics_the_subscription_is_requested_again_after_the_interval_itself() -> None:
    telemetry = subscribed(0.5, requested_metrics=[])
    assert telemetry.state is State.SUBSCRIPTION_NEEDED
    assert telemetry.due_ms(NOW) == INTERVAL_MS


@pytest.mark.parametrize("interval_ms", [0, -1])
def test_an_invalid_interval_is_replaced(interval_ms: int) -> None:
    assert subscribed(interval_ms=interval_ms).due_ms(NOW) == DEFAULT_MS


def test_an_id_is_kept_if_a_response_does_not_repeat_it() -> None:
    telemetry = pushing()
    telemetry.on_pushed(117, NOW)
    telemetry.begin()
    telemetry.on_subscription(answer(identity=ZERO_UUID), NOW)
    assert telemetry.subscription is not None and telemetry.subscription.client_instance_id == ID
    assert not subscribed(identity=ZERO_UUID).enabled


@pytest.mark.parametrize(("codes", "pause_ms"), [(AT_ONCE, 0), (LATER, INTERVAL_MS)])
def test_errors_of_a_push_after_which_the_subscription_is_requested(codes: tuple[int, ...], pause_ms: int) -> None:
    for code in codes:
        telemetry = pushing()
        telemetry.on_pushed(code, NOW)
        assert telemetry.state is State.SUBSCRIPTION_NEEDED
        assert telemetry.due_ms(NOW) == pause_ms


@pytest.mark.parametrize(("codes", "pause_ms"), [(AT_ONCE, 1000), (LATER, DEFAULT_MS)])
def test_errors_of_the_first_subscription_request(codes: tuple[int, ...], pause_ms: int) -> None:
    for code in codes:
        telemetry = subscribed(code=code)
        assert telemetry.state is State.SUBSCRIPTION_NEEDED
        assert telemetry.subscription is None
        assert telemetry.due_ms(NOW) == pause_ms


@pytest.mark.parametrize("code", NEVER)
def test_all_other_errors_end_the_push(code: int) -> None:
    telemetry = pushing()
    telemetry.on_pushed(code, NOW)
    for ended in (telemetry, subscribed(code=code)):
        assert not ended.enabled
        assert ended.due_ms(NOW + 10 * DEFAULT_MS) is None


def test_a_lost_request_is_followed_by_another_one_after_five_minutes() -> None:
    asking = ClientTelemetry()
    asking.begin()
    for telemetry in (asking, pushing()):
        telemetry.on_lost(NOW)
        assert telemetry.state is State.SUBSCRIPTION_NEEDED
        assert telemetry.due_ms(NOW) == DEFAULT_MS


def test_a_request_on_a_connection_that_this_sender_closes_is_made_again_at_once() -> None:
    telemetry = pushing()
    telemetry.on_lost(NOW, at_once=True)
    assert telemetry.state is State.SUBSCRIPTION_NEEDED
    assert telemetry.due_ms(NOW) == 0


def test_a_closed_connection_without_a_request_changes_nothing() -> None:
    telemetry = subscribed()
    telemetry.on_lost(NOW)
    assert telemetry.state is State.PUSH_NEEDED


def test_a_push_that_cannot_be_sent_is_due_at_once_and_one_that_cannot_be_made_after_the_interval() -> None:
    telemetry = pushing()
    telemetry.push_again()
    assert telemetry.state is State.PUSH_NEEDED
    assert telemetry.due_ms(NOW + INTERVAL_MS) == 0
    telemetry = pushing()
    telemetry.on_not_made(NOW)
    assert telemetry.state is State.PUSH_NEEDED
    assert telemetry.due_ms(NOW) == INTERVAL_MS


def test_the_last_push_is_due_at_once_and_nothing_follows_it() -> None:
    for code in (0, 117, 42):
        telemetry = subscribed()
        telemetry.terminate()
        telemetry.terminate()
        assert telemetry.terminating
        assert telemetry.due_ms(NOW) == 0
        telemetry.begin()
        assert telemetry.state is State.TERMINATING_PUSH_IN_PROGRESS
        telemetry.on_pushed(code, NOW)
        assert telemetry.state is State.TERMINATED
        assert telemetry.due_ms(NOW + DEFAULT_MS) is None


def test_the_last_push_is_not_tried_again() -> None:
    for fail in (ClientTelemetry.push_again, lambda it: it.on_lost(NOW), lambda it: it.on_not_made(NOW)):
        telemetry = subscribed()
        telemetry.terminate()
        telemetry.begin()
        fail(telemetry)
        assert telemetry.state is State.TERMINATED


def test_a_response_that_comes_after_the_end_has_begun_changes_nothing() -> None:
    telemetry = pushing()
    telemetry.terminate()
    telemetry.on_pushed(42, NOW)
    assert telemetry.enabled and telemetry.state is State.TERMINATING_PUSH_NEEDED
    asking = pushing()
    asking.on_pushed(117, NOW)
    asking.begin()
    asking.terminate()
    asking.on_subscription(answer(subscription_id=8), NOW)
    assert asking.subscription is not None and asking.subscription.subscription_id == 7
    assert asking.state is State.TERMINATING_PUSH_NEEDED


def test_without_a_subscription_with_metrics_there_is_no_last_push() -> None:
    first = ClientTelemetry()
    asking = ClientTelemetry()
    asking.begin()
    nothing = subscribed(requested_metrics=[])
    nothing_asked = subscribed(requested_metrics=[])
    nothing_asked.begin()
    refused = pushing()
    refused.on_pushed(42, NOW)
    for telemetry in (first, asking, nothing, nothing_asked, refused):
        telemetry.terminate()
        assert telemetry.state is State.TERMINATED
