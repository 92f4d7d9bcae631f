"""Tests that a broker that throttles gets no request of any kind before the time is over; other brokers are asked."""

import time
import zipfile

import pytest
from devkafka.jars import KAFKA_VERSION, kafka_jars
from devkafka.maven import DownloadError
from kfake.codes import (
    ADD_OFFSETS_TO_TXN,
    ADD_PARTITIONS_TO_TXN,
    API_VERSIONS,
    DESCRIBE_PRODUCERS,
    END_TXN,
    FIND_COORDINATOR,
    INIT_PRODUCER_ID,
    METADATA,
    OFFSET_FETCH,
    PRODUCE,
    TXN_OFFSET_COMMIT,
)
from kfake.scripted_broker import Fault, ScriptedBroker
from support.fault_rig import Rig
from support.front_end import run_until
from support.transactional_front_end import GROUP, TransactionalFrontEnd

from cyproducer import errors
from cyproducer.protocol.apis import NEVER
from cyproducer.protocol.kafka_messages import ApiKey
from cyproducer.protocol.schema import ROWS

FOR_EVER_MS = 600_000


@pytest.mark.parametrize("api", [API_VERSIONS, METADATA, INIT_PRODUCER_ID])
def test_the_time_in_an_answer_is_heeded(lone_broker, api):
    lone_broker.throttles[api] = 500
    with Rig(lone_broker) as rig:
        rig.begin()
        rig.check()
    assert_next_request_waited(lone_broker, api)


@pytest.mark.parametrize("api", [PRODUCE, METADATA])
def test_an_impossible_time_is_limited_and_told(lone_broker, api, caplog):
    """Once in the log, and by the records that expire meanwhile. One answer must not stop a host for 24 days."""
    with Rig(lone_broker) as rig:
        rig.begin(delivery_timeout_ms=2_000, request_timeout_ms=1_000)
        if api == PRODUCE:
            lone_broker.faults.append(Fault(throttle_ms=2**31 - 1))
            rig.deliver(0, 0)
        else:
            lone_broker.throttles[api] = 2**31 - 1
            rig.engine._cluster.request_update()
            run_until(rig.engine, lambda: not lone_broker.throttles)
        (connection,) = rig.engine._connections
        run_until(rig.engine, lambda: rig.engine._loop.throttled_ms(connection.node) > 0)
        assert rig.engine._loop.throttled_ms(connection.node) <= 300_000
        rig.send(0, 1)
        rig.finish()
        assert rig.errors(0)[-1] == errors.DELIVERY_TIMEOUT
        told = rig.front_ends[0].explained[len(rig.sent[0]) - 1][1]
    assert "it throttles this client, and gets no request for 300 s; check the quotas" in told
    assert len([line for line in caplog.messages if "throttles this client" in line]) == 1


def test_the_time_in_an_answer_about_the_states_of_producers_is_heeded(lone_broker):
    with Rig(lone_broker, request_timeout_ms=30_000) as rig:
        rig.begin()
        lone_broker.throttles[DESCRIBE_PRODUCERS] = 500
        lone_broker.faults.append(Fault(close="before"))
        rig.send(0, 0)
        rig.finish()
    assert_next_request_waited(lone_broker, DESCRIBE_PRODUCERS)


COORDINATED = [
    FIND_COORDINATOR, INIT_PRODUCER_ID, ADD_PARTITIONS_TO_TXN, ADD_OFFSETS_TO_TXN, TXN_OFFSET_COMMIT, END_TXN,
    OFFSET_FETCH,
]  # fmt: skip


@pytest.mark.parametrize("api", COORDINATED, ids=lambda api: ApiKey(api).name)
def test_the_time_in_an_answer_of_a_coordinator_is_heeded(lone_broker, api):
    lone_broker.coordinate()
    lone_broker.throttles[api] = 500
    answers = []
    with Rig(lone_broker, request_timeout_ms=30_000) as rig:
        front_end = TransactionalFrontEnd(rig.engine, lone_broker.topic, "a")
        rig.front_ends.append(front_end.front_end)  # is closed with the rig
        assert front_end.do("init")["ok"]
        front_end.send(b"v")
        assert front_end.do("offsets", offsets=[("t", 0, 5, -1, "")], group=GROUP)["ok"]
        assert front_end.commit()["ok"]
        rig.engine.ask_about_transactions({"do": "offset", "group": "g", "partition": ["t", 0]}, answers.append)
        run_until(rig.engine, lambda: bool(answers))
        assert answers == [{"offset": 5, "metadata": ""}]
        assert front_end.do("init")["ok"], "a request that follows the last one"
    assert lone_broker.throttles == {}
    assert_next_request_waited(lone_broker, api)


