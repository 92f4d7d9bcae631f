"""Tests that the leader which a broker names in a Produce response is used at once (KIP-951)."""

import contextlib

import pytest
from confluent_kafka import ElectionType, TopicPartition
from confluent_kafka.admin import AdminClient
from kfake.codes import PRODUCE
from kfake.scripted_broker import Fault, ScriptedBroker
from support.consumer import read_topic
from support.engine_rig import EngineRig
from support.fault_rig import Rig
from support.front_end import run_until, topic_number
from support.process import wait_until

from cyproducer.codes import NOT_ENOUGH_REPLICAS, NOT_LEADER_OR_FOLLOWER

FOREVER_MS = 600_000  # a batch that backs off is not sent again within the test
PATIENT = {"retry_backoff_ms": FOREVER_MS, "retry_backoff_max_ms": FOREVER_MS, "request_timeout_ms": 10_000}


def keep_old_leaders(broker: ScriptedBroker) -> None:
    """Let metadata responses name the present leaders and their epochs for ever."""
    old = [(partition.leader, partition.leader_epoch) for partition in broker.partitions]

    def name_old_leaders(answer: dict) -> None:
        for topic in answer["topics"]:
            for partition, (leader, epoch) in zip(topic["partitions"], old, strict=True):
                partition["leader_id"], partition["leader_epoch"] = leader, epoch

    broker.lies = name_old_leaders


def truth(partition) -> tuple[int, int]:
    return partition.leader, partition.leader_epoch


@pytest.mark.parametrize("version", [10, 11, 12])
def test_the_leader_that_a_broker_names_gets_the_batches_at_once(version):
    """The metadata stays out of date, and the backoff does not end."""
    with ScriptedBroker(produce_version=version) as broker, Rig(broker, **PATIENT) as rig:
        rig.attach()
        keep_old_leaders(broker)
        broker.names_leader = truth
        broker.move_leaders()
        for partition in range(3):
            rig.send(0, partition)
        rig.finish()
        assert rig.errors(0) == [0, 0, 0]


def test_a_named_leader_that_was_not_known_is_added_with_its_address():
    def without_the_last(answer: dict) -> None:
        answer["brokers"] = answer["brokers"][:2]

    with ScriptedBroker(partitions=1, nodes=3) as broker, Rig(broker, **PATIENT) as rig:
        broker.lies = without_the_last
        rig.attach()
        assert sorted(rig.engine._cluster.brokers) == [1, 2]
        broker.names_leader = truth
        broker.partitions[0].leader, broker.partitions[0].leader_epoch = 3, 2
        # the metadata that the error asks for would remove broker 3 again
        rig.engine._cluster.request_update = lambda: None
        rig.send(0, 0)
        rig.finish()
        assert sorted(rig.engine._cluster.brokers) == [1, 2, 3]
        assert rig.errors(0) == [0]


@pytest.mark.parametrize("epoch", [-1, 0, 1], ids=["no epoch", "older", "the known one"])
def test_a_named_leader_without_a_newer_epoch_changes_nothing(epoch):
    with ScriptedBroker(partitions=1, nodes=2) as broker, Rig(broker) as rig:
        rig.attach()
        broker.names_leader = lambda _: (2, epoch)
        broker.faults.append(Fault(code=NOT_LEADER_OR_FOLLOWER))
        rig.send(0, 0)
        rig.finish()
        assert rig.errors(0) == [0]
        assert {node for _, node, api in broker.requests if api == PRODUCE} == {1}


def test_a_newer_epoch_of_the_same_leader_ends_the_backoff():
    with ScriptedBroker(partitions=1, nodes=1) as broker, Rig(broker, **PATIENT) as rig:
        rig.attach()
        broker.faults.append(Fault(code=NOT_ENOUGH_REPLICAS))
        rig.send(0, 0)
        run_until(rig.engine, lambda: rig.engine.stats()["totals"]["retries"] == 1)
        broker.partitions[0].leader_epoch += 1
        metadata = rig.engine._cluster
        metadata._full_not_before_ms = None  # PATIENT also delays a refresh
        metadata.request_update()
        rig.finish()
        assert rig.errors(0) == [0]


def elect(kafka3, topic: str) -> None:
    """Make the preferred replica of partition 0 its leader."""
    admin = AdminClient({"bootstrap.servers": kafka3.bootstrap_servers, "log_level": 0})
    wanted = TopicPartition(topic, 0)
    elected = admin.elect_leaders(ElectionType.PREFERRED, [wanted]).result(30)
    assert elected[wanted] is None, elected[wanted]


def test_a_real_broker_names_the_leader_after_an_election(kafka3, new_topic):
    """Both leaders live, and no metadata is requested after the first: only the response can name the new leader."""
    topic = new_topic(1, replication=3, cluster=kafka3)
    preferred = kafka3.metadata(topic, 1).leaders[0]
    asked = preferred % 3 + 1
    kafka3.kill(preferred)
    wait_until(lambda: kafka3.metadata(topic, asked).leaders[0] not in (preferred, -1), 60, "another leader")
    kafka3.restart(preferred)
    wait_until(lambda: len(kafka3.metadata(topic, asked).brokers) == 3, 60, "three brokers")
    with EngineRig(kafka3.bootstrap_servers) as rig:
        front_end, metadata = rig.attach(), rig.engine._cluster
        number = topic_number(rig.engine, front_end, topic)
        former = metadata.topics[topic].partitions[0].leader_id
        assert former != preferred
        rig.deliver(front_end, 0, number)
        requests = []
        request_body = metadata.request_body
        metadata.request_body = lambda now_ms: requests.append(now_ms) or request_body(now_ms)
        metadata.request_update = lambda: None

        def elected() -> bool:
            if kafka3.metadata(topic, former).leaders[0] == preferred:
                return True  # an election before has succeeded, and another one would be refused
            with contextlib.suppress(AssertionError):  # the preferred replica is not yet in sync
                elect(kafka3, topic)
            return False

        wait_until(elected, 60, "the preferred leader")
        rig.deliver(front_end, 1, number)
        assert requests == []
        assert metadata.topics[topic].partitions[0].leader_id == preferred
    assert sorted(read_topic(kafka3.bootstrap_servers, topic, 2).value) == [b"0", b"1"]
