"""Tests which batches are sent and which wait, by the rules of Kafka's RecordAccumulator, one each.

Times in these tests are either never reached (LONG_MS) or waited for.
"""

import time

import pytest
from kfake.answers import produce
from kfake.cluster import Request
from kfake.codes import PRODUCE
from kfake.scripted_broker import Fault, ScriptedBroker
from support.fault_rig import Rig
from support.front_end import run_until

from cyproducer import errors
from cyproducer.codes import INVALID_RECORD, NOT_ENOUGH_REPLICAS

LONG_MS = 600_000
PATIENT = {"request_timeout_ms": LONG_MS}
NEVER_AGAIN = {**PATIENT, "retry_backoff_ms": LONG_MS, "retry_backoff_max_ms": LONG_MS}


def turns(rig: Rig, count: int = 50) -> None:
    for _ in range(count):
        rig.engine.run(1)
        rig.listen()


def end_of_log(broker: ScriptedBroker, partition: int) -> int:
    with broker.lock:
        return broker.partitions[partition].end


# ---------------------------------------------------------------- ready


@pytest.mark.parametrize("way", ["it is full", "there is a second one"])
def test_what_ends_the_linger_time_of_a_batch(lone_broker, way):
    with Rig(lone_broker, **PATIENT) as rig:
        rig.attach(linger_ms=LONG_MS, delivery_timeout_ms=3 * LONG_MS)
        rig.send(0, 0, seal=way == "it is full")
        turns(rig)
        if way == "there is a second one":
            assert rig.heard[0] == {}
            rig.send(0, 0, seal=False)
        run_until(rig.engine, lambda: rig.listen() or 0 in rig.heard[0])
        assert rig.heard[0][0] == (0, 0)


@pytest.mark.parametrize("way", ["a second batch", "the end of the front-end"])
def test_nothing_shortens_the_pause_of_a_batch_that_is_sent_again(lone_broker, way):
    """flush() and close() end the linger time, not the pause."""
    with Rig(lone_broker, **NEVER_AGAIN) as rig:
        rig.begin()
        lone_broker.faults.append(Fault(code=NOT_ENOUGH_REPLICAS))
        before = lone_broker.produce_requests
        rig.send(0, 0)
        run_until(rig.engine, lambda: lone_broker.produce_requests > before)
        if way == "a second batch":
            rig.send(0, 0)
        else:
            turns(rig)
            rig.engine.detach(rig.front_ends[0].attach_id)
        turns(rig)
        rig.attach()
        rig.send(1, 1)
        run_until(rig.engine, lambda: rig.listen() or 0 in rig.heard[1])
        turns(rig)
        assert lone_broker.produce_requests == before + 2, "the refused batch, and that of another partition"
        assert len(lone_broker.values(0)) == 2


# ---------------------------------------------------------------- drain


def test_a_partition_that_waits_does_not_stop_those_behind_it(lone_broker):
    """Its first batch has no answer yet, and until then no other one of its producer id may follow."""
    with Rig(lone_broker, **PATIENT) as rig:
        rig.attach(delivery_timeout_ms=3 * LONG_MS)
        lone_broker.swallow = True
        rig.send(0, 0)
        run_until(rig.engine, lambda: end_of_log(lone_broker, 0) == 2)
        rig.send(0, 0)
        turns(rig)
        for partition in (1, 2):
            rig.send(0, partition)
        run_until(rig.engine, lambda: end_of_log(lone_broker, 1) == end_of_log(lone_broker, 2) == 2)
        assert end_of_log(lone_broker, 0) == 2, "it still waits"
        lone_broker.swallow = False
        lone_broker.drop_connections()
        rig.finish()
        assert rig.errors(0) == [0] * 4


def test_no_request_is_made_before_the_one_before_it_is_written():
    """What comes meanwhile goes together. (InFlightRequests.canSendMore)"""
    with (
        ScriptedBroker(partitions=16, nodes=1, receive_buffer_bytes=4096) as broker,
        Rig(broker, send_buffer_bytes=4096, max_in_flight_requests_per_connection=5, **PATIENT) as rig,
    ):
        rig.begin()
        broker.deaf.add(1)
        for partition in range(8):
            rig.send(0, partition, size=1900)
        run_until(rig.engine, lambda: broker.unread(1) > 0)
        before = broker.produce_requests
        for partition in range(8, 16):
            rig.send(0, partition)
            turns(rig)
        broker.deaf.clear()
        rig.finish()
        assert broker.produce_requests - before == 2


