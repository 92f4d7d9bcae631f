"""Tests each version of Produce and Metadata from Kafka 2.1 to 4.3, and topic ids, which Produce 13 has for names."""

import pytest
from confluent_kafka.admin import AdminClient
from kfake.codes import METADATA, PRODUCE
from kfake.scripted_broker import Fault, ScriptedBroker
from support.consumer import read_topic
from support.engine_rig import EngineRig
from support.fault_rig import Rig
from support.front_end import run_until, topic_number
from support.process import wait_until

from cyproducer import errors
from cyproducer.codes import INCONSISTENT_TOPIC_ID, REBOOTSTRAP_REQUIRED, UNKNOWN_TOPIC_ID, UNKNOWN_TOPIC_OR_PARTITION
from cyproducer.protocol.kafka_messages import ApiKey
from cyproducer.protocol.schema import SUPPORTED


def round_trip(broker: ScriptedBroker) -> None:
    with Rig(broker) as rig:
        rig.attach()
        for partition in range(len(broker.partitions)):
            rig.send(0, partition)
        rig.finish()
        assert set(rig.errors(0)) == {0}


def test_the_newest_versions_are_those_of_kafka_4_3():
    assert SUPPORTED[PRODUCE] == (3, 13)
    assert SUPPORTED[METADATA] == (1, 13)


@pytest.mark.parametrize("version", range(SUPPORTED[PRODUCE][0], SUPPORTED[PRODUCE][1] + 1))
def test_each_version_of_produce(version):
    with ScriptedBroker(produce_version=version) as broker:
        round_trip(broker)
        assert broker.versions[PRODUCE] == {4 if version == 5 else version}


@pytest.mark.parametrize(("version", "codec"), [(6, 0), (7, 4)])
def test_zstd_needs_produce_7(version, codec):
    """An older broker would refuse it. The scripted broker refuses it, too: it cannot decompress it."""
    with ScriptedBroker(produce_version=version) as broker, Rig(broker) as rig:
        rig.attach(compression_type="zstd")
        rig.deliver(0, 0, size=1000)
        assert {each for _, attributes in broker.produced for each in attributes} == {codec}


@pytest.mark.parametrize("version", range(SUPPORTED[METADATA][0], SUPPORTED[METADATA][1] + 1))
def test_each_version_of_metadata(version):
    """Topic ids come with version 10. Without them a broker with Produce 13 gets version 12."""
    with ScriptedBroker(metadata_version=version) as broker:
        round_trip(broker)
        assert broker.versions[METADATA] == {version}
        assert broker.versions[PRODUCE] == {13 if version >= 10 else 12}


def test_a_topic_without_an_id_is_sent_by_its_name():
    with ScriptedBroker() as broker:
        broker.has_ids = False
        round_trip(broker)
        assert broker.versions[PRODUCE] == {12}


@pytest.mark.parametrize("code", [UNKNOWN_TOPIC_ID, INCONSISTENT_TOPIC_ID])
def test_a_wrong_topic_id_is_retried_with_newer_metadata(broker, rig, code):
    rig.attach()
    asked = broker.metadata_requests
    broker.faults.append(Fault(code=code))
    rig.send(0, 0)
    rig.finish()
    assert rig.errors(0) == [0]
    run_until(rig.engine, lambda: broker.metadata_requests > asked)  # the retry need not wait for it
    assert broker.states_asked == 0, "the batch was not appended, so the producer's state is not in question"


def test_batches_of_a_topic_that_was_created_again_go_to_the_new_one():
    """The broker refuses the id of the old topic. The new log has no producer, so the sequences begin again."""
    with ScriptedBroker(partitions=1, nodes=1) as broker, Rig(broker) as rig:
        rig.begin()
        broker.delete()
        broker.create(1)
        broker.partitions[0].forgot = False  # a first sequence other than 0 is a complaint
        for _ in range(3):
            rig.send(0, 0)
        rig.settle()
        assert rig.errors(0) == [0, 0, 0, 0]
        assert [rig.heard[0][slot][0] for slot in (1, 2, 3)] == [0, 2, 4]
        assert broker.complaints == []
        first = broker.partitions[0].batches[0]
        assert (first.epoch, first.first) == (1, 0), first.producer_id


