"""Tests what a sender does with the batches of a topic that its metadata lacks, for a moment or for good."""

import pytest
from kfake.codes import PRODUCE
from kfake.scripted_broker import Fault, ScriptedBroker
from support.fault_rig import Rig
from support.front_end import run_until

from cyproducer.codes import NOT_LEADER_OR_FOLLOWER, UNKNOWN_TOPIC_OR_PARTITION
from cyproducer.sender.cluster import engine as engine_module


def published(rig):
    """Return (error code, number of partitions) of the topic as front-ends see it."""
    _, error, leaders = rig.front_ends[0].snapshot.read()[3][rig.broker.topic]
    return error, len(leaders)


def delete(rig):
    """Delete the topic. The next batch makes the sender notice it; no request of that batch is left unanswered."""
    rig.broker.delete()
    rig.send(0, 0)
    run_until(
        rig.engine,
        lambda: (
            published(rig) == (UNKNOWN_TOPIC_OR_PARTITION, 0)
            and not any(connection["in_flight"] for connection in rig.engine.stats()["connections"])
        ),
    )


def test_a_batch_outlasts_metadata_of_a_broker_that_is_behind(broker, rig):
    """One answer lacks the topic. Nothing fails, and queued batches go out with the next answer."""
    rig.begin()
    broker.unaware = 1
    broker.faults.append(Fault(code=NOT_LEADER_OR_FOLLOWER))
    rig.send(0, 0)
    run_until(rig.engine, lambda: broker.unaware == 0)
    rig.deliver(0, 1)
    assert rig.errors(0) == [0, 0, 0]
    assert published(rig) == (0, 3)
    rig.check()


def test_queued_batches_of_a_deleted_topic_fail_with_that_reason(broker, rig):
    """The broker refused the batch that was sent before, and the later ones were never sent."""
    rig.begin(delivery_timeout_ms=1500)
    delete(rig)
    asked = broker.produce_requests
    rig.send(0, 0)
    rig.deliver(0, 1)
    assert rig.errors(0) == [0, UNKNOWN_TOPIC_OR_PARTITION, UNKNOWN_TOPIC_OR_PARTITION, UNKNOWN_TOPIC_OR_PARTITION]
    assert broker.produce_requests == asked, "a deleted topic has no leaders"
    assert broker.complaints == []


def test_queued_batches_go_out_when_the_topic_is_created_again(broker, rig):
    rig.attach()
    rig.deliver(0, 2)
    delete(rig)
    rig.send(0, 1)
    broker.create(4)
    run_until(rig.engine, lambda: published(rig) == (0, 4))
    rig.deliver(0, 3)
    assert rig.errors(0)[2:] == [0, 0]
    assert len(broker.values(1)) == len(broker.values(3)) == 2
    assert broker.complaints == []


def test_sequences_start_in_a_new_epoch_when_the_topic_is_created_again(broker, rig):
    """The new log knows no producer, and would accept any first sequence: also that of a second batch in flight."""
    rig.attach()
    rig.deliver(0, 2)
    epoch = broker.partitions[2].batches[0].epoch
    delete(rig)
    broker.create(4)
    run_until(rig.engine, lambda: published(rig) == (0, 4))
    for _ in range(2):
        rig.send(0, 2)
    rig.settle()
    assert not any(rig.errors(0))
    assert [(batch.epoch, batch.first) for batch in broker.partitions[2].batches] == [(epoch + 1, 0), (epoch + 1, 2)]


def test_a_topic_that_was_created_again_is_known_without_topic_ids_too():
    """The epochs of its leaders begin again: they are not mistaken for those of a broker that is behind."""
    with ScriptedBroker(partitions=2, nodes=2) as broker, Rig(broker) as rig:
        rig.attach()
        for _ in range(3):
            broker.move_leaders()
        rig.deliver(0, 0)
        delete(rig)
        broker.create(2)
        run_until(rig.engine, lambda: published(rig) == (0, 2))
        rig.deliver(0, 1)
        assert rig.errors(0)[2] == 0


@pytest.mark.parametrize(("unused_ms", "kept"), [(5_500, False), (4_500, True)])
def test_a_topic_without_batches_is_forgotten_after_metadata_max_idle_ms(broker, monkeypatch, unused_ms, kept):
    with Rig(broker, metadata_max_idle_ms=5000) as rig:
        rig.begin()
        metadata = rig.engine._cluster
        rig.engine._metadata._keep_used_topics(engine_module._now_ms())
        clock = engine_module._now_ms
        monkeypatch.setattr(engine_module, "_now_ms", lambda: clock() + unused_ms)
        before = broker.metadata_requests
        metadata.request_update()
        run_until(rig.engine, lambda: broker.metadata_requests > before and metadata._in_flight is None)
        assert ("t" in metadata.topics) == kept
        rig.send(0, 0)
        rig.finish()
        run_until(rig.engine, lambda: "t" in metadata.topics)


@pytest.mark.parametrize(("version", "asked"), [(8, 2), (9, 1), (13, 1)])
def test_leader_epochs_count_from_metadata_9_on(version, asked):
    """The last response names another leader, with an older epoch. Older brokers may send that for the true leader."""

    def name_an_older_epoch(answer: dict) -> None:
        for topic in answer["topics"]:
            topic["partitions"][0].update(leader_id=2, leader_epoch=0)

    with ScriptedBroker(partitions=1, nodes=2, metadata_version=version) as broker, Rig(broker) as rig:
        rig.attach()
        broker.lies = name_an_older_epoch
        broker.partitions[0].leader = asked
        before = broker.metadata_requests
        rig.engine._cluster.request_update()
        run_until(rig.engine, lambda: broker.metadata_requests > before and not rig.engine._metadata.is_unsettled)
        run_until(rig.engine, lambda: rig.engine._cluster._in_flight is None)
        rig.send(0, 0)
        rig.finish()
        assert {node for _, node, api in broker.requests if api == PRODUCE} == {asked}