def test_with_one_request_in_flight_no_later_batch_passes_one_that_is_sent_again(lone_broker):
    """Without idempotence, so without sequences that would show it."""
    with Rig(lone_broker, max_in_flight_requests_per_connection=1, **PATIENT) as rig:
        rig.begin(enable_idempotence=False, acks=1)
        lone_broker.faults.append(Fault(code=NOT_ENOUGH_REPLICAS, delay=0.3))
        before = lone_broker.produce_requests
        rig.send(0, 0)
        run_until(rig.engine, lambda: lone_broker.produce_requests > before)
        for _ in range(3):  # while it is in flight
            rig.send(0, 0)
            rig.engine.run(1)
        assert lone_broker.produce_requests == before + 1
        rig.finish()
        assert rig.errors(0) == [0] * 5


def test_no_new_batch_follows_one_that_is_sent_again(lone_broker):
    """The broker remembers five batches: with more it would forget the earlier attempt."""
    with Rig(lone_broker, retry_backoff_ms=300, retry_backoff_max_ms=300, **PATIENT) as rig:
        rig.begin(delivery_timeout_ms=3 * LONG_MS)
        lone_broker.faults.append(Fault(code=NOT_ENOUGH_REPLICAS))
        rig.send(0, 0)
        run_until(rig.engine, lambda: rig.engine._loop.totals()["retries"] == 1)
        lone_broker.swallow = True
        run_until(rig.engine, lambda: end_of_log(lone_broker, 0) == 4)
        rig.send(0, 0)
        turns(rig)
        assert end_of_log(lone_broker, 0) == 4, "it waits for the answer"
        lone_broker.swallow = False
        lone_broker.drop_connections()
        rig.finish()
        assert rig.errors(0) == [0] * 3


@pytest.mark.parametrize(("limit", "most"), [(8_000, 2), (2_000, 1)], ids=["two batches", "less than a batch"])
def test_a_request_has_no_more_batches_than_max_request_size_allows_but_one(lone_broker, limit, most):
    lone_broker.request_bytes_max = max(limit, 4_000)
    with Rig(lone_broker, max_request_size=limit, **PATIENT) as rig:
        rig.attach()
        for number in range(60):
            rig.send(0, number % 3, records=1, size=3_500)
        rig.finish()
        assert rig.errors(0) == [0] * 60
        assert lone_broker.oversized == 0
        assert max(len(attributes) for _, attributes in lone_broker.produced) == most


def test_a_request_has_the_request_timeout(lone_broker):
    """A broker waits for its followers as long as the client waits for the broker."""
    found = []

    def note(cluster: ScriptedBroker, request: Request) -> dict | None:
        found.append(request.body["timeout_ms"])
        return produce(cluster, request)

    lone_broker.answers[PRODUCE] = note
    with Rig(lone_broker, request_timeout_ms=54_321) as rig:
        rig.begin()
    assert found == [54_321]


# ---------------------------------------------------------------- epochs, and the end of a batch


def test_a_new_epoch_of_one_partition_leaves_the_others_in_theirs(lone_broker):
    with Rig(lone_broker, **PATIENT) as rig:
        rig.attach()
        for partition in range(3):
            rig.send(0, partition)
        rig.settle()
        lone_broker.faults.append(Fault(code=INVALID_RECORD))
        rig.deliver(0, 0)
        for partition in range(3):
            rig.send(0, partition)
        rig.finish()
        assert rig.errors(0) == [0, 0, 0, INVALID_RECORD, 0, 0, 0]
        epochs = [[batch.epoch for batch in partition.batches] for partition in lone_broker.partitions]
        assert epochs == [[0, 1], [0, 0], [0, 0]]


@pytest.mark.parametrize("appended", [True, False], ids=["success", "error"])
def test_the_memory_of_an_expired_batch_is_kept_until_its_request_has_ended(lone_broker, appended):
    """Its bytes may still be on their way (KAFKA-19012). What the broker answers later changes no outcome."""
    with Rig(lone_broker, **PATIENT) as rig:
        rig.attach(delivery_timeout_ms=100)
        fault = Fault(delay=2.0) if appended else Fault(code=INVALID_RECORD, delay=2.0)
        lone_broker.faults.append(fault)
        since = time.monotonic()
        rig.send(0, 0)
        run_until(rig.engine, lambda: rig.listen() or 0 in rig.heard[0])
        assert rig.heard[0][0] == (-1, errors.OUTCOME_UNKNOWN)
        assert rig.released[0] == set() or time.monotonic() - since >= 2.0
        rig.settle()  # a second result would be an error
        assert time.monotonic() - since >= 2.0
        assert rig.released[0] == {0}
        assert rig.heard[0][0] == (-1, errors.OUTCOME_UNKNOWN)
        assert len(lone_broker.values(0)) == 2 * appended
