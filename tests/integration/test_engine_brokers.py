"""The engine and what is said of the cluster: metadata that is late, wrong or too much, and brokers that are none."""

import contextlib
import socket

import pytest
from support.fault_rig import Rig
from support.front_end import run_until
from support.scripted_broker import ScriptedBroker

from cyproducer.sender import brokers


def test_a_topic_that_was_forgotten_is_asked_for_again_when_a_batch_comes(rig, broker):
    """Its leader has gone meanwhile, so that nothing but metadata tells where to send."""
    rig.attach()
    rig.send(0, 0)
    rig.settle()
    metadata = rig.engine._brokers.metadata
    metadata.max_idle_ms = -1  # whatever is asked for is forgotten with the answer
    metadata.request_update()
    run_until(rig.engine, lambda: not metadata.topics)
    metadata.max_idle_ms = 300_000
    broker.move_leaders()
    broker.down.add(1)
    broker.drop_connections()
    rig.send(0, 0)
    rig.settle()
    rig.check()
    assert rig.errors(0) == [0, 0]


def test_a_topic_with_batches_is_not_forgotten_in_an_outage(rig, broker):
    rig.attach()
    rig.send(0, 0)
    rig.settle()
    broker.down.update((1, 2))
    broker.drop_connections()
    rig.engine._brokers.metadata.max_idle_ms = 0  # what is not in use at this moment is idle
    rig.send(0, 0)
    run_until(rig.engine, lambda: rig.engine._brokers.metadata.bootstrapping)  # it does not know the leaders any more
    broker.down.clear()
    rig.settle()
    rig.check()
    assert rig.errors(0) == [0, 0]


def test_a_metadata_answer_that_is_none_is_asked_for_again(rig, broker):
    broker.cut_short = 2
    rig.attach()
    rig.send(0, 0)
    rig.settle()
    rig.check()
    assert broker.cut_short == 0
    assert rig.errors(0) == [0]


def test_partitions_beyond_the_table_are_left_out(rig, broker, caplog):
    """The topic seems to have grown to more of them than all topics together may have."""
    def add_a_partition(answer: dict) -> None:
        for topic in answer["topics"]:
            topic["partitions"] = [*topic["partitions"], {**topic["partitions"][0], "partition_index": 65_536}]

    rig.attach()
    broker.lies = add_a_partition
    for _ in range(2):
        before = broker.metadata_requests
        rig.engine._brokers.metadata.request_update()
        run_until(rig.engine, lambda before=before: broker.metadata_requests > before)
    rig.send(0, 0)
    rig.settle()
    rig.check()
    assert rig.errors(0) == [0]
    assert len([text for text in caplog.messages if "do not fit" in text]) == 1
    assert len(rig.front_ends[0].snapshot.read()[3]["t"][2]) == 3


@pytest.mark.parametrize("port", [70_000, -1, 0])
def test_a_broker_with_an_impossible_port_is_left_out(rig, broker, port, caplog):
    def add_a_broker(answer: dict) -> None:
        answer["brokers"].append({"node_id": 9, "host": "127.0.0.1", "port": port})

    broker.lies = add_a_broker
    rig.attach()
    rig.send(0, 0)
    rig.settle()
    rig.check()
    assert 9 not in rig.engine._brokers.links
    assert len([text for text in caplog.messages if f"127.0.0.1:{port}" in text]) == 1


def test_an_answer_that_cannot_be_handled_costs_its_connection_alone(rig, broker, monkeypatch):
    failed = []

    def fail_once(*arguments: object) -> None:
        monkeypatch.undo()
        failed.append(arguments)
        raise RuntimeError("whatever")

    monkeypatch.setattr(rig.engine._brokers.metadata, "_merge", fail_once)
    rig.attach()
    rig.send(0, 0)
    rig.settle()
    rig.check()
    assert failed


@pytest.mark.parametrize("silent", [True, False], ids=["silent", "no Kafka"])
def test_bootstrap_servers_are_asked_when_no_known_broker_is_one_any_more(silent, monkeypatch):
    monkeypatch.setattr(brokers, "CONNECTION_SETUP_TIMEOUT_MS", 100)
    with ScriptedBroker(bootstrap_apart=True) as broker, Rig(broker, request_timeout_ms=5000) as rig:
        rig.attach()
        if silent:
            broker.mute.update((1, 2))
        else:
            broker.nonsense = True
        broker.drop_connections()
        rig.send(0, 0)
        rig.send(0, 1)
        run_until(rig.engine, lambda: rig.engine._brokers.metadata.bootstrapping)
        broker.mute.clear()
        broker.nonsense = False
        rig.settle()
        rig.check()
        assert rig.errors(0) == [0, 0]


@pytest.fixture
def black_hole():
    """An address where connecting never comes to an end: the queue of its listener is full."""
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        for _ in range(3):
            client = stack.enter_context(socket.socket())
            client.setblocking(False)
            client.connect_ex(listener.getsockname())
        yield listener.getsockname()


def test_the_next_address_of_a_broker_that_is_none_has_its_time_limit(rig, broker, black_hole, monkeypatch):
    resolver = rig.engine._brokers.resolver
    resolve, asked = resolver.resolve, []

    def resolve_to_both(host, port, then):
        asked.append(host)
        if len(asked) > 1:
            broker.nonsense = False
            resolve(host, port, then)
        else:
            then([(socket.AF_INET, (host, port)), (socket.AF_INET, black_hole)])

    monkeypatch.setattr(brokers, "CONNECTION_SETUP_TIMEOUT_MS", 300)
    monkeypatch.setattr(resolver, "resolve", resolve_to_both)
    broker.nonsense = True
    rig.attach()
    rig.send(0, 0)
    rig.settle()
    rig.check()
    assert rig.errors(0) == [0]
