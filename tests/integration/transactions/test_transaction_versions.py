"""Tests transactions while the cluster's protocol changes, with an old Kafka, and with identities that end."""

import socket
import struct
import time

import pytest
from devkafka.node import KafkaCluster
from support.consumer import read_topic
from support.process import wait_until
from support.supervised import the_sender
from support.transaction_level import FEATURE, QUICK_ABORT, use_level

from cyproducer import errors
from cyproducer.observe import transactions

# A change of the protocol takes the brokers some seconds, and each test needs several.
pytestmark = pytest.mark.long

OLD_VERSION = "3.3.2"  # before transaction.version
ID_EXPIRES_MS = 8000
LAST_EPOCH = 32766


@pytest.fixture(scope="module")
def forgetful(tmp_path_factory, register_cluster):
    """Yield three brokers that forget a transactional id eight seconds after its last use."""
    properties = {
        "transactional.id.expiration.ms": ID_EXPIRES_MS,
        "transaction.remove.expired.transaction.cleanup.interval.ms": 300,
    }
    directory = tmp_path_factory.mktemp("forgetful")
    with KafkaCluster(3, directory, properties=properties, features={FEATURE: 1}) as cluster:
        with register_cluster(cluster):
            yield cluster
        cluster.stop(grace=0)


@pytest.fixture(scope="module")
def brokers(tmp_path_factory, register_cluster):
    """Yield three brokers whose protocol the tests change. One replica of an id's state makes 32,767 epochs quick."""
    directory = tmp_path_factory.mktemp("brokers")
    properties = QUICK_ABORT | {"transaction.state.log.replication.factor": 1, "transaction.state.log.min.isr": 1}
    with KafkaCluster(3, directory, properties=properties, features={FEATURE: 1}) as cluster:
        with register_cluster(cluster):
            yield cluster
        cluster.stop(grace=0)


@pytest.fixture
def name():
    return f"versions-{time.time_ns()}"


def committed(cluster, topic, count):
    return sorted(read_topic(cluster.bootstrap_servers, topic, count, 60).value)


def commit(producer, topic, *values):
    with producer.transaction():
        for value in values:
            producer.send(topic, value, partition=0)


def is_known(name):
    try:
        return bool(transactions.describe(the_sender()["socket"], [name]))
    except transactions.TransactionQueryError:
        return False


def epochs_of(cluster, topic):
    return [batch.epoch for batch in cluster.dump_log(topic) if not batch.control]


def restart_all(cluster):
    for node in cluster.nodes:
        cluster.restart(node.number)


@pytest.mark.parametrize("level", [1, 2])
def test_a_producer_whose_transactional_id_has_expired_is_replaced(forgetful, make_producer, new_topic, name, level):
    use_level(forgetful, level)
    topic = new_topic(1, 3, cluster=forgetful)
    settings = {"bootstrap_servers": forgetful.bootstrap_servers, "transactional_id": name}
    producer = make_producer(**settings)
    producer.init_transactions()
    commit(producer, topic, b"first")
    assert is_known(name)
    wait_until(lambda: not is_known(name), 90, "the end of the transactional id")
    producer.begin_transaction()
    with pytest.raises(errors.KafkaError):
        producer.send(topic, b"lost").result(60)
    with pytest.raises(errors.KafkaError, match="INVALID_PRODUCER_ID_MAPPING"):
        producer.commit_transaction()
    with pytest.raises(errors.KafkaError, match="close this producer"):
        producer.abort_transaction()
    other = make_producer(**settings)
    other.init_transactions()
    commit(other, topic, b"second")
    assert committed(forgetful, topic, 2) == [b"first", b"second"]


@pytest.mark.parametrize("restarts", [False, True])
def test_the_protocol_becomes_newer_while_a_producer_runs(brokers, make_producer, new_topic, name, restarts):
    use_level(brokers, 1)
    topic = new_topic(1, 3, cluster=brokers)
    producer = make_producer(bootstrap_servers=brokers.bootstrap_servers, transactional_id=name)
    producer.init_transactions()
    commit(producer, topic, b"0")
    commit(producer, topic, b"1")
    producer.begin_transaction()
    producer.send(topic, b"2", partition=0).result(60)
    use_level(brokers, 2)
    producer.send(topic, b"3", partition=0).result(60)
    producer.send_offsets_to_transaction({(topic, 0): 1}, f"group-{name}")
    producer.commit_transaction()
    if restarts:  # then the sender learns of it
        restart_all(brokers)
    for number in range(4, 8):
        commit(producer, topic, b"%d" % number)
        producer.begin_transaction()
        producer.send(topic, b"aborted", partition=0)
        producer.abort_transaction()
    assert committed(brokers, topic, 8) == [b"%d" % number for number in range(8)]
    epochs = epochs_of(brokers, topic)
    assert epochs == sorted(epochs)
    assert epochs[:4] == [epochs[0]] * 4
    if restarts:
        assert len(set(epochs[-4:])) == 4


