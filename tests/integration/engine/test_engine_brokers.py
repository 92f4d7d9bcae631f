"""Tests the engine with metadata that is late, wrong or too large, and with peers that are not Kafka brokers."""

import socket
import time

import pytest
from kfake import cluster
from kfake.codes import METADATA, PRODUCE
from kfake.scripted_broker import Fault, ScriptedBroker
from support.fault_rig import Rig
from support.front_end import run_until
from support.tcp_server import full_port

from cyproducer.sender.cluster import connection as connection_module
from cyproducer.sender.cluster.connection import Connection, connecting_socket
from cyproducer.sender.cluster.resolver import Address, resolve
from cyproducer.sender.engine.events import Answered, Closed
from cyproducer.version import VERSION

RESPONSE_BYTES_MAX = 104_857_600  # socket.request.max.bytes of a broker; its answers are not longer


def test_a_topic_that_was_forgotten_is_asked_for_again_when_a_batch_comes(rig, broker):
    """The leader is gone as well, so only metadata can tell where to send."""
    rig.begin()
    metadata = rig.engine._cluster
    metadata.max_idle_ms = -1  # every topic is forgotten as soon as it is answered
    metadata.request_update()
    run_until(rig.engine, lambda: not metadata.topics)
    metadata.max_idle_ms = 300_000
    broker.move_leaders()
    broker.down.add(1)
    broker.drop_connections()
    rig.send(0, 0)
    rig.finish()
    assert rig.errors(0) == [0, 0]


class ClosingLoop:
    """A loop that reports an answer and the end of its connection at the same time."""

    def __init__(self, loop, broker):
        self._loop = loop
        self._broker = broker
        self.closed = False

    def __getattr__(self, name):
        return getattr(self._loop, name)

    def run(self, timeout_ms):
        events, ready = self._loop.run(timeout_ms)
        if any(isinstance(event, Answered) for event in events):
            self._broker.drop_connections()
            while not any(isinstance(event, Closed) for event in events):
                events = events + self._loop.run(50)[0]
            self.closed = True
        return events, ready


def test_an_answer_counts_although_its_connection_has_ended(rig, broker):
    rig.begin()
    loop = rig.engine._loop = ClosingLoop(rig.engine._loop, broker)
    before = rig.engine._cluster.answers
    rig.engine._cluster.request_update()
    run_until(rig.engine, lambda: loop.closed)
    assert rig.engine._cluster.answers == before + 1
    rig.engine._loop = loop._loop
    rig.check()