def assert_next_request_waited(broker, api):
    """Check that the request after the one with the throttled answer came when the time was over."""
    at = [kind for _, _, kind in broker.requests].index(api)
    assert broker.requests[at + 1][0] - broker.requests[at][0] >= 0.5


def test_a_shorter_time_of_another_api_does_not_replace_a_longer_one(lone_broker):
    """The answer to the metadata request comes when the long time is running."""
    with Rig(lone_broker, request_timeout_ms=30_000) as rig:
        rig.begin()
        with lone_broker.lock:
            lone_broker.faults.append(Fault(delay=0.2, throttle_ms=1000))
            lone_broker.throttles[METADATA] = 1
        before = lone_broker.metadata_requests
        rig.send(0, 0)
        run_until(rig.engine, lambda: rig.engine._loop.connection_state(rig.engine._connections.get(1).node)[1] > 0)
        rig.engine._cluster.request_update()
        run_until(rig.engine, lambda: lone_broker.metadata_requests > before)
        rig.settle()
        rig.send(0, 0)
        rig.finish()
    times = [at for at, _, api in lone_broker.requests if api == PRODUCE]
    assert times[-1] - times[-2] >= 1.0
    assert lone_broker.throttles == {}


def test_a_shorter_time_does_not_replace_a_longer_one(lone_broker):
    with Rig(lone_broker, request_timeout_ms=30_000) as rig:
        rig.begin()
        with lone_broker.lock:
            lone_broker.faults.extend([Fault(delay=0.2, throttle_ms=1000), Fault(throttle_ms=1)])
        for _ in range(2):  # both are in flight when the first answer comes
            rig.send_now(0, 0)
        rig.settle()
        rig.send(0, 0)
        rig.finish()
    times = [at for at, _, api in lone_broker.requests if api == PRODUCE]
    assert len(times) == 4
    assert times[3] - times[1] >= 1.0


def test_metadata_requests_go_to_another_broker(rig, broker):
    """The only broker that is connected throttles."""
    rig.begin()
    (connected,) = [each for each in rig.engine._connections if each.takes_requests]
    assert connected.broker.id == 1
    rig.engine._loop.throttle(connected.node, FOR_EVER_MS)
    rig.refresh_metadata()
    assert [node for _, node, api in broker.requests if api == METADATA][-1] == 2


def test_a_metadata_request_waits_if_every_broker_throttles(lone_broker):
    with Rig(lone_broker) as rig:
        rig.attach()
        rig.engine._loop.throttle(rig.engine._connections.get(1).node, 500)
        since = time.monotonic()
        rig.refresh_metadata()
        assert time.monotonic() - since >= 0.49


def test_a_throttled_broker_is_not_connected_to_again_at_once(lone_broker):
    """A new connection would bypass the time that the broker has set."""
    with Rig(lone_broker) as rig:
        rig.begin()
        rig.engine._loop.throttle(rig.engine._connections.get(1).node, 500)
        since = time.monotonic()
        lone_broker.drop_connections()
        rig.send(0, 0)
        rig.finish()
        assert rig.errors(0) == [0, 0]
        assert min(at for at, _, _ in lone_broker.requests if at > since) - since >= 0.49


def test_a_broker_that_has_waited_itself_is_not_waited_for():
    """Before Produce v6 the broker itself delays its answer by the time that it names."""
    with ScriptedBroker(produce_version=5) as broker, Rig(broker) as rig:
        rig.attach()
        broker.faults.append(Fault(throttle_ms=FOR_EVER_MS))
        for _ in range(2):
            rig.deliver(0, 0)
        rig.check()


def test_the_apis_whose_times_are_heeded_are_those_of_kafkas_client():
    """The client of Kafka waits if the class of the response overrides shouldClientThrottle()."""
    try:
        jars = kafka_jars()
    except DownloadError as error:
        pytest.fail(str(error), pytrace=False)
    heeded = set()
    with zipfile.ZipFile(jars / f"kafka-clients-{KAFKA_VERSION}.jar") as classes:
        for api in ApiKey:
            name = "".join(word.title() for word in api.name.split("_"))
            if b"shouldClientThrottle" in classes.read(f"org/apache/kafka/common/requests/{name}Response.class"):
                heeded.add(api)
    assert heeded == {api for api in ApiKey if ROWS[api].throttles_from != NEVER}
