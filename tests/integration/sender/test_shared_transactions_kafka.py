"""Tests several processes' records in one transaction, and what the one that commits asks a real Kafka."""

import json
import os
import subprocess
import sys
import threading
import time

import pytest
from support.consumer import read_topic

from cyproducer.errors import IllegalStateError, KafkaError, ProducerFencedError
from cyproducer.observe.status import status
from cyproducer.observe.transactions import TransactionQueryError, committed_offset, last_sequences
from cyproducer.producer.shared_transaction import participant, sender_of, share


@pytest.fixture
def settings(kafka, topic):
    return {"bootstrap_servers": kafka.bootstrap_servers, "transactional_id": topic, "sender_idle_timeout_ms": 200}


@pytest.fixture
def owner(make_producer, settings):
    producer = make_producer(**settings)
    producer.init_transactions()
    return producer


@pytest.fixture
def join(settings):
    """Return ``join(transaction)``: a participant, closed at the end."""
    made = []

    def make(transaction):
        made.append(participant(settings, transaction))
        return made[-1]

    yield make
    for producer in made:
        producer.close(10)


def values(kafka, topic, count):
    return sorted(read_topic(kafka.bootstrap_servers, topic, count).value)


def test_records_of_all_participants_are_committed_together(kafka, topic, owner, join):
    with pytest.raises(IllegalStateError, match="call begin_transaction"):
        share(owner)
    for round_number in range(2):
        owner.begin_transaction()
        transaction, senders = share(owner), []
        for name in (b"a", b"b"):
            producer = join(transaction)
            for partition in (0, 1):
                producer.send(topic, b"%s%d" % (name, round_number), partition=partition)
            producer.flush()
            for call in (producer.init_transactions, producer.begin_transaction, producer.commit_transaction):
                with pytest.raises(IllegalStateError, match="needs a transactional producer"):
                    call()
            senders.append(sender_of(producer))
            producer.close()
        assert senders[0] == senders[1]
        assert senders[0].address == sender_of(owner).address
        assert len(values(kafka, topic, 4 * round_number)) == 4 * round_number
        path = sender_of(owner).address
        found = last_sequences(path, transaction.producer_id, [(topic, 0), (topic, 1), (topic, 2)])
        start = 3 * round_number  # two records, and the end of the first transaction
        assert found[topic, 0] == found[topic, 1] == (transaction.epoch, 1, start)
        assert found[topic, 2][1:] == (-1, -1)
        owner.send_offsets_to_transaction({(topic, 0): round_number}, "g")
        owner.commit_transaction()
        assert committed_offset(path, "g", topic, 0) == (round_number, "")
    assert values(kafka, topic, 8) == sorted([b"a0", b"b0", b"a1", b"b1"] * 2)


def test_an_abort_tells_the_broker_although_the_owner_has_sent_nothing(kafka, topic, owner, join):
    owner.begin_transaction()
    producer = join(share(owner))
    producer.send(topic, b"aborted", partition=0)
    producer.flush()
    owner.abort_transaction()
    owner.begin_transaction()
    owner.send(topic, b"committed", partition=0)
    owner.commit_transaction()
    assert values(kafka, topic, 1) == [b"committed"]
    with pytest.raises(KafkaError):
        producer.send(topic, b"late", partition=0).result(20)
    assert values(kafka, topic, 1) == [b"committed"]


def test_a_newer_owner_fences_owner_and_participants(kafka, topic, owner, join, make_producer, settings):
    owner.begin_transaction()
    producer = join(share(owner))
    producer.send(topic, b"old", partition=0)
    producer.flush()
    newer = make_producer(**settings)
    newer.init_transactions()
    with pytest.raises(KafkaError):
        producer.send(topic, b"late", partition=0).result(20)
    with pytest.raises(ProducerFencedError):
        owner.abort_transaction()
    assert values(kafka, topic, 0) == []


def test_an_offset_of_an_open_transaction_is_waited_for(topic, owner):
    path = sender_of(owner).address
    assert committed_offset(path, "h", topic, 0) == (-1, "")
    owner.begin_transaction()
    owner.send_offsets_to_transaction({(topic, 0): 5}, "h")
    timer = threading.Timer(1, owner.commit_transaction)
    timer.start()
    assert committed_offset(path, "h", topic, 0) == (5, "")
    timer.join()


def run_participant(directory, settings, transaction, topic):
    """Send a record from a process with a sender of its own, as on another host. Return the address of the sender."""
    program = (
        "import json, sys\n"
        "from cyproducer.producer.shared_transaction import Shared, participant, sender_of\n"
        "settings, transaction, topic = json.loads(sys.argv[1])\n"
        "producer = participant(settings, Shared(*transaction))\n"
        "producer.send(topic, b'x', partition=0)\n"
        "producer.flush()\n"
        "print(sender_of(producer).address)\n"
        "producer.close()\n"
    )
    made = subprocess.run(
        [sys.executable, "-c", program, json.dumps([settings, transaction, topic])],
        env=os.environ | {"CYPRODUCER_RUNTIME_DIR": str(directory)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert made.returncode == 0, made.stderr
    return made.stdout.strip()


@pytest.mark.long
@pytest.mark.parametrize("end", ["commit_transaction", "abort_transaction"])
def test_a_sender_on_another_host_ends_soon_after_the_transaction(kafka, topic, owner, settings, short_tmp, end):
    """It asks the coordinator, as the process that ends the transaction is not one of its front-ends."""
    directory = short_tmp / f"other-{end[0]}"
    directory.mkdir(mode=0o700)
    owner.begin_transaction()
    transaction = share(owner)
    address = run_participant(directory, settings, transaction, topic)
    time.sleep(8)  # it asks every 5 s
    row = status(address)[0]["transactions"][0]
    assert (row["transactional_id"], row["participants"]) == (topic, 0)
    assert run_participant(directory, settings, transaction, topic) == address  # it continues the sequences
    getattr(owner, end)()
    assert values(kafka, topic, 2 * (end[0] == "c")) == [b"x"] * 2 * (end[0] == "c")
    deadline = time.monotonic() + 60
    while os.path.exists(address):
        assert time.monotonic() < deadline, "the sender keeps the row"
        time.sleep(0.1)


def test_a_topic_that_cannot_exist_is_an_error(owner):
    with pytest.raises(TransactionQueryError, match="INVALID_TOPIC_EXCEPTION"):
        last_sequences(sender_of(owner).address, 7, [("a/b", 0)])
