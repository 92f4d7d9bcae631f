"""Tests the push of metrics (KIP-714) against a scripted broker: what is asked, what is pushed, and each error."""

import itertools
import logging
import os
import sys
import uuid
from collections.abc import Callable, Iterator

import psutil
import pytest
from kfake.scripted_broker import ScriptedBroker
from kfake.telemetry import CLOSE, MALFORMED, Telemetry
from support.fault_rig import Rig
from support.front_end import run_until
from support.otlp_payload import CUMULATIVE, DELTA, Payload, payloads
from support.process import kill9, name_of

from cyproducer.codes import (
    INVALID_REQUEST,
    TELEMETRY_TOO_LARGE,
    THROTTLING_QUOTA_EXCEEDED,
    UNKNOWN_SUBSCRIPTION_ID,
    UNSUPPORTED_COMPRESSION_TYPE,
)
from cyproducer.sender.telemetry.states import DEFAULT_PUSH_INTERVAL_MS, State

LONG_MS = 600_000
SENT = "record.send.total"

Start = Callable[..., tuple[Rig, Telemetry]]


@pytest.fixture
def start() -> Iterator[Start]:
    """Return ``start(telemetry, **settings) -> (rig, telemetry)``: an engine that has delivered one batch."""
    ends = []

    def start(telemetry: Telemetry | None = None, nodes: int = 1, partitions: int = 1, **settings):
        telemetry = telemetry or Telemetry()
        broker = ScriptedBroker(partitions=partitions, nodes=nodes)
        broker.telemetry = telemetry
        broker.__enter__()
        rig = Rig(broker, **{"request_timeout_ms": 10_000, **settings})
        ends.append((rig, broker))
        rig.engine._telemetry._next_check_ms = 1 << 60  # the requests begin behind the first batch
        rig.attach()
        deliver(rig, partitions)
        rig.engine._telemetry._next_check_ms = 0
        return rig, telemetry

    yield start
    for rig, broker in ends:
        rig.close()
        broker.__exit__()
        assert broker.complaints == []


def deliver(rig: Rig, partitions: int = 1) -> None:
    for partition in range(partitions):
        rig.send(0, partition, records=3)
    rig.settle()


def pump(rig: Rig, iterations: int = 30) -> None:
    for _ in range(iterations):
        rig.engine.run(5)


def helpers() -> list[int]:
    return [child.pid for child in psutil.Process().children() if name_of(child) == "cyp-helper"]


def states(rig: Rig):
    return rig.engine._telemetry._telemetry


def due_ms(rig: Rig) -> float | None:
    """Return the pause before the next request, from the last response on."""
    return states(rig)._pause_ms if states(rig).enabled else None


def pushed(rig: Rig, telemetry: Telemetry, count: int) -> list[Payload]:
    """Return the first `count` payloads, or more."""
    run_until(rig.engine, lambda: len(telemetry.pushed) >= count, 20)
    return payloads(telemetry)


def asked(rig: Rig, telemetry: Telemetry, count: int) -> None:
    run_until(rig.engine, lambda: len(telemetry.asked) >= count)


def test_an_id_is_requested_once_and_metrics_are_pushed_with_it_again_and_again(start: Start) -> None:
    rig, telemetry = start()
    while len(telemetry.pushed) < 3:
        assert rig.engine.run(10) == []  # no descriptor of the engine itself
    first = payloads(telemetry)[0]
    assert [asked for _, asked in telemetry.asked] == [uuid.UUID(int=0)]
    assert {(body["subscription_id"], body["terminating"]) for _, body in telemetry.pushed} == {(17, False)}
    identity = {str(body["client_instance_id"]) for _, body in telemetry.pushed}
    assert identity == {rig.engine.client_instance_id()}
    assert first.value(SENT) == 3
    assert first.value("topic.record.send.total", topic=rig.broker.topic) == 3
    assert first.temporalities == {CUMULATIVE}


def test_the_names_are_those_of_kip_714(start: Start) -> None:
    rig, telemetry = start()
    found = pushed(rig, telemetry, 1)[0]
    required = {
        "connection.creation.rate", "connection.creation.total", "produce.throttle.time.avg",
        "produce.throttle.time.max", "record.queue.time.avg", "record.queue.time.max",
    }  # fmt: skip
    assert {"org.apache.kafka.producer." + name for name in required} <= found.names()
    for which in ("avg", "max"):
        assert found.value(f"node.request.latency.{which}", node_id="node-1") > 0
    assert found.sums == {name for name in found.names() if name.endswith(".total")}
    # sparse: this producer does not authenticate, so that the latency has no value
    assert "org.apache.kafka.producer.reauthentication.latency.avg" not in found.names()


