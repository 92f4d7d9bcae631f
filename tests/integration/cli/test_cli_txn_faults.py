"""Tests `cyproducer txn` while a coordinator is killed, on three brokers, and while the sender is killed."""

import json
import os
import signal
import threading
import uuid

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from devkafka.node import KafkaCluster
from support.process import cyproducer, wait_until

from cyproducer.errors import SenderUnavailableError
from cyproducer.observe import requests, transactions
from cyproducer.observe.status import status


@pytest.fixture(scope="module")
def cluster():
    with KafkaCluster(3) as cluster:
        yield cluster


@pytest.fixture
def sender(cluster, foreground):
    """Start a sender under a supervisor. Return its socket."""
    return str(foreground(cluster.bootstrap_servers).ready().socket)


def open_transaction(cluster):
    """Return the id of a transaction that is open, and its producer."""
    topic = f"t{uuid.uuid4().hex[:12]}"
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    admin.create_topics([NewTopic(topic, 1, 3)])[topic].result(60)
    name = f"txn-{uuid.uuid4().hex[:12]}"
    producer = confluent_kafka.Producer({"bootstrap.servers": cluster.bootstrap_servers, "transactional.id": name})
    producer.init_transactions(60)
    producer.begin_transaction()
    producer.produce(topic, b"value")
    assert producer.flush(60) == 0
    return name, producer


@pytest.mark.long
def test_queries_survive_kills_of_the_sender(cluster, sender, monkeypatch):
    monkeypatch.setattr(requests, "_RETRY_S", 60.0)  # a successor takes longer on a busy host
    name, _producer = open_transaction(cluster)
    answers, failures, done = [], [], threading.Event()

    def ask():
        while not done.is_set():
            try:
                answers.append({row["transactional_id"] for row in transactions.list_all(sender, [])["transactions"]})
            except SenderUnavailableError as error:
                failures.append(str(error))

    asking = threading.Thread(target=ask)
    asking.start()
    try:
        for kills in range(1, 6):
            before = len(answers)
            wait_until(lambda before=before: len(answers) >= before + 3 or failures, 60, "answers")
            os.kill(status(sender)[0]["sender_pid"], signal.SIGKILL)
            wait_until(lambda kills=kills: status(sender)[0]["restarts"] == kills, 60, "the next sender")
    finally:
        done.set()
        asking.join()
    assert failures == []
    assert all(name in found for found in answers)
    assert transactions.abort(sender, name)["aborted"]


def test_a_killed_coordinator_is_named_and_its_transactions_move(cluster, sender):
    name, _producer = open_transaction(cluster)
    (before,) = transactions.describe(sender, [name])
    cluster.kill(before["coordinator"])  # the last test of this cluster
    (after,) = transactions.describe(sender, [name])
    assert after["coordinator"] != before["coordinator"]
    assert (after["state"], after["producer_id"]) == ("Ongoing", before["producer_id"])
    listed = cyproducer("txn", "list", "--json", "--socket", sender)
    found = json.loads(listed.stdout)
    assert name in {row["transactional_id"] for row in found["transactions"]}
    if found["unanswered"]:  # the metadata still has the broker
        assert listed.returncode == 1 and f"(id {before['coordinator']}) is not in this list" in listed.stderr
    assert cyproducer("txn", "abort", name, "--socket", sender).stdout.startswith("aborted the transaction")