def test_a_request_after_an_idle_time_uses_the_connection_that_it_has(broker):
    """Nothing is sent on it yet when idle connections are closed."""
    with Rig(broker, connections_max_idle_ms=1000) as rig:
        rig.begin()
        time.sleep(1.2)
        rig.engine._cluster.request_update()
        rig.engine._do_due_work(time.monotonic_ns() // 1_000_000)
        assert rig.engine._cluster.last_error == ""
        rig.send(0, 0)
        rig.finish()
        assert rig.errors(0) == [0, 0]
        assert rig.engine._cluster.last_error == ""


def test_a_topic_with_batches_is_not_forgotten_in_an_outage(rig, broker):
    rig.begin()
    broker.down.update((1, 2))
    broker.drop_connections()
    rig.engine._cluster.max_idle_ms = 0  # a topic that is not in use at this moment counts as idle
    rig.send(0, 0)
    run_until(rig.engine, lambda: rig.engine._cluster.bootstrapping)  # the engine has lost the leaders
    broker.down.clear()
    rig.finish()
    assert rig.errors(0) == [0, 0]


def test_an_invalid_metadata_answer_is_requested_again(rig, broker):
    broker.cut_short = 2
    rig.begin()
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
        rig.refresh_metadata()
    rig.send(0, 0)
    rig.finish()
    assert rig.errors(0) == [0]
    assert len([text for text in caplog.messages if "do not fit" in text]) == 1
    assert len(rig.front_ends[0].snapshot.read()[3]["t"][2]) == 3


@pytest.mark.parametrize("port", [70_000, -1, 0])
def test_a_broker_with_an_impossible_port_is_left_out(rig, broker, port, caplog):
    def add_a_broker(answer: dict) -> None:
        answer["brokers"].append({"node_id": 9, "host": "127.0.0.1", "port": port})

    broker.lies = add_a_broker
    rig.begin()
    rig.check()
    assert rig.engine._connections.get(9) is None
    assert len([text for text in caplog.messages if f"127.0.0.1:{port}" in text]) == 1


def test_an_answer_that_cannot_be_handled_costs_its_connection_alone(rig, broker, monkeypatch):
    failed = []

    def fail_once(*arguments: object) -> None:
        monkeypatch.undo()
        failed.append(arguments)
        raise RuntimeError("whatever")

    monkeypatch.setattr(rig.engine._cluster, "_merge", fail_once)
    rig.begin()
    rig.check()
    assert failed


@pytest.mark.parametrize("api", [PRODUCE, METADATA])
def test_a_response_to_another_request_ends_the_connection(rig, broker, monkeypatch, api):
    """Its correlation id is not that of the oldest request in flight."""
    wrong = []

    def shift_once(kind, version, correlation_id, body):
        if kind == api and not wrong:
            wrong.append(correlation_id)
            correlation_id += 1
        return encode(kind, version, correlation_id, body)

    rig.begin()
    accepted = broker.accepted
    encode = cluster.encode_response
    monkeypatch.setattr(cluster, "encode_response", shift_once)
    rig.engine._cluster.request_update()
    rig.send(0, 0)
    run_until(rig.engine, lambda: rig.listen() or (wrong and broker.accepted > accepted))
    rig.finish()
    assert rig.errors(0) == [0, 0]


@pytest.mark.parametrize("size", [3, RESPONSE_BYTES_MAX + 1])
def test_a_response_of_an_impossible_size_ends_the_connection(broker, monkeypatch, size):
    """Its rest is not waited for until the request times out."""
    encode, wrong = cluster.encode_response, []

    def lie_once(kind, version, correlation_id, body):
        answer = encode(kind, version, correlation_id, body)
        if kind != PRODUCE or wrong:
            return answer
        wrong.append(correlation_id)
        return size.to_bytes(4, "big") + answer[4:]

    with Rig(broker, request_timeout_ms=600_000) as rig:
        rig.begin(delivery_timeout_ms=1_800_000)
        monkeypatch.setattr(cluster, "encode_response", lie_once)
        rig.send(0, 0)
        rig.finish()
        assert wrong
        assert rig.errors(0) == [0, 0]


@pytest.mark.parametrize("silent", [True, False], ids=["silent", "no Kafka"])
def test_bootstrap_servers_are_asked_when_no_known_broker_is_usable(silent):
    settings = {"request_timeout_ms": 5000, "socket_connection_setup_timeout_ms": 100}
    with ScriptedBroker(bootstrap_apart=True) as broker, Rig(broker, **settings) as rig:
        rig.attach()
        if silent:
            broker.mute.update((1, 2))
        else:
            broker.nonsense = True
        broker.drop_connections()
        rig.send(0, 0)
        rig.send(0, 1)
        run_until(rig.engine, lambda: rig.engine._cluster.bootstrapping)
        broker.mute.clear()
        broker.nonsense = False
        rig.finish()
        assert rig.errors(0) == [0, 0]


def test_bootstrap_servers_are_not_asked_again_without_recovery():
    """Both known brokers come back at their addresses later."""
    with ScriptedBroker(bootstrap_apart=True) as broker, Rig(broker, metadata_recovery_strategy="none") as rig:
        rig.begin()
        broker.down.update((1, 2))
        broker.drop_connections()
        rig.send(0, 0)
        known = [rig.engine._connections.get(node).broker for node in (1, 2)]
        run_until(rig.engine, lambda: all(each._failures >= 3 for each in known))
        assert not rig.engine._cluster.bootstrapping
        since = time.monotonic()
        broker.down.clear()
        rig.finish()
        assert rig.errors(0) == [0, 0]
        assert {node for at, node, _ in broker.requests if at > since} <= {1, 2}


def test_bootstrap_servers_are_asked_when_there_is_no_metadata_for_too_long(caplog):
    """The known brokers answer, but do not know the cluster."""
    settings = {"metadata_recovery_rebootstrap_trigger_ms": 0, "request_timeout_ms": 30_000}
    with ScriptedBroker(bootstrap_apart=True) as broker, Rig(broker, **settings) as rig:
        rig.begin()
        before, requests = broker.accepted, broker.produce_requests
        broker.faults.append(Fault(hang="appended"))
        rig.send(0, 1)  # by another connection than the metadata
        run_until(rig.engine, lambda: broker.produce_requests > requests)
        broker.lies = lambda answer: answer.update(brokers=[])
        rig.engine._cluster.request_update()
        run_until(rig.engine, lambda: rig.engine._cluster.bootstrapping)
        assert "no metadata within metadata_recovery_rebootstrap_trigger_ms" in caplog.text
        broker.lies = None
        rig.send(0, 0)
        rig.finish()
        assert rig.errors(0) == [0, 0, 0]
        assert broker.accepted >= before + 2, "the former connections were closed"


@pytest.fixture
def black_hole():
    """Yield an address where connecting never completes."""
    with full_port() as port:
        yield "127.0.0.1", port


def test_an_attempt_to_connect_ends_after_its_time(broker, black_hole, monkeypatch):
    settings = {"socket_connection_setup_timeout_ms": 100, "socket_connection_setup_timeout_max_ms": 300}
    with Rig(broker, **settings) as rig:
        engine = rig.engine

        async def to_black_hole(helper, host, port, *, canonical):
            return [Address(socket.AF_INET, black_hole)]

        monkeypatch.setattr(connection_module, "resolve", to_black_hole)
        engine._cluster.want("t", 0)
        errors: list[str] = []

        def three_times() -> bool:
            if engine._report.last_error not in errors[-1:]:
                errors.append(engine._report.last_error)
            return engine._connections.get(-1).broker._setup_failures >= 3

        engine._do_due_work(time.monotonic_ns() // 1_000_000)
        run_until(rig.engine, three_times)
    limits_ms = [int(error.split("within ")[1].split(" ms")[0]) for error in errors if error]
    assert 80 <= limits_ms[0] <= 120
    assert 160 <= limits_ms[1] <= 240
    assert limits_ms[2] <= 300


@pytest.fixture
def hasty_rig(broker):
    """Yield a rig that gives up an attempt to connect after 0.3 s, or up to 1 s if attempts fail."""
    settings = {"socket_connection_setup_timeout_ms": 300, "socket_connection_setup_timeout_max_ms": 1000}
    with Rig(broker, **settings) as rig:
        yield rig


def test_the_second_address_of_a_peer_that_is_no_broker_has_its_time_limit(hasty_rig, broker, black_hole, monkeypatch):
    rig = hasty_rig
    asked = []

    async def resolve_to_both(helper, host, port, *, canonical):
        asked.append(host)
        if len(asked) > 1:
            broker.nonsense = False
            return await resolve(helper, host, port, canonical=canonical)
        return [Address(socket.AF_INET, (host, port)), Address(socket.AF_INET, black_hole)]

    monkeypatch.setattr(connection_module, "resolve", resolve_to_both)
    broker.nonsense = True
    rig.begin()
    rig.check()
    assert rig.errors(0) == [0]


def test_an_attempt_that_fails_at_once_is_repeated_after_its_backoff(rig, monkeypatch):
    """Only the clock starts the next attempt: no descriptor becomes ready."""
    engine = rig.engine

    async def refuse(helper, host, port, *, canonical):
        raise OSError(101, "Network is unreachable")

    monkeypatch.setattr(connection_module, "resolve", refuse)
    engine._cluster.want("t", 0)
    now_ms = time.monotonic_ns() // 1_000_000
    for _ in range(6):
        due_ms = engine._do_due_work(now_ms)
        assert due_ms <= 100, "reconnect_backoff_max_ms is 20 here"
        now_ms += due_ms
    assert "Network is unreachable" in engine._report.last_error
    assert engine._connections.get(-1).broker._failures >= 2


def leave(broker: ScriptedBroker, node: int) -> None:
    """Let the node leave the cluster; the other one of two nodes leads everything."""
    with broker.lock:
        for partition in broker.partitions:
            partition.leader = 3 - node
            partition.leader_epoch += 1
    broker.lies = lambda answer: answer.update(brokers=[b for b in answer["brokers"] if b["node_id"] != node])


def test_a_broker_with_the_allowed_requests_in_flight_is_not_asked(broker):
    """It answers nothing. The other broker is not connected yet."""
    with Rig(broker, max_in_flight_requests_per_connection=1, request_timeout_ms=30_000) as rig:
        rig.begin()
        broker.faults.append(Fault(hang="appended"))
        rig.send_now(0, 0)
        rig.refresh_metadata()
        assert [node for _, node, api in broker.requests if api == METADATA][-1] == 2
        broker.drop_connections()
        rig.finish()


def test_a_lone_broker_with_the_allowed_requests_in_flight_is_asked():
    with (
        ScriptedBroker(nodes=1) as broker,
        Rig(broker, max_in_flight_requests_per_connection=1, request_timeout_ms=30_000) as rig,
    ):
        rig.begin()
        broker.faults.append(Fault(delay=1.0))
        rig.send_now(0, 0)
        rig.refresh_metadata()
        state = rig.engine._loop.connection_state(rig.engine._connections.get(1).node)
        assert state == ("ready", 2), "the answer to the batch comes later"
        rig.finish()


def test_a_broker_that_has_left_the_cluster_is_not_asked(rig, broker):
    """Its connection still exists: it was the bootstrap server."""
    rig.attach()
    for partition in (0, 1):
        rig.send(0, partition)
    rig.settle()
    leave(broker, 1)
    cluster = rig.engine._cluster
    cluster.request_update()
    run_until(rig.engine, lambda: 1 not in cluster.brokers)
    assert rig.engine._connections.get(1).takes_requests
    asked = len(broker.requests)
    for _ in range(3):
        rig.refresh_metadata()
    assert {node for _, node, _ in broker.requests[asked:]} == {2}
    rig.send(0, 0)
    rig.finish()


def test_a_name_of_a_broker_that_has_left_the_cluster_is_not_looked_up(rig, broker, monkeypatch):
    def lead_from_nowhere(answer: dict) -> None:
        answer["brokers"].append({"node_id": 9, "host": "nowhere", "port": 9092})
        for topic in answer["topics"]:
            topic["partitions"] = [{**p, "leader_id": 9, "leader_epoch": 5} for p in topic["partitions"]]

    looked_up = []

    async def refuse_nowhere(helper, host, port, *, canonical):
        if host == "nowhere":
            looked_up.append(time.monotonic())
            raise OSError(-2, "Name or service not known")
        return await resolve(helper, host, port, canonical=canonical)

    monkeypatch.setattr(connection_module, "resolve", refuse_nowhere)
    rig.attach()
    broker.lies = lead_from_nowhere
    metadata = rig.engine._cluster
    metadata.request_update()
    run_until(rig.engine, lambda: 9 in metadata.brokers)
    rig.send(0, 0)
    run_until(rig.engine, lambda: len(looked_up) >= 3)
    broker.lies = None
    with broker.lock:
        for partition in broker.partitions:
            partition.leader_epoch = 6
    rig.finish()
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
    metadata = rig.engine._cluster
    metadata.request_update()
    run_until(rig.engine, lambda: 2 not in metadata.brokers)
    broker.down.add(2)
    broker.drop_connections()
    rig.send(0, 1)
    before = broker.metadata_requests
    run_until(rig.engine, lambda: broker.metadata_requests >= before + 3)
    assert rig.engine._loop.connection_state(rig.engine._connections.get(2).node)[0] == "closed"
    leave(broker, 2)
    rig.finish()
    assert rig.errors(0) == [0, 0, 0]


@pytest.mark.parametrize("version", [7, 8])
def test_leader_epochs_of_old_brokers_are_not_trusted(version):
    """The topic was created again: its epochs begin at 0, and a broker before 2.4 has no topic id that shows this."""
    with ScriptedBroker(metadata_version=version) as broker, Rig(broker) as rig:
        with broker.lock:
            for partition in broker.partitions:
                partition.leader_epoch = 9
        rig.begin()
        with broker.lock:
            for partition in broker.partitions:
                partition.leader = 3 - partition.leader
                partition.leader_epoch = 0
        rig.send(0, 0)
        rig.finish()
        assert rig.errors(0) == [0, 0]


def test_name_and_version_are_sent_to_the_broker(rig, broker):
    rig.attach()
    assert broker.software == {("cyproducer", VERSION)}


@pytest.fixture
def attempts(monkeypatch):
    """Yield the hosts of all attempts to connect."""
    found = []

    def note(address, *sizes):
        found.append(address[1][0])
        return connecting_socket(address, *sizes)

    monkeypatch.setattr(connection_module, "connecting_socket", note)
    return found


def test_all_addresses_of_a_name_are_tried_and_the_last_one_comes_last(monkeypatch, attempts):
    """Only the third address has a listener."""
    with ScriptedBroker(nodes=1) as broker, Rig(broker) as rig:
        looked_up = []

        async def to_three(helper, host, port, *, canonical):
            looked_up.append(host)
            return [Address(socket.AF_INET, (f"127.0.0.{end}", port)) for end in (3, 2, 1)]

        async def to_two(helper, host, port, *, canonical):
            return [Address(socket.AF_INET, (f"127.0.0.{end}", port)) for end in (1, 2)]

        monkeypatch.setattr(connection_module, "resolve", to_three)
        rig.begin()
        assert attempts == ["127.0.0.3", "127.0.0.2", "127.0.0.1"]
        assert len(looked_up) == 1
        monkeypatch.setattr(connection_module, "resolve", to_two)
        broker.drop_connections()
        rig.send(0, 0)
        rig.finish()
    assert attempts[3:5] == ["127.0.0.2", "127.0.0.1"]


@pytest.mark.parametrize("lookup", ["use_all_dns_ips", "resolve_canonical_bootstrap_servers_only"])
def test_canonical_names_are_for_bootstrap_servers(monkeypatch, lookup):
    """The broker of the metadata has another address than the bootstrap server.

    As in Kafka, a certificate must have the canonical name then, and Kerberos uses it.
    """
    asked, checked = [], {}
    connect = Connection._connect

    def note(connection, address):
        connect(connection, address)
        checked[connection.broker.name] = connection.broker.checked_host

    async def note_look_up(helper, host, port, *, canonical):
        asked.append((f"{host}:{port}", canonical))
        return [Address(socket.AF_INET, (host, port), "canonical" if canonical else "")]

    monkeypatch.setattr(Connection, "_connect", note)
    monkeypatch.setattr(connection_module, "resolve", note_look_up)
    with ScriptedBroker(bootstrap_apart=True) as broker, Rig(broker, client_dns_lookup=lookup) as rig:
        rig.begin()
        assert checked == {
            broker.bootstrap_servers: "127.0.0.1" if lookup == "use_all_dns_ips" else "canonical",
            f"127.0.0.1:{broker.ports[0]}": "127.0.0.1",
        }
        is_canonical = lookup != "use_all_dns_ips"
        assert asked == [(broker.bootstrap_servers, is_canonical), (f"127.0.0.1:{broker.ports[0]}", False)]


@pytest.mark.parametrize(("max_idle_ms", "closed"), [(-1, False), (0, True), (1500, True), (540_000, False)])
def test_an_idle_connection_is_closed_after_its_time(monkeypatch, max_idle_ms, closed):
    """The loop says that the connections were idle for two seconds. A record makes a new connection."""
    with ScriptedBroker(nodes=1) as broker, Rig(broker, connections_max_idle_ms=max_idle_ms) as rig:
        rig.begin()
        connections, before = rig.engine._connections, broker.accepted
        patient = PatientLoop(rig.engine._loop)
        monkeypatch.setattr(connections, "_loop", patient)
        connections.tick(time.monotonic_ns() // 1_000_000)
        monkeypatch.undo()
        assert rig.engine._loop.connection_state(connections.get(1).node)[0] == ("closed" if closed else "ready")
        rig.send(0, 0)
        rig.finish()
        assert broker.accepted == before + closed


class PatientLoop:
    """A loop whose connections were idle for two seconds."""

    def __init__(self, loop) -> None:
        self._loop = loop

    def __getattr__(self, name: str):
        return getattr(self._loop, name)

    def idle_ms(self, index: int) -> int:
        return 2000


@pytest.mark.parametrize("size", [4096, 65536])
def test_sizes_of_socket_buffers(broker, monkeypatch, size):
    """Linux doubles the requested size."""
    made = []

    def note(*arguments):
        sock = connecting_socket(*arguments)
        made.append(tuple(sock.getsockopt(socket.SOL_SOCKET, name) for name in (socket.SO_SNDBUF, socket.SO_RCVBUF)))
        return sock

    monkeypatch.setattr(connection_module, "connecting_socket", note)
    with Rig(broker, send_buffer_bytes=size, receive_buffer_bytes=2 * size) as rig:
        rig.attach()
    assert set(made) == {(2 * size, 4 * size)}


def test_socket_buffers_of_the_system(broker):
    address = Address(socket.AF_INET, ("127.0.0.1", broker.ports[0]))
    with connecting_socket(address, -1, -1) as sock, socket.create_connection(address[1]) as plain:
        for name in (socket.SO_SNDBUF, socket.SO_RCVBUF):
            assert sock.getsockopt(socket.SOL_SOCKET, name) == plain.getsockopt(socket.SOL_SOCKET, name)
