"""Tests InitProducerId requests that are refused, late, or sent to a broker whose connection ends."""

import time
from collections import deque

import pytest
from kfake.answers import versions as versions_of
from kfake.cluster import Request
from kfake.codes import API_VERSIONS, INIT_PRODUCER_ID
from kfake.scripted_broker import Fault, ScriptedBroker
from support.fault_rig import Rig, stream
from support.front_end import run_until
from support.process import wait_until
from support.takeover_rig import TakeoverRig

from cyproducer import errors
from cyproducer.codes import (
    CLUSTER_AUTHORIZATION_FAILED,
    COORDINATOR_NOT_AVAILABLE,
    INVALID_PRINCIPAL_TYPE,
    INVALID_PRODUCER_ID_MAPPING,
    INVALID_TXN_STATE,
    OUT_OF_ORDER_SEQUENCE_NUMBER,
    PRODUCER_FENCED,
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    UNKNOWN_SERVER_ERROR,
    UNSUPPORTED_VERSION,
)

EPOCH_MAX = 32767


@pytest.mark.parametrize(
    "code",
    [
        CLUSTER_AUTHORIZATION_FAILED,
        TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        UNSUPPORTED_VERSION,
        UNKNOWN_SERVER_ERROR,
    ],
)
def test_records_fail_at_once_with_the_refusal_and_the_next_ones_ask_again(rig, broker, code, caplog):
    broker.producer_id_code = code
    rig.attach(delivery_timeout_ms=120_000)
    rig.send(0, 0)
    rig.send(0, 1, seal=False)  # still open when the refusal comes
    rig.settle()
    assert rig.errors(0) == [code, code]
    for slot in (0, 1):
        assert rig.front_ends[0].explained[slot][1] == "the brokers gave no producer id, so the record was not sent"
    assert broker.producer_ids == 1
    rig.deliver(0, 0)
    assert rig.errors(0) == [code] * 3
    assert broker.producer_ids == 2
    assert len([text for text in caplog.messages if "no producer id" in text]) == 1
    assert sum(row[3] for row in rig.failures) == 6
    broker.producer_id_code = 0
    rig.deliver(0, 0)
    assert rig.errors(0) == [code] * 3 + [0]
    assert broker.produce_requests == 1


def announce(broker: ScriptedBroker, versions: tuple[int, int]) -> None:
    """Let the broker announce these versions of InitProducerId."""

    def with_other_versions(cluster: ScriptedBroker, request: Request) -> dict:
        found = versions_of(cluster, request)
        for api in found["api_keys"]:
            if api["api_key"] == INIT_PRODUCER_ID:
                api["min_version"], api["max_version"] = versions
        return found

    broker.answers[API_VERSIONS] = with_other_versions


@pytest.mark.parametrize("versions", [None, (90, 99)], ids=["no such API", "no common version"])
def test_a_broker_without_the_api_counts_as_a_refusal(rig, broker, versions):
    """Batches that need no producer id are delivered meanwhile. Then the broker is upgraded."""
    if versions is None:
        broker.apis_left_out = {INIT_PRODUCER_ID}
    else:
        announce(broker, versions)
    rig.attach(delivery_timeout_ms=120_000)
    rig.attach(enable_idempotence=False)
    rig.send(0, 0)
    rig.deliver(1, 0)
    assert rig.errors(0) == [UNSUPPORTED_VERSION]
    assert rig.errors(1) == [0]
    assert broker.producer_ids == 0
    broker.apis_left_out = set()
    announce(broker, (0, 4))
    broker.drop_connections()
    run_until(rig.engine, lambda: not any(each.takes_requests for each in rig.engine._connections))
    rig.deliver(0, 0)
    assert rig.errors(0) == [UNSUPPORTED_VERSION, 0]


def test_an_error_that_may_pass_is_asked_again(rig, broker):
    broker.producer_id_code = COORDINATOR_NOT_AVAILABLE
    rig.attach()
    rig.send(0, 0)
    run_until(rig.engine, lambda: broker.producer_ids >= 4)
    broker.producer_id_code = 0
    rig.finish()
    assert rig.errors(0) == [0]


def test_refusals_are_asked_for_again_after_a_pause(broker):
    """One front-end keeps sending while the right is missing."""
    broker.producer_id_code = CLUSTER_AUTHORIZATION_FAILED
    with Rig(broker, retry_backoff_ms=100, retry_backoff_max_ms=1000) as rig:
        rig.attach()
        since = time.monotonic()
        for _ in range(5):
            rig.deliver(0, 0)
        # The pauses between five requests: 100, 200, 400 and 800 ms, each at most 20 % shorter.
        assert time.monotonic() - since >= 1.2
        assert rig.errors(0) == [CLUSTER_AUTHORIZATION_FAILED] * 5
        assert broker.producer_ids == 5


def test_batches_without_producer_id_are_delivered_meanwhile(rig, broker):
    broker.producer_id_code = CLUSTER_AUTHORIZATION_FAILED
    rig.attach()
    rig.attach(enable_idempotence=False)
    rig.attach(acks=1)
    for index in range(3):
        rig.send(index, 0)
    rig.settle()
    assert [rig.errors(index) for index in range(3)] == [[CLUSTER_AUTHORIZATION_FAILED], [0], [0]]


