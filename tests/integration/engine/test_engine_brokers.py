"""Tests the engine with metadata that is late, wrong or too large, and with peers that are not Kafka brokers."""

import contextlib
import socket
import time

import pytest
from support.fault_rig import Rig
from support.front_end import run_until
from support.scripted_broker import ScriptedBroker

from cyproducer.sender.brokers import broker_connections
from cyproducer.sender.brokers.broker import connecting_socket
from cyproducer.version import VERSION


def test_a_topic_that_was_forgotten_is_asked_for_again_when_a_batch_comes(rig, broker):
    """The leader is gone as well, so only metadata can tell where to send."""
    rig.attach()
    rig.send(0, 0)
    rig.settle()
    metadata = rig.engine._brokers.metadata
    metadata.max_idle_ms = -1  # every topic is forgotten as soon as it is answered
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
    rig.engine._brokers.metadata.max_idle_ms = 0  # a topic that is not in use at this moment counts as idle
    rig.send(0, 0)
    run_until(rig.engine, lambda: rig.engine._brokers.metadata.bootstrapping)  # the engine has lost the leaders
    broker.down.clear()
    rig.settle()
    rig.check()
    assert rig.errors(0) == [0, 0]


def test_an_invalid_metadata_answer_is_requested_again(rig, broker):
    broker.cut_short = 2
    rig.attach()
    rig.send(0, 0)
    rig.settle()
    rig.check()
    assert broker.cut_short == 0
    assert rig.errors(0) == [0]


def test_partitions_beyond_the_table_are_left_out(rig, broker, caplog):
    """The topic seems to have more partitions than all topics together may have."""

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
def test_bootstrap_servers_are_asked_when_no_known_broker_is_usable(silent, monkeypatch):
    monkeypatch.setattr(broker_connections, "CONNECTION_SETUP_TIMEOUT_MS", 100)
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
    """Yield an address where connecting never completes: the queue of its listener is full."""
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        for _ in range(3):
            client = stack.enter_context(socket.socket())
            client.setblocking(False)
            client.connect_ex(listener.getsockname())
        yield listener.getsockname()


def test_the_second_address_of_a_peer_that_is_no_broker_has_its_time_limit(rig, broker, black_hole, monkeypatch):
    resolver = rig.engine._brokers.resolver
    resolve, asked = resolver.resolve, []

    def resolve_to_both(host, port, then):
        asked.append(host)
        if len(asked) > 1:
            broker.nonsense = False
            resolve(host, port, then)
        else:
            then([(socket.AF_INET, (host, port)), (socket.AF_INET, black_hole)])

    monkeypatch.setattr(broker_connections, "CONNECTION_SETUP_TIMEOUT_MS", 300)
    monkeypatch.setattr(resolver, "resolve", resolve_to_both)
    broker.nonsense = True
    rig.attach()
    rig.send(0, 0)
    rig.settle()
    rig.check()
    assert rig.errors(0) == [0]


def test_an_attempt_that_fails_at_once_is_repeated_after_its_backoff(rig, monkeypatch):
    """Only the clock starts the next attempt: no descriptor becomes ready."""
    control = rig.engine._brokers
    monkeypatch.setattr(
        control.resolver, "resolve", lambda host, port, then: then(OSError(101, "Network is unreachable"))
    )
    control.metadata.want("t", 0)
    now_ms = time.monotonic_ns() // 1_000_000
    for _ in range(3):
        due_ms = control.maintain(now_ms)
        assert due_ms <= 100, "reconnect_backoff_max_ms is 20 here"
        now_ms += due_ms
    assert "Network is unreachable" in control.last_error
    assert control.links[-1].failures >= 2


def leave(broker: ScriptedBroker, node: int) -> None:
    """Let the node leave the cluster; the other one of two nodes leads everything."""
    with broker.lock:
        for partition in broker.partitions:
            partition.leader = 3 - node
            partition.leader_epoch += 1
    broker.lies = lambda answer: answer.update(brokers=[b for b in answer["brokers"] if b["node_id"] != node])


def test_a_broker_that_has_left_the_cluster_is_not_asked(rig, broker):
    """Its connection still exists: it was the bootstrap server."""
    rig.attach()
    for partition in (0, 1):
        rig.send(0, partition)
    rig.settle()
    leave(broker, 1)
    control = rig.engine._brokers
    control.metadata.request_update()
    run_until(rig.engine, lambda: 1 not in control.metadata.brokers)
    assert control.links[1].versions is not None
    asked = len(broker.requests)
    for _ in range(3):
        before = broker.metadata_requests
        control.metadata.request_update()
        run_until(rig.engine, lambda before=before: broker.metadata_requests > before)
    assert {node for _, node, _ in broker.requests[asked:]} == {2}
    rig.send(0, 0)
    rig.settle()
    rig.check()