def test_values_are_those_of_the_status(start: Start) -> None:
    from cyproducer import metric_table

    rig, telemetry = start(Telemetry(["org.apache.kafka.producer.record.", "org.apache.kafka.producer.batch."]))
    found = pushed(rig, telemetry, 1)[0]
    group = metric_table.groups(rig.engine.stats()["counts"])["producer-metrics"]
    expected = {"org.apache.kafka.producer." + name.replace("-", "."): value for name, value in group.items()}
    totals = {name for name in found.names() if name.endswith((".total", ".max", ".avg"))}
    assert len(totals) > 8
    assert {name: found.values[name, ()] for name in totals} == {name: expected[name] for name in totals}


@pytest.mark.parametrize(
    ("metrics", "has", "lacks"),
    [
        (["*"], "record.send.total", ""),
        ([""], "record.send.total", ""),
        (["org.apache.kafka.producer.topic."], "topic.record.send.total", "record.send.total"),
        (
            ["org.apache.kafka.producer.batch.size", "org.apache.kafka.producer.sel"],
            "select.total",
            "batch.split.total",
        ),
        (["record.send.total"], "", "record.send.total"),
        (["*", "org.apache.kafka.producer.batch.split"], "batch.split.total", "record.send.total"),
    ],
)
def test_requested_metrics_are_prefixes_of_names(start: Start, metrics: list[str], has: str, lacks: str) -> None:
    rig, telemetry = start(Telemetry(metrics))
    names = pushed(rig, telemetry, 1)[0].names()
    assert not has or "org.apache.kafka.producer." + has in names
    assert not lacks or "org.apache.kafka.producer." + lacks not in names


@pytest.mark.parametrize("accepted", [[1], [2], [3], [4], [0, 4], [], [9, -3, 2], [3, 4]])
def test_the_codec_is_the_first_one_of_the_broker_that_is_known(start: Start, accepted: list[int]) -> None:
    rig, telemetry = start(Telemetry(accepted=accepted))
    assert pushed(rig, telemetry, 1)[0].value(SENT) == 3
    assert telemetry.pushed[0][1]["compression_type"] == ([code for code in accepted if 0 <= code <= 4] or [0])[0]


def test_a_list_without_metrics_is_asked_for_again_and_nothing_is_pushed(start: Start) -> None:
    rig, telemetry = start(Telemetry([]))
    asked(rig, telemetry, 3)
    assert telemetry.asked[1][1] == telemetry.asked[2][1] == uuid.UUID(rig.engine.client_instance_id())
    assert telemetry.pushed == []
    assert helpers() == []
    telemetry.metrics = ["*"]
    pushed(rig, telemetry, 1)
    assert len(helpers()) == 1
    telemetry.metrics = []
    telemetry.push_codes.append(UNKNOWN_SUBSCRIPTION_ID)
    run_until(rig.engine, lambda: states(rig).subscription.prefixes == ())
    count = len(telemetry.pushed)
    pump(rig)
    assert len(telemetry.pushed) == count


def test_without_a_subscription_the_pause_is_the_interval(start: Start) -> None:
    rig, telemetry = start(Telemetry([], interval_ms=LONG_MS))
    asked(rig, telemetry, 1)
    run_until(rig.engine, lambda: states(rig).subscription is not None)
    assert due_ms(rig) == LONG_MS


@pytest.mark.parametrize("code", [UNKNOWN_SUBSCRIPTION_ID, UNSUPPORTED_COMPRESSION_TYPE])
def test_after_these_errors_of_a_push_the_subscription_is_requested_at_once(start: Start, code: int) -> None:
    rig, telemetry = start(Telemetry(push_codes=[code]))
    run_until(rig.engine, lambda: bool(telemetry.pushed))
    telemetry.interval_ms, telemetry.subscription_id = LONG_MS, 18
    asked(rig, telemetry, 2)
    assert telemetry.asked[1][1] == telemetry.pushed[0][1]["client_instance_id"]
    run_until(rig.engine, lambda: states(rig).subscription.subscription_id == 18)