def test_batches_of_a_front_end_that_has_ended_fail_too(rig, broker):
    """The front-end ends when its last batch is done."""
    broker.producer_id_delay = 0.2
    broker.producer_id_code = CLUSTER_AUTHORIZATION_FAILED
    rig.attach()
    rig.attach()
    rig.send(0, 0)
    rig.send(1, 0)
    run_until(rig.engine, lambda: broker.producer_ids == 1)
    rig.engine.detach(rig.front_ends[0].attach_id)
    run_until(rig.engine, lambda: rig.engine.undelivered() == 0)
    rig.listen()
    assert rig.errors(1) == [CLUSTER_AUTHORIZATION_FAILED]
    assert rig.engine.attached() == 1
    assert sum(row[3] for row in rig.failures) == 4


def test_batches_that_have_a_sequence_wait_for_the_next_producer_id():
    """The epochs of the first producer id are used up when a batch is out of order."""
    with ScriptedBroker() as broker, Rig(broker) as rig:
        broker.producer_epoch = EPOCH_MAX
        rig.begin()
        broker.producer_id_code = CLUSTER_AUTHORIZATION_FAILED
        broker.faults.append(Fault(code=OUT_OF_ORDER_SEQUENCE_NUMBER))
        rig.send(0, 0)
        run_until(rig.engine, lambda: broker.producer_ids >= 3)
        rig.send(0, 1)
        run_until(rig.engine, lambda: rig.listen() or 2 in rig.heard[0])
        broker.producer_id_code = 0
        rig.finish()
        assert rig.errors(0) == [0, 0, CLUSTER_AUTHORIZATION_FAILED]


@pytest.fixture
def long_timeout_rig(broker):
    """Yield a rig whose requests time out so late that only the test ends connections."""
    with Rig(broker, request_timeout_ms=30_000) as rig:
        yield rig


def test_another_connection_that_ends_does_not_ask_twice(long_timeout_rig, broker):
    rig = long_timeout_rig
    rig.attach(acks=1)
    for partition in (0, 1):
        rig.send(0, partition)
    rig.settle()
    assert broker.producer_ids == 0
    broker.producer_id_delay = 0.3
    rig.attach()
    rig.send(1, 0)
    run_until(rig.engine, lambda: broker.producer_ids == 1)
    (other,) = [each for each in rig.engine._connections if each.takes_requests and not each._pending]
    other.drop()
    rig.settle()
    assert broker.producer_ids == 1
    assert rig.errors(1) == [0]


def test_a_producer_id_is_asked_for_again_when_its_connection_ends(long_timeout_rig, broker):
    rig = long_timeout_rig
    broker.producer_id_delay = 30.0
    rig.attach()
    rig.send(0, 0)
    run_until(rig.engine, lambda: broker.producer_ids == 1)
    broker.producer_id_delay = 0.0
    broker.drop_connections()
    rig.finish()
    assert broker.producer_ids == 2
    assert rig.errors(0) == [0]


@pytest.mark.parametrize("code", [INVALID_PRODUCER_ID_MAPPING, INVALID_TXN_STATE, PRODUCER_FENCED])
def test_a_producer_id_that_a_broker_refuses_is_replaced_for_all_front_ends(rig, broker, code):
    """As Azure Event Hubs does with an id that was not used for some time."""
    stream(rig, batches=3)
    broker.refused_ids = {id_of(broker): code}
    stream(rig, batches=6)
    rig.check()
    assert broker.producer_ids == 2
    assert not {id_of(broker, partition) for partition in range(3)} & broker.refused_ids.keys()


def test_batches_that_may_be_in_the_log_stay_unknown_when_their_producer_id_is_refused(rig, broker):
    rig.attach()
    rig.send(0, 0)
    rig.settle()
    broker.refused_ids = {id_of(broker): INVALID_PRODUCER_ID_MAPPING}
    broker.results[b"0/1/0"] = deque([(0, True)])
    broker.faults.append(Fault(close="after"))
    rig.send(0, 0)
    run_until(rig.engine, lambda: len(broker.values(0)) == 4)
    rig.send(0, 0)
    rig.settle()
    rig.check(exactly=False)
    assert rig.errors(0) == [0, errors.OUTCOME_UNKNOWN, 0]
    assert broker.values(0) == [value for _, values in rig.sent[0] for value in values]


@pytest.mark.parametrize("code", [TRANSACTIONAL_ID_AUTHORIZATION_FAILED, INVALID_PRINCIPAL_TYPE])
def test_an_error_that_is_not_about_the_producer_id_fails_the_batch(rig, broker, code):
    rig.attach()
    rig.send(0, 0)
    rig.settle()
    broker.faults.append(Fault(code=code))
    rig.send(0, 0)
    rig.send(0, 0)
    rig.settle()
    assert rig.errors(0) == [0, code, 0]
    assert broker.producer_ids == 1


def test_a_successor_replaces_the_producer_id_that_its_predecessor_used(broker, nursery):
    rig = TakeoverRig(broker, nursery)
    try:
        rig.attach()
        rig.send(0, 0)
        rig.settle()
        broker.refused_ids = {id_of(broker): INVALID_PRODUCER_ID_MAPPING}
        broker.producer_id_delay = 60.0
        for partition in range(3):
            rig.send(0, partition)
        wait_until(lambda: broker.producer_ids == 2)
        rig.engine.kill()
        broker.producer_id_delay = 0.0
        rig.engine.take_over()
        rig.settle()
        rig.check()
        assert rig.errors(0) == [0] * 4
    finally:
        rig.close()


def id_of(broker: ScriptedBroker, partition: int = 0) -> int:
    """Return the producer id of the last batch in the log of a partition."""
    return broker.partitions[partition].batches[-1].producer_id
