"""Tests the scenarios of Kafka's own tests for transactions, on three brokers and with both protocols."""

import contextlib
import itertools
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from kafka import KafkaConsumer, TopicPartition
from kafka.structs import OffsetAndMetadata
from support.consumer import read_topic
from support.process import wait_until
from support.supervised import the_sender

from cyproducer import errors
from cyproducer.group_offsets import stable_offset
from cyproducer.observe import transactions

FENCED = (errors.ProducerFencedError, errors.InvalidProducerEpochError)
NUMBERS = itertools.count(1)


@pytest.fixture
def topic(cluster, new_topic):
    return new_topic(4, 3, cluster=cluster)


@pytest.fixture
def make(cluster, make_producer):
    """Return ``make(transactional_id, ready=True, **settings)``: a producer, after init_transactions()."""

    def made(name, ready=True, **settings):
        producer = make_producer(bootstrap_servers=cluster.bootstrap_servers, transactional_id=name, **settings)
        if ready:
            producer.init_transactions()
        return producer

    return made


@pytest.fixture
def name():
    return f"scenario-{time.time_ns()}-{next(NUMBERS)}"


def committed(cluster, topic, count):
    """Return the sorted values that a reader of committed records sees. `count`: at least so many are expected."""
    return sorted(read_topic(cluster.bootstrap_servers, topic, count, 60).value)


def described(name):
    (found,) = transactions.describe(the_sender()["socket"], [name])
    return found


# ---------------------------------------------------------------- coordinators


@pytest.mark.parametrize("end", ["commit_transaction", "abort_transaction"])
def test_a_transaction_ends_at_the_next_coordinator_when_the_broker_of_the_former_one_is_gone(
    cluster, make, topic, name, end
):
    """A request to a broker that the metadata does not have any more would wait for request_timeout_ms."""
    producer = make(name, request_timeout_ms=180_000, delivery_timeout_ms=200_000)
    producer.begin_transaction()
    producer.send(topic, b"0").result(60)
    producer.commit_transaction()
    gone = described(name)["coordinator"]
    producer.begin_transaction()
    cluster.kill(gone)
    left = next(node.number for node in cluster.nodes if node.number != gone)
    wait_until(lambda: gone not in cluster.metadata(number=left).brokers, 60, "the cluster to give up the broker")
    for partition in range(4):
        producer.send(topic, b"1", partition=partition).result(60)
    getattr(producer, end)(timeout=60)
    assert committed(cluster, topic, 1) == [b"0"] + [b"1"] * 4 * (end == "commit_transaction")


# ---------------------------------------------------------------- fencing


@pytest.mark.parametrize("call", ["send", "send to another partition", "send offsets", "commit"])
def test_an_older_producer_is_fenced(cluster, make, topic, name, call):
    older, newer = make(name), make(name, ready=False)
    older.begin_transaction()
    older.send(topic, b"older", partition=0).result(60)
    newer.init_transactions()
    newer.begin_transaction()
    newer.send(topic, b"newer", partition=1)
    with pytest.raises((*FENCED, errors.TransactionAbortedError)):  # the latter: the record was not sent
        if call == "send offsets":
            older.send_offsets_to_transaction({(topic, 0): 1}, f"group-{name}")
        elif call == "commit":
            older.commit_transaction()
        else:
            older.send(topic, b"late", partition=0 if call == "send" else 2).result(60)
    with pytest.raises(FENCED):
        older.commit_transaction()
    with pytest.raises(FENCED):
        older.abort_transaction()
    newer.commit_transaction()
    assert committed(cluster, topic, 1) == [b"newer"]


def test_the_broker_aborts_a_transaction_after_its_time(cluster, make, topic, name):
    producer = make(name, transaction_timeout_ms=300)
    producer.begin_transaction()
    producer.send(topic, b"expired", partition=0).result(60)
    wait_until(lambda: described(name)["state"] == "CompleteAbort", 60, "the abort")
    with pytest.raises(errors.KafkaError):
        producer.send(topic, b"late", partition=0).result(60)
    with pytest.raises(errors.KafkaError):
        producer.commit_transaction()
    with contextlib.suppress(FENCED):
        producer.abort_transaction()
    other = make(name)
    with other.transaction():
        other.send(topic, b"next", partition=0)
    assert committed(cluster, topic, 1) == [b"next"]


# ---------------------------------------------------------------- visibility