@pytest.mark.parametrize("code", [TELEMETRY_TOO_LARGE, THROTTLING_QUOTA_EXCEEDED])
def test_after_these_errors_the_subscription_is_requested_after_the_interval(
    start: Start, code: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    rig, telemetry = start(Telemetry(interval_ms=300, push_codes=[code]))
    pushed(rig, telemetry, 1)
    run_until(rig.engine, lambda: states(rig).state is State.SUBSCRIPTION_NEEDED)
    assert due_ms(rig) == 300
    pushed(rig, telemetry, 2)
    assert len(telemetry.asked) == 2
    assert len([record for record in caplog.records if "metrics were not pushed" in record.message]) == 1


@pytest.mark.parametrize("request_of", ["codes", "push_codes"], ids=["subscription", "push"])
def test_another_error_ends_the_push(start: Start, caplog: pytest.LogCaptureFixture, request_of: str) -> None:
    """tests/unit/sender/test_telemetry_states.py has the other codes."""
    rig, telemetry = start(Telemetry(**{request_of: [INVALID_REQUEST]}))
    run_until(rig.engine, lambda: not states(rig).enabled)
    pump(rig)
    assert (len(telemetry.asked), len(telemetry.pushed)) == (1, int(request_of == "push_codes"))
    assert len([record for record in caplog.records if "metrics are not pushed" in record.message]) == 1
    deliver(rig)
    rig.check()


@pytest.mark.parametrize("request_of", ["codes", "push_codes"], ids=["subscription", "push"])
def test_a_broker_that_ends_the_connection_is_not_asked_again_soon(start: Start, request_of: str) -> None:
    rig, telemetry = start(Telemetry(**{request_of: [CLOSE]}))
    run_until(rig.engine, lambda: due_ms(rig) == DEFAULT_PUSH_INTERVAL_MS)
    assert states(rig).state is State.SUBSCRIPTION_NEEDED
    deliver(rig)
    rig.check()
    assert (len(telemetry.asked), len(telemetry.pushed)) == (1, int(request_of == "push_codes"))


@pytest.mark.parametrize("request_of", ["codes", "push_codes"], ids=["subscription", "push"])
def test_an_invalid_response_ends_the_push_but_not_the_connection(start: Start, request_of: str) -> None:
    rig, _ = start(Telemetry(**{request_of: [MALFORMED]}))
    run_until(rig.engine, lambda: not states(rig).enabled)
    deliver(rig)
    rig.check()
    assert rig.broker.accepted == 1


def test_a_response_without_an_id_ends_the_push(start: Start, caplog: pytest.LogCaptureFixture) -> None:
    rig, telemetry = start(Telemetry(repeats_id=False, push_codes=[UNKNOWN_SUBSCRIPTION_ID]))
    pushed(rig, telemetry, 2)  # the id that the sender has stays valid
    assert len({body["client_instance_id"] for _, body in telemetry.pushed}) == 1
    nothing = Telemetry()
    nothing.answer = lambda api, node, body: {  # type: ignore[method-assign]
        **Telemetry.answer(nothing, api, node, body), "client_instance_id": uuid.UUID(int=0)
    }  # fmt: skip
    rig, _ = start(nothing)
    run_until(rig.engine, lambda: not states(rig).enabled)
    assert "has assigned no client instance id" in caplog.text


def test_brokers_without_the_requests_get_none(start: Start) -> None:
    rig, telemetry = start(Telemetry(nodes=set()), nodes=2, partitions=2)
    pump(rig)
    assert telemetry.asked == []
    rig.check()


def test_one_broker_that_has_the_requests_gets_them(start: Start) -> None:
    rig, telemetry = start(Telemetry(nodes={2}), nodes=2, partitions=2)
    pushed(rig, telemetry, 2)
    assert {node for node, _ in [*telemetry.asked, *telemetry.pushed]} == {2}


def test_requests_go_to_the_same_broker(start: Start) -> None:
    rig, telemetry = start(nodes=2, partitions=2)
    pushed(rig, telemetry, 8)
    assert len({node for node, _ in [*telemetry.asked, *telemetry.pushed]}) == 1


def test_the_setting_turns_it_off(start: Start) -> None:
    rig, telemetry = start(enable_metrics_push=False)
    pump(rig)
    assert rig.engine.client_instance_id() is None
    assert not rig.engine.pushes_metrics()
    pump(rig)
    assert telemetry.asked == []
    assert rig.engine.end_metrics_push()


def test_no_connection_is_made_to_ask_but_for_a_process_that_wants_the_id() -> None:
    telemetry = Telemetry([])
    with ScriptedBroker() as broker, Rig(broker, request_timeout_ms=10_000) as rig:
        broker.telemetry = telemetry
        pump(rig)
        assert broker.accepted == 0
        assert rig.engine.client_instance_id() is None
        run_until(rig.engine, lambda: rig.engine.client_instance_id() is not None)
        assert len(telemetry.asked) == 1


def test_a_closed_connection_is_made_again_for_a_push(start: Start) -> None:
    rig, telemetry = start(Telemetry(interval_ms=1000))
    run_until(rig.engine, lambda: states(rig).state is State.PUSH_NEEDED)
    connections = rig.engine._connections
    connections._max_idle_ms = -1  # the connection is idle, so that nothing else needs it again
    run_until(rig.engine, lambda: all(each.is_closed for each in connections))
    connections._max_idle_ms = LONG_MS
    pushed(rig, telemetry, 1)
    assert (len(telemetry.asked), rig.broker.accepted) == (1, 2)


def test_without_the_library_one_line_is_logged_and_records_are_sent(
    start: Start, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry", None)  # the helper process is forked with this
    monkeypatch.delitem(sys.modules, "opentelemetry.proto.metrics.v1", raising=False)
    monkeypatch.delitem(sys.modules, "opentelemetry.proto.metrics", raising=False)
    monkeypatch.delitem(sys.modules, "opentelemetry.proto", raising=False)
    rig, telemetry = start(Telemetry(interval_ms=LONG_MS))  # it is known before the first push is due
    run_until(rig.engine, lambda: not states(rig).enabled)
    pump(rig)
    assert telemetry.pushed == []
    lines = [record.message for record in caplog.records if "opentelemetry-proto" in record.message]
    assert len(lines) == 1 and "pip install 'cyproducer[telemetry]'" in lines[0]
    assert rig.engine.client_instance_id() is not None
    deliver(rig)
    rig.check()


def test_a_helper_process_that_ends_is_followed_by_another_one(start: Start) -> None:
    rig, telemetry = start()
    pushed(rig, telemetry, 1)
    (before,) = helpers()
    kill9(before)
    count = len(telemetry.pushed)
    pushed(rig, telemetry, count + 2)
    assert helpers() != [before]


def test_the_helper_process_ends_with_the_engine() -> None:
    telemetry = Telemetry()
    with ScriptedBroker() as broker:
        broker.telemetry = telemetry
        before = len(os.listdir("/proc/self/fd"))
        with Rig(broker, request_timeout_ms=10_000) as rig:
            rig.attach()
            deliver(rig)
            pushed(rig, telemetry, 1)
            (pid,) = helpers()
        assert not psutil.pid_exists(pid)
        with broker.lock:
            connections = len(broker._connections)
        assert len(os.listdir("/proc/self/fd")) <= before + connections


def test_deltas_add_up_to_the_totals(start: Start) -> None:
    rig, telemetry = start(Telemetry(delta=True))
    for round_number in range(1, 6):
        deliver(rig)
        pushed(rig, telemetry, round_number)
    deliver(rig)
    pushed(rig, telemetry, len(telemetry.pushed) + 2)
    found = payloads(telemetry)
    assert {temporality for each in found for temporality in each.temporalities} == {DELTA}
    assert sum(each.value(SENT) for each in found) == 3 * 7
    name = "org.apache.kafka.producer." + SENT
    times = [each.times[name, ()] for each in found]
    assert all(before[1] == after[0] for before, after in itertools.pairwise(times))


def test_a_delta_that_a_broker_has_refused_is_in_the_next_one(start: Start) -> None:
    rig, telemetry = start(Telemetry(delta=True, push_codes=[TELEMETRY_TOO_LARGE, UNKNOWN_SUBSCRIPTION_ID]))
    found = pushed(rig, telemetry, 4)
    assert [each.value(SENT) for each in found[:4]] == [3, 3, 3, 0]


def test_a_delta_without_a_response_is_not_pushed_twice(start: Start) -> None:
    """The broker may have taken it."""
    rig, telemetry = start(Telemetry(delta=True, push_codes=[CLOSE]))
    run_until(rig.engine, lambda: due_ms(rig) == DEFAULT_PUSH_INTERVAL_MS)
    states(rig)._pause_ms = 0
    found = pushed(rig, telemetry, 2)
    assert [each.value(SENT) for each in found] == [3, 0]


def test_after_a_change_of_the_temporality_the_first_delta_has_everything(start: Start) -> None:
    rig, telemetry = start()
    pushed(rig, telemetry, 2)
    telemetry.delta = True
    telemetry.push_codes.append(UNKNOWN_SUBSCRIPTION_ID)
    run_until(rig.engine, lambda: payloads(telemetry)[-1].temporalities == {DELTA})
    first = next(each for each in payloads(telemetry) if each.temporalities == {DELTA})
    assert first.value(SENT) == 3


def test_counts_of_a_predecessor_are_not_pushed_again(start: Start) -> None:
    """The sums of a successor begin with it, since its predecessor may have pushed what it has counted."""
    for delta in (False, True):
        rig, telemetry = start(Telemetry(delta=delta))
        rig.engine._telemetry.measure(rig.engine._front_ends.counts, True)
        first = pushed(rig, telemetry, 1)[0]
        assert first.value(SENT) == first.value("topic.record.send.total", topic=rig.broker.topic) == 0
        deliver(rig)
        pushed(rig, telemetry, len(telemetry.pushed) + 2)
        found = payloads(telemetry)
        assert (sum(each.value(SENT) for each in found) if delta else found[-1].value(SENT)) == 3


def test_the_rack_is_an_attribute_of_the_resource(start: Start) -> None:
    rig, telemetry = start(client_rack="near")
    assert pushed(rig, telemetry, 1)[0].resource == {"client_rack": "near"}


def test_the_last_push_says_that_it_is_the_last(start: Start) -> None:
    rig, telemetry = start(Telemetry(interval_ms=LONG_MS))
    asked(rig, telemetry, 1)
    run_until(rig.engine, lambda: states(rig).state is State.PUSH_NEEDED)
    assert not rig.engine.end_metrics_push()
    run_until(rig.engine, rig.engine.end_metrics_push)
    assert [body["terminating"] for _, body in telemetry.pushed] == [True]
    assert payloads(telemetry)[0].value(SENT) == 3
    assert states(rig).state is State.TERMINATED
    pump(rig)
    assert len(telemetry.pushed) == 1


def test_a_push_in_flight_is_waited_for_before_the_last_one(start: Start) -> None:
    rig, telemetry = start()
    pushed(rig, telemetry, 1)
    run_until(rig.engine, lambda: states(rig).state is State.PUSH_IN_PROGRESS)
    run_until(rig.engine, rig.engine.end_metrics_push)
    assert [body["terminating"] for _, body in telemetry.pushed] == [False] * (len(telemetry.pushed) - 1) + [True]


@pytest.mark.parametrize("metrics", [[], ["*"]])
def test_without_a_subscription_there_is_no_last_push(start: Start, metrics: list[str]) -> None:
    rig, telemetry = start(Telemetry(metrics, interval_ms=LONG_MS))
    if metrics:
        rig.engine._telemetry._telemetry.__init__()  # as before the first response
    else:
        asked(rig, telemetry, 1)
        run_until(rig.engine, lambda: states(rig).subscription is not None)
    assert rig.engine.end_metrics_push()
    pump(rig)
    assert telemetry.pushed == []


def test_the_end_does_not_wait_for_a_broker_without_an_answer(start: Start) -> None:
    rig, telemetry = start()
    telemetry.holds_pushes = True
    pushed(rig, telemetry, 1)
    run_until(rig.engine, rig.engine.end_metrics_push, 8)


@pytest.mark.parametrize("delta", [False, True])
def test_a_sender_that_does_not_end_after_all_is_another_client_instance(start: Start, delta: bool) -> None:
    """A broker refuses more metrics of an instance that has ended. The next one counts from its beginning."""
    rig, telemetry = start(Telemetry(delta=delta))
    pushed(rig, telemetry, 1)
    run_until(rig.engine, rig.engine.end_metrics_push)
    count = len(telemetry.pushed)
    rig.engine.resume_metrics_push()
    deliver(rig)
    found = pushed(rig, telemetry, count + 1)
    assert [identity.int for _, identity in telemetry.asked] == [0, 0]
    name = "org.apache.kafka.producer." + SENT
    assert found[count].times[name, ()][0] >= found[count - 1].times[name, ()][1]
    first, second = telemetry.pushed[0][1], telemetry.pushed[count][1]
    assert first["client_instance_id"] != second["client_instance_id"]
    assert (first["terminating"], second["terminating"]) == (False, False)
    of_the_next = [each.value(SENT) for each in found[count:]]
    assert (sum(of_the_next) if delta else of_the_next[-1]) == 3
    rig.engine.resume_metrics_push()  # of a sender that was not ending: without effect
    pushed(rig, telemetry, count + 3)
    assert len(telemetry.asked) == 2