def test_a_name_of_a_broker_that_has_left_the_cluster_is_not_looked_up(rig, broker, monkeypatch):
    def lead_from_nowhere(answer: dict) -> None:
        answer["brokers"].append({"node_id": 9, "host": "nowhere", "port": 9092})
        for topic in answer["topics"]:
            topic["partitions"] = [{**p, "leader_id": 9, "leader_epoch": 5} for p in topic["partitions"]]

    resolver = rig.engine._brokers.resolver
    resolve, looked_up = resolver.resolve, []

    def refuse_nowhere(host, port, then):
        if host == "nowhere":
            looked_up.append(time.monotonic())
            then(OSError(-2, "Name or service not known"))
        else:
            resolve(host, port, then)

    monkeypatch.setattr(resolver, "resolve", refuse_nowhere)
    rig.attach()
    broker.lies = lead_from_nowhere
    metadata = rig.engine._brokers.metadata
    metadata.request_update()
    run_until(rig.engine, lambda: 9 in metadata.brokers)
    rig.send(0, 0)
    run_until(rig.engine, lambda: len(looked_up) >= 3)
    broker.lies = None
    with broker.lock:
        for partition in broker.partitions:
            partition.leader_epoch = 6
    rig.settle()
    rig.check()
    assert rig.errors(0) == [0]
    assert 9 not in metadata.brokers
    before = len(looked_up)
    until = time.monotonic() + 0.3  # reconnect_backoff_max_ms is 20 here
    run_until(rig.engine, lambda: time.monotonic() >= until)
    assert len(looked_up) == before


def test_batches_for_a_broker_that_has_left_wait_for_another_leader(rig, broker):
    """The metadata names a leader that is not among the brokers: there is no address to connect to."""
    rig.attach()
    for partition in (0, 1):
        rig.send(0, partition)
    rig.settle()
    broker.lies = lambda answer: answer.update(brokers=[b for b in answer["brokers"] if b["node_id"] != 2])
    metadata = rig.engine._brokers.metadata
    metadata.request_update()
    run_until(rig.engine, lambda: 2 not in metadata.brokers)
    broker.down.add(2)
    broker.drop_connections()
    rig.send(0, 1)
    before = broker.metadata_requests
    run_until(rig.engine, lambda: broker.metadata_requests >= before + 3)
    assert rig.engine._loop.connection_state(rig.engine._brokers.links[2].index)[0] == "closed"
    leave(broker, 2)
    rig.settle()
    rig.check()
    assert rig.errors(0) == [0, 0, 0]


@pytest.mark.parametrize("version", [7, 8])
def test_leader_epochs_of_old_brokers_are_not_trusted(version):
    """The topic was created again: its epochs begin at 0, and a broker before 2.4 has no topic id that shows this."""
    with ScriptedBroker(metadata_version=version) as broker, Rig(broker) as rig:
        with broker.lock:
            for partition in broker.partitions:
                partition.leader_epoch = 9
        rig.attach()
        rig.send(0, 0)
        rig.settle()
        with broker.lock:
            for partition in broker.partitions:
                partition.leader = 3 - partition.leader
                partition.leader_epoch = 0
        rig.send(0, 0)
        rig.settle()
        rig.check()
        assert rig.errors(0) == [0, 0]


def test_name_and_version_are_sent_to_the_broker(rig, broker):
    rig.attach()
    assert broker.software == {("cyproducer", VERSION)}


@pytest.mark.parametrize("size", [4096, 65536])
def test_sizes_of_socket_buffers(broker, monkeypatch, size):
    """Linux doubles the requested size."""
    made = []

    def note(*arguments):
        sock = connecting_socket(*arguments)
        made.append(tuple(sock.getsockopt(socket.SOL_SOCKET, name) for name in (socket.SO_SNDBUF, socket.SO_RCVBUF)))
        return sock

    monkeypatch.setattr(broker_connections, "connecting_socket", note)
    with Rig(broker, send_buffer_bytes=size, receive_buffer_bytes=2 * size) as rig:
        rig.attach()
    assert set(made) == {(2 * size, 4 * size)}


def test_socket_buffers_of_the_system(broker):
    address = socket.AF_INET, ("127.0.0.1", broker.ports[0])
    with connecting_socket(address, -1, -1) as sock, socket.create_connection(address[1]) as plain:
        for name in (socket.SO_SNDBUF, socket.SO_RCVBUF):
            assert sock.getsockopt(socket.SOL_SOCKET, name) == plain.getsockopt(socket.SOL_SOCKET, name)