def test_only_committed_records_are_visible(cluster, make, new_topic, name):
    topics = [new_topic(6, 3, cluster=cluster) for _ in range(2)]
    producer, other = make(name), make(f"{name}-other")
    other.begin_transaction()
    other.send(topics[0], b"undecided", partition=5).result(60)
    for kind in (b"aborted", b"committed"):
        producer.begin_transaction()
        for number in range(11_000):
            producer.send(topics[number % 2], b"%s %d" % (kind, number), partition=number // 2 % 5)
        if kind == b"committed":
            producer.commit_transaction()
        else:
            producer.flush()
            producer.abort_transaction()
    other.abort_transaction()
    found = committed(cluster, topics[0], 5500) + committed(cluster, topics[1], 5500)
    assert sorted(found) == sorted(b"committed %d" % number for number in range(11_000))


def test_a_reader_of_committed_records_stops_before_an_open_transaction(cluster, make, topic, name):
    first, second = make(f"{name}-1"), make(f"{name}-2")
    for producer, value in ((first, b"a1"), (second, b"b1")):
        producer.begin_transaction()
        producer.send(topic, value, partition=0).result(60)
    second.commit_transaction()  # behind the open transaction of `first`
    assert committed(cluster, topic, 0) == []
    assert len(read_topic(cluster.bootstrap_servers, topic, 2, 60, "read_uncommitted")) == 2
    first.commit_transaction()
    assert committed(cluster, topic, 2) == [b"a1", b"b1"]


# ---------------------------------------------------------------- offsets


def test_offsets_of_a_member_are_a_part_of_the_transaction(cluster, make, topic, new_topic, name):
    target = new_topic(1, 3, cluster=cluster)
    with make(f"{name}-source") as source, source.transaction():
        for number in range(500):
            source.send(topic, b"%d" % number, partition=number % 4)
    settings = {"bootstrap_servers": cluster.bootstrap_servers, "group_id": f"group-{name}"}
    consumer = KafkaConsumer(
        topic, **settings, enable_auto_commit=False, auto_offset_reset="earliest", isolation_level="read_committed"
    )
    producer = make(name)
    copied, round_of = 0, itertools.count(1)
    while copied < 500:
        batches = consumer.poll(1000, max_records=80)
        if not batches:
            continue
        producer.begin_transaction()
        for records in batches.values():
            for record in records:
                producer.send(target, record.value)
        offsets = {partition: records[-1].offset + 1 for partition, records in batches.items()}
        producer.send_offsets_to_transaction(offsets, consumer.group_metadata())
        if next(round_of) % 3 == 0:
            producer.abort_transaction()
            for partition in batches:
                consumer.seek(partition, consumer.committed(partition) or 0)
        else:
            producer.commit_transaction()
            copied += sum(len(records) for records in batches.values())
    consumer.close()
    assert committed(cluster, target, 500) == sorted(b"%d" % number for number in range(500))


def test_offsets_of_a_topic_that_does_not_exist_can_be_aborted(cluster, make, topic, name):
    """The coordinator is asked again for 10 s, since it could be late. The transaction is not blocked after that."""
    producer = make(name)
    producer.begin_transaction()
    producer.send(topic, b"aborted").result(60)
    with pytest.raises(errors.UnknownTopicOrPartitionError, match=r"no broker knows the topic .*: no-such-topic"):
        producer.send_offsets_to_transaction({("no-such-topic", 0): 1}, f"group-{name}")
    producer.abort_transaction()
    producer.begin_transaction()
    producer.send(topic, b"committed").result(60)
    producer.commit_transaction()
    assert committed(cluster, topic, 1) == [b"committed"]


def test_offset_leader_epoch_and_metadata_are_stored(cluster, make, topic, name):
    producer, group = make(name), f"group-{name}"
    partitions = [TopicPartition(topic, number) for number in range(3)]
    given = dict(zip(partitions, [OffsetAndMetadata(7, "seven", 0), OffsetAndMetadata(8, "", -1), 9], strict=True))
    producer.begin_transaction()
    producer.send_offsets_to_transaction(given, group)
    producer.commit_transaction()
    servers = cluster.bootstrap_servers
    consumer = KafkaConsumer(bootstrap_servers=servers, group_id=group, isolation_level="read_committed")
    found = [consumer.committed(partition, metadata=True) for partition in partitions]
    consumer.close()
    assert found == [OffsetAndMetadata(7, "seven", 0), OffsetAndMetadata(8, "", -1), OffsetAndMetadata(9, "", -1)]


# ---------------------------------------------------------------- timeouts


@pytest.mark.timeout(290)
def test_calls_time_out_while_all_brokers_are_down_and_can_be_repeated(cluster, make, topic, name):
    long = {"transaction_timeout_ms": 280_000}
    new = make(f"{name}-init", ready=False, **long)
    began = {call: make(f"{name}-{call}", **long) for call in ("offsets", "commit", "abort")}
    for producer in began.values():
        producer.begin_transaction()
        producer.send(topic, b"%d" % id(producer), partition=0).result(60)
    calls = {
        "init": lambda timeout: new.init_transactions(timeout),
        "offsets": lambda timeout: began["offsets"].send_offsets_to_transaction({(topic, 0): 1}, name, timeout),
        "commit": lambda timeout: began["commit"].commit_transaction(timeout),
        "abort": lambda timeout: began["abort"].abort_transaction(timeout),
    }
    for number in (1, 2, 3):
        cluster.kill(number)
    for call in calls.values():
        with pytest.raises(errors.KafkaTimeoutError):
            call(1)
    with pytest.raises(errors.IllegalStateError, match="must be repeated"):
        new.begin_transaction()
    with pytest.raises(errors.IllegalStateError, match="must be repeated"):
        began["commit"].abort_transaction()
    with pytest.raises(errors.IllegalStateError, match="must be repeated"):
        began["abort"].begin_transaction()
    cluster.restore()
    for call in calls.values():
        call(120)
    began["offsets"].commit_transaction()
    for producer in (new, *began.values()):
        with producer.transaction():
            producer.send(topic, b"next", partition=1)
    expected = [b"%d" % id(began[call]) for call in ("offsets", "commit")] + [b"next"] * 4
    assert committed(cluster, topic, 6) == sorted(expected)


# ---------------------------------------------------------------- epochs


def test_the_epoch_after_each_transaction(cluster, make, topic, name, level):
    producer = make(name)
    for commits in (True, False, True):
        producer.begin_transaction()
        producer.send(topic, b"%d" % commits, partition=0).result(60)
        if commits:
            producer.commit_transaction()
        else:
            producer.abort_transaction()
    batches = [batch for batch in cluster.dump_log(topic, 0) if not batch.control]
    assert len({batch.producer_id for batch in batches}) == 1
    first = batches[0].epoch
    assert [batch.epoch - first for batch in batches] == ([0, 1, 2] if level == 2 else [0, 0, 0])
    assert [batch.base_sequence for batch in batches] == ([0, 0, 0] if level == 2 else [0, 1, 2])
    assert committed(cluster, topic, 2) == [b"1", b"1"]


@pytest.mark.parametrize("leader_is", ["killed", "stopped"])
def test_an_abort_after_a_record_has_expired_recovers(cluster, make, new_topic, name, level, leader_is):
    topic = new_topic(1, 1, cluster=cluster)
    leader = cluster.metadata(topic).leaders[0]
    producer = make(name, delivery_timeout_ms=3000, request_timeout_ms=2000)
    with producer.transaction():
        producer.send(topic, b"first")
    producer.begin_transaction()
    producer.send(topic, b"aborted").result(60)
    if leader_is == "killed":
        cluster.kill(leader)
    else:
        cluster.pause(leader)
    with pytest.raises(errors.KafkaError):
        producer.send(topic, b"expires").result(60)
    with pytest.raises(errors.KafkaError):
        producer.commit_transaction()
    cluster.restore()
    # Kafka 4.3 loses the end of a transaction for a partition that has no leader (KAFKA-20734).
    for node in cluster.nodes:
        wait_until(lambda node=node: cluster.metadata(topic, node.number).leaders[0] > 0, 60, "a leader")
    producer.abort_transaction()
    with producer.transaction():
        producer.send(topic, b"second")
    assert committed(cluster, topic, 2) == [b"first", b"second"]
    epochs = [batch.epoch for batch in cluster.dump_log(topic, 0) if not batch.control]
    # The record that could not be sent had no sequence: without KIP-890 the epoch need not change.
    assert epochs[-1] > epochs[0] or (level == 1 and leader_is == "killed")


# ---------------------------------------------------------------- empty transactions, identities


def test_transactions_without_records(cluster, make, topic, name):
    producer = make(name)
    for end in (producer.commit_transaction, producer.abort_transaction, producer.commit_transaction):
        producer.begin_transaction()
        end()
    producer.begin_transaction()
    producer.send(topic, b"record")
    producer.commit_transaction()
    for end in (producer.abort_transaction, producer.commit_transaction):  # right after a commit
        producer.begin_transaction()
        end()
    with pytest.raises(errors.IllegalStateError):
        producer.init_transactions()
    with producer.transaction():
        producer.send(topic, b"another")
    assert committed(cluster, topic, 2) == [b"another", b"record"]


def test_no_two_producers_have_the_same_producer_id(cluster, make, topic, name):
    found = []
    for half in range(2):
        names = [f"{name}-{half}-{number}" for number in range(12)]
        for each in names:
            producer = make(each)
            with producer.transaction():
                producer.send(topic, b"x")
            producer.close(30)
        make(f"{name}-{half}")  # keeps the sender
        found += transactions.describe(the_sender()["socket"], names)
        if not half:
            cluster.kill(found[0]["coordinator"])
    assert len({row["producer_id"] for row in found}) == 24
    assert len({row["coordinator"] for row in found}) > 1


# ------------------------------------------------------- offsets of other transactions


def test_a_stable_offset_waits_for_the_end_of_the_transaction(cluster, make, topic, name):
    """A consumer that reads the committed offset meanwhile finds the older one, and would read records twice."""
    producer, other = make(name), make(f"{name}-other")
    group, partition = f"group-{name}", TopicPartition(topic, 0)
    assert stable_offset(other, group, partition) is None
    for offset, commits in ((5, True), (9, False), (12, True)):
        producer.begin_transaction()
        producer.send(topic, b"x", partition=0)
        producer.send_offsets_to_transaction({partition: offset}, group)
        with ThreadPoolExecutor(1) as threads:
            asked = threads.submit(stable_offset, other, group, partition)
            with pytest.raises(TimeoutError):
                asked.result(0.5)
            if commits:
                producer.commit_transaction()
            else:
                producer.abort_transaction()
            assert asked.result(30) == (offset if commits else 5)
