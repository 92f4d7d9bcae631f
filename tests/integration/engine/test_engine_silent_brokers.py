"""Tests that batches of a broker that does not answer and has left the cluster go to the new leaders at once."""

import time

import pytest
from kfake.codes import METADATA
from kfake.scripted_broker import ScriptedBroker
from support.apart import one_round
from support.engine_rig import EngineRig
from support.fault_rig import Rig
from support.front_end import run_until, topic_number

STAYS, SILENT = 1, 2
OF_SILENT = 1
"""A partition whose first leader is the silent broker."""
LONG_MS = 60_000
"""No request times out in these tests."""
NOW = int(time.time() * 1000)


BROKER = {"partitions": 2}


@pytest.fixture
def rig(broker):
    with Rig(broker, request_timeout_ms=LONG_MS) as rig:
        rig.attach()
        one_round(rig, range(2))
        yield rig


def leave_out(answer: dict) -> None:
    """Change a metadata answer to one without the silent broker."""
    answer["brokers"] = [each for each in answer["brokers"] if each["node_id"] != SILENT]


def questions(broker: ScriptedBroker, node: int) -> int:
    with broker.lock:
        return sum((asked, api) == (node, METADATA) for _, asked, api in broker.requests)


def test_a_batch_of_a_silent_broker_that_has_left_the_cluster_is_sent_to_the_new_leader(rig, broker):
    broker.mute.add(SILENT)
    rig.send(0, OF_SILENT)
    broker.move_leaders()
    broker.lies = leave_out
    rig.finish(20)
    assert rig.errors(0) == [0, 0, 0]
    assert "does not answer" in rig.engine._connections.get(SILENT).broker.last_error


def test_a_silent_broker_of_the_cluster_is_waited_for(rig, broker):
    broker.mute.add(SILENT)
    rig.send(0, OF_SILENT)
    before = questions(broker, STAYS)
    run_until(rig.engine, lambda: questions(broker, STAYS) >= before + 3)
    assert rig.engine.undelivered() == 1
    assert rig.engine._loop.connection_state(rig.engine._connections.get(SILENT).node) == ("ready", 1)
    broker.mute.clear()
    broker.drop_connections()  # it has not read the requests
    rig.finish(20)


def test_nobody_is_asked_about_brokers_that_answer(rig, broker):
    before = questions(broker, STAYS) + questions(broker, SILENT)
    for _ in range(12):
        one_round(rig, range(2))
        until = time.monotonic() + 0.2
        run_until(rig.engine, lambda until=until: time.monotonic() >= until)
    assert questions(broker, STAYS) + questions(broker, SILENT) == before
    rig.check()


def test_without_another_broker_the_request_times_out():
    with ScriptedBroker(partitions=1, nodes=1) as broker, Rig(broker, request_timeout_ms=2500) as rig:
        rig.begin()
        broker.mute.add(STAYS)
        rig.send(0, 0)
        run_until(rig.engine, lambda: "request_timeout_ms" in rig.engine._connections.get(STAYS).broker.last_error)
        broker.mute.clear()
        rig.finish(20)


def test_a_broker_is_connected_to_if_none_can_be_asked():
    """The sender knows only the connection to the leader, which was also the bootstrap address."""
    with ScriptedBroker(partitions=1) as broker, Rig(broker, request_timeout_ms=LONG_MS) as rig:
        rig.begin()
        assert broker.partitions[0].leader == STAYS
        assert {node for _, node, _ in broker.requests} == {STAYS}
        broker.mute.add(STAYS)
        rig.send(0, 0)
        broker.move_leaders()
        broker.lies = lambda answer: answer.update(brokers=[n for n in answer["brokers"] if n["node_id"] != STAYS])
        rig.finish(20)
        assert rig.errors(0) == [0, 0]


def test_the_oldest_versions_of_metadata_are_asked():
    """They have no allow_auto_topic_creation."""
    with (
        ScriptedBroker(partitions=2, metadata_version=1) as broker,
        Rig(broker, request_timeout_ms=LONG_MS) as rig,
    ):
        rig.attach()
        one_round(rig, range(2))
        broker.mute.add(SILENT)
        rig.send(0, OF_SILENT)
        broker.move_leaders()
        broker.lies = leave_out
        rig.finish(20)
        assert rig.errors(0) == [0, 0, 0]


def test_a_request_that_cannot_be_written_counts_as_unanswered():
    with (
        ScriptedBroker(partitions=40, receive_buffer_bytes=4096) as broker,
        Rig(broker, request_timeout_ms=LONG_MS, send_buffer_bytes=4096) as rig,
    ):
        rig.attach()
        one_round(rig, range(2))
        broker.deaf.add(SILENT)
        for partition in range(1, 40, 2):
            rig.send(0, partition, size=1900)
        silent = rig.engine._connections.get(SILENT)
        run_until(rig.engine, lambda: rig.engine._loop.connection_state(silent.node)[1] > 0)
        broker.move_leaders()
        broker.lies = leave_out
        rig.finish(20)
        assert "does not answer" in silent.broker.last_error


def test_a_leader_that_was_stopped_is_left_when_the_cluster_has_another_one(kafka3, new_topic):
    """The request would time out after a minute. The session of a broker of the tests ends after two seconds."""
    topic = new_topic(3, replication=3, cluster=kafka3)
    stopped = kafka3.metadata(topic).leaders[0]
    with EngineRig(kafka3.bootstrap_servers, request_timeout_ms=LONG_MS) as rig:
        front_end = rig.attach(slots=256)
        number = topic_number(rig.engine, front_end, topic)
        for partition in range(3):
            rig.deliver(front_end, partition, number, partition)
        kafka3.pause(stopped)
        try:
            rig.deliver(front_end, 3, number)
        finally:
            kafka3.resume(stopped)


def stay_idle(rig: Rig) -> None:
    until = time.monotonic() + 1.5
    run_until(rig.engine, lambda: time.monotonic() >= until)


@pytest.mark.as_root
def test_a_connection_that_was_dropped_while_it_was_idle_is_replaced(rig, broker, caplog):
    """The kernel of the broker's host acknowledges nothing any more. The broker is one of the cluster."""
    stay_idle(rig)
    broker.forget_connections()
    rig.send(0, OF_SILENT)
    rig.finish(40)
    assert rig.errors(0) == [0, 0, 0]
    assert "nothing that is sent reaches it" in caplog.text
    rig.check()


def test_a_broker_that_does_not_read_keeps_its_connection():
    """It is stopped, or collects garbage. Its kernel acknowledges what fits into the buffer, then a closed window."""
    with (
        ScriptedBroker(partitions=2, receive_buffer_bytes=4096) as broker,
        Rig(broker, request_timeout_ms=LONG_MS, send_buffer_bytes=4096) as rig,
    ):
        rig.attach()
        one_round(rig, range(2))
        stay_idle(rig)
        broker.mute.add(SILENT)
        rig.send(0, OF_SILENT, records=4, size=3000)
        before = questions(broker, STAYS)
        run_until(rig.engine, lambda: questions(broker, STAYS) >= before + 8, 60)
        assert rig.engine._connections.get(SILENT).broker.last_error == ""
        broker.mute.clear()
        broker.drop_connections()  # it has not read the request
        rig.finish(40)