def test_a_batch_that_a_deleted_topic_refused_is_in_no_log():
    """UNKNOWN_TOPIC_OR_PARTITION may come after the append, UNKNOWN_TOPIC_ID may not."""
    with ScriptedBroker(partitions=1, nodes=1) as broker, Rig(broker) as rig:
        rig.begin(delivery_timeout_ms=1000)
        broker.delete()
        rig.deliver(0, 0)
        assert rig.errors(0) == [0, UNKNOWN_TOPIC_OR_PARTITION]


@pytest.mark.parametrize("strategy", ["rebootstrap", "none"])
def test_a_metadata_response_can_demand_to_bootstrap_again(strategy):
    """Metadata 13 has an error for the whole response (KIP-1102)."""

    def demand_it(answer: dict) -> None:
        answer["error_code"] = REBOOTSTRAP_REQUIRED

    with ScriptedBroker(bootstrap_apart=True) as broker, Rig(broker, metadata_recovery_strategy=strategy) as rig:
        rig.begin()
        metadata = rig.engine._cluster
        assert not metadata.bootstrapping
        broker.lies = demand_it
        metadata.request_update()
        run_until(rig.engine, lambda: "129" in metadata.last_error or "REBOOTSTRAP" in metadata.last_error)
        assert metadata.bootstrapping == (strategy == "rebootstrap")
        broker.lies = None
        rig.send(0, 0)
        rig.finish()
        assert rig.errors(0) == [0, 0]


def test_a_real_broker_gets_topic_ids(kafka, new_topic):
    """With names, the broker would take the batch for the new topic without a retry."""
    topic = new_topic(1)
    with EngineRig(kafka.bootstrap_servers) as rig:
        front_end, engine = rig.attach(), rig.engine
        number = topic_number(engine, front_end, topic)
        rig.deliver(front_end, 0, number)
        assert engine.stats()["totals"]["retries"] == 0
        versions = {each.version_of(ApiKey.PRODUCE) for each in engine._connections if each.takes_requests}
        assert versions == {13}
        former = engine._cluster.topics[topic].topic_id
        admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers, "log_level": 0})
        for future in admin.delete_topics([topic]).values():
            future.result(30)
        wait_until(lambda: topic not in admin.list_topics(timeout=30).topics, 30, "the end of the topic")
        kafka.create_topic(topic, 1)
        assert engine._cluster.topics[topic].topic_id == former
        rig.deliver(front_end, 1, number)
        assert engine.stats()["totals"]["retries"] > 0
        assert engine._cluster.topics[topic].topic_id != former
    assert read_topic(kafka.bootstrap_servers, topic, 1).value == [b"1"]


def test_a_later_batch_in_the_log_of_a_new_topic_proves_nothing_about_an_earlier_one():
    """Brokers without topic ids: the later one is the first in the new log, which begins with any sequence."""
    with ScriptedBroker(partitions=1, nodes=1) as broker, Rig(broker, request_timeout_ms=300) as rig:
        broker.has_ids = False
        rig.begin()
        broker.faults.append(Fault(code=UNKNOWN_TOPIC_OR_PARTITION, delay=0.6))  # the answers come after the timeout
        for requests in (2, 3):
            rig.send(0, 0)
            run_until(rig.engine, lambda requests=requests: broker.produce_requests == requests)
            if requests == 2:
                broker.delete()
                broker.create(1)
        rig.settle()
        assert rig.errors(0) == [0, errors.OUTCOME_UNKNOWN, 0]
        assert [value[:4] for value in broker.values(0)] == [b"0/2/", b"0/2/"]
