"""Tests `cyproducer txn` on a real Kafka, with transactions of another client library."""

import json
import time
import uuid

import confluent_kafka
import pytest
from support.process import cyproducer

from cyproducer.observe import transactions
from cyproducer.observe.status import status


def txn(*arguments, status=0):
    done = cyproducer("txn", *arguments)
    assert done.returncode == status, (done.stdout, done.stderr)
    return done


@pytest.fixture
def sender(kafka, foreground):
    """Start a sender that no process uses: it has no metadata and no connection. Return its socket."""
    return str(foreground(kafka.bootstrap_servers).ready().socket)


@pytest.fixture
def transactional(kafka):
    """Return a function that makes a transactional producer of another library, and its id."""
    made = []

    def make():
        name = f"txn-{uuid.uuid4().hex[:12]}"
        settings = {"bootstrap.servers": kafka.bootstrap_servers, "transactional.id": name}
        producer = confluent_kafka.Producer(settings | {"transaction.timeout.ms": 50_000})
        producer.init_transactions(60)
        made.append(producer)
        return producer, name

    yield make
    made.clear()


def begin(producer, topic, partitions=(0,)):
    producer.begin_transaction()
    for partition in partitions:
        producer.produce(topic, b"value", partition=partition)
    assert producer.flush(60) == 0


def states(socket, names, *options):
    found = json.loads(txn("list", "--json", "--socket", socket, *options).stdout)
    assert found["unanswered"] == {}
    return {row["transactional_id"]: row["state"] for row in found["transactions"] if row["transactional_id"] in names}


def test_an_open_transaction_is_listed_described_and_aborted(sender, transactional, topic):
    producer, name = transactional()
    other, idle = transactional()
    begin(producer, topic)
    began = time.time()
    assert states(sender, {name, idle}) == {name: "Ongoing", idle: "Empty"}
    assert states(sender, {name, idle}, "--state", "Ongoing") == {name: "Ongoing"}
    assert states(sender, {name}, "--older-than", "1000") == {}
    shown = txn("list", "--socket", sender).stdout.splitlines()
    assert shown[0].split() == ["TRANSACTIONAL", "ID", "COORDINATOR", "PRODUCER", "ID", "STATE"]
    assert [line.split()[-1] for line in shown if line.startswith(f"{name} ")] == ["Ongoing"]

    (found,) = json.loads(txn("describe", name, "--json", "--socket", sender).stdout)
    assert (found["transactional_id"], found["state"], found["timeout_ms"]) == (name, "Ongoing", 50_000)
    assert found["partitions"] == [[topic, 0]]
    assert abs(found["started_at"] - began) < 60
    text = txn("describe", name, idle, "--socket", sender).stdout
    assert f"partitions   {topic}-0" in text and "timeout      50 s" in text and "state        Empty" in text

    said = txn("abort", name, "--socket", sender).stdout
    assert said == f"aborted the transaction of {name} and fenced its producer\n"
    assert states(sender, {name}) == {name: "Empty"}
    with pytest.raises(confluent_kafka.KafkaException) as caught:
        producer.commit_transaction(60)
    assert caught.value.args[0].code() in (
        confluent_kafka.KafkaError._FENCED,
        confluent_kafka.KafkaError.PRODUCER_FENCED,
    )
    said = txn("abort", idle, "--socket", sender).stdout
    assert said == f"no transaction of {idle} is open (state Empty)\n"
    other.begin_transaction()
    other.produce(topic, b"it is not fenced")
    other.commit_transaction(60)


def test_what_cannot_be_answered_is_an_error(sender, transactional):
    _, name = transactional()
    done = txn("describe", "no-such-id", "--socket", sender, status=1)
    assert "no-such-id: no producer has used this transactional id lately" in done.stderr
    done = txn("abort", "no-such-id", "--socket", sender, status=1)
    assert "no-such-id" in done.stderr
    done = txn("list", "--state", "Sleeping", "--socket", sender, status=1)
    assert "the broker knows no state Sleeping" in done.stderr
    assert "not a number of seconds" in txn("list", "--older-than", "soon", status=2).stderr
    assert states(sender, {name}) == {name: "Empty"}


def test_without_a_sender_the_error_says_how_to_start_one(runtime_dir):
    done = txn("list", status=1)
    assert "no sender of this user is running; start one with `cyproducer sender" in done.stderr


def test_the_attached_processes_of_a_sender_are_not_disturbed(kafka, make_producer, transactional, topic):
    """Queries and records share the connections of the sender."""
    producer = make_producer(bootstrap_servers=kafka.bootstrap_servers)
    producer.send(topic, b"first").get(60)
    (running,) = [each for each in status() if each["bootstrap_servers"] == [kafka.bootstrap_servers]]
    other, name = transactional()
    begin(other, topic)
    futures = []
    for _ in range(20):
        futures += [producer.send(topic, b"record") for _ in range(100)]
        found = transactions.list_all(running["socket"], ["Ongoing"])
        assert name in {row["transactional_id"] for row in found["transactions"]}
    assert [future.get(60).offset >= 0 for future in futures] == [True] * 2000
    other.abort_transaction(60)