@pytest.mark.parametrize("restarts", [False, True])
def test_the_protocol_becomes_older_while_a_producer_runs(brokers, make_producer, new_topic, name, restarts):
    use_level(brokers, 2)
    topic = new_topic(1, 3, cluster=brokers)
    producer = make_producer(bootstrap_servers=brokers.bootstrap_servers, transactional_id=name)
    producer.init_transactions()
    commit(producer, topic, b"0")
    use_level(brokers, 1)
    if restarts:
        restart_all(brokers)
    failed = []
    for number in range(1, 6):
        try:
            commit(producer, topic, b"%d" % number)
        except errors.KafkaError as error:  # of the transaction that the change has interrupted
            failed.append((number, error))
    assert len(failed) <= 1, failed
    expected = [b"%d" % number for number in range(6) if number not in [each for each, _ in failed]]
    assert committed(brokers, topic, len(expected)) == expected


def test_a_producer_that_starts_after_the_feature_was_withdrawn(brokers, make_producer, new_topic, name):
    """The connections of the sender know the former level."""
    use_level(brokers, 2)
    topic = new_topic(1, 3, cluster=brokers)
    for level in (2, 0):
        use_level(brokers, level)
        producer = make_producer(bootstrap_servers=brokers.bootstrap_servers, transactional_id=f"{name}-{level}")
        producer.init_transactions()
        commit(producer, topic, b"%d" % level)
        producer.begin_transaction()
        producer.send(topic, b"aborted", partition=0)
        producer.abort_transaction()
    assert committed(brokers, topic, 2) == [b"0", b"2"]


def test_a_broker_before_the_feature(register_cluster, make_producer, name):
    with KafkaCluster(3, version=OLD_VERSION) as cluster, register_cluster(cluster):
        topic = cluster.create_topic("old", 3, 3)
        settings = {"bootstrap_servers": cluster.bootstrap_servers, "transactional_id": name}
        older, producer = make_producer(**settings), make_producer(**settings)
        older.init_transactions()
        older.begin_transaction()
        older.send(topic, b"left").result(60)
        producer.init_transactions()
        for number in range(20):
            producer.begin_transaction()
            for partition in range(3):
                producer.send(topic, b"%02d" % number, partition=partition)
            producer.send_offsets_to_transaction({(topic, 0): number}, "group")
            if number % 4:
                producer.commit_transaction()
            else:
                producer.abort_transaction()
        with pytest.raises((errors.ProducerFencedError, errors.InvalidProducerEpochError)):
            older.commit_transaction()
        expected = sorted(b"%02d" % number for number in range(20) if number % 4 for _ in range(3))
        assert committed(cluster, topic, len(expected)) == expected
        older.close(10)
        producer.close(10)


def ask(stream, api: int, version: int, body: bytes) -> bytes:
    """Send a request without a client id. Return the body of the response."""
    message = struct.pack(">hhih", api, version, 0, -1) + body
    stream.write(struct.pack(">i", len(message)) + message)
    stream.flush()
    (size,) = struct.unpack(">i", stream.read(4))
    return stream.read(size)[4:]


def coordinator_port(cluster, name: str) -> int:
    """Return the port of the coordinator of a transactional id, with FindCoordinator (version 1)."""
    text = name.encode()
    with socket.create_connection(("127.0.0.1", cluster.nodes[0].port), 60) as sock, sock.makefile("rwb") as stream:
        body = ask(stream, 10, 1, struct.pack(">h", len(text)) + text + b"\1")
    (code,) = struct.unpack_from(">h", body, 4)
    assert code == 0, code
    (port,) = struct.unpack_from(">i", body, len(body) - 4)
    assert port in [node.port for node in cluster.nodes]
    return port


def raise_epoch(cluster, name: str, last: int) -> None:
    """Send InitProducerId (version 0) to the coordinator until the epoch is `last`."""
    text = name.encode()
    with (
        socket.create_connection(("127.0.0.1", coordinator_port(cluster, name)), 60) as sock,
        sock.makefile("rwb") as stream,
    ):
        epoch = -1
        while epoch < last:
            body = ask(stream, 22, 0, struct.pack(">h", len(text)) + text + struct.pack(">i", 60_000))
            _, code, _, found = struct.unpack(">ihqh", body)
            assert code in (0, 14, 51), code  # 14: the coordinator starts; 51: the former call is not complete
            epoch = found if code == 0 else epoch


@pytest.mark.parametrize("level", [1, 2])
def test_the_last_epoch_is_followed_by_another_producer_id(brokers, make_producer, new_topic, name, level):
    use_level(brokers, level)
    topic = new_topic(1, 3, cluster=brokers)
    producer = make_producer(bootstrap_servers=brokers.bootstrap_servers, transactional_id=name)
    producer.init_transactions()
    raise_epoch(brokers, name, LAST_EPOCH - 3)
    producer = make_producer(bootstrap_servers=brokers.bootstrap_servers, transactional_id=name)
    producer.init_transactions()
    for number in range(6):
        commit(producer, topic, b"%d" % number)
        producer.begin_transaction()
        producer.send(topic, b"aborted", partition=0)
        producer.abort_transaction()
    assert committed(brokers, topic, 6) == [b"%d" % number for number in range(6)]
    found = [(batch.producer_id, batch.epoch) for batch in brokers.dump_log(topic) if not batch.control]
    if level == 2:
        ids = [producer_id for producer_id, _ in found]
        assert len(set(ids)) == 2 and ids == sorted(ids)
        assert max(epoch for _, epoch in found) >= LAST_EPOCH - 1
        assert found[-1][1] < 20
