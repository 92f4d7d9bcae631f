"""Tests what a sender does with the batches of a topic that its metadata lacks, for a moment or for good."""

from support.fault_rig import Rig
from support.front_end import run_until
from support.scripted_broker import NOT_LEADER, UNKNOWN_TOPIC, Fault, ScriptedBroker

from cyproducer import errors


def published(rig):
    """Return (error code, number of partitions) of the topic as front-ends see it."""
    _, error, leaders = rig.front_ends[0].snapshot.read()[3][rig.broker.topic]
    return error, len(leaders)


def delete(rig):
    """Delete the topic; the next batch makes the sender notice it."""
    rig.broker.delete()
    rig.send(0, 0)
    run_until(rig.engine, lambda: published(rig) == (UNKNOWN_TOPIC, 0))


def test_a_batch_outlasts_metadata_of_a_broker_that_is_behind(broker, rig):
    """One answer lacks the topic. Nothing fails, and queued batches go out with the next answer."""
    rig.attach()
    rig.send(0, 0)
    rig.settle()
    broker.unaware = 1
    broker.faults.append(Fault(code=NOT_LEADER))
    rig.send(0, 0)
    run_until(rig.engine, lambda: broker.unaware == 0)
    rig.send(0, 1)
    rig.settle()
    assert rig.errors(0) == [0, 0, 0]
    assert published(rig) == (0, 3)
    rig.check()


def test_queued_batches_of_a_deleted_topic_fail_with_that_reason(broker, rig):
    """The batch that was sent before may have been in the log; the later ones were never sent."""
    rig.attach(delivery_timeout_ms=1500)
    rig.send(0, 0)
    rig.settle()
    delete(rig)
    asked = broker.produce_requests
    rig.send(0, 0)
    rig.send(0, 1)
    rig.settle()
    assert rig.errors(0) == [0, errors.OUTCOME_UNKNOWN, UNKNOWN_TOPIC, UNKNOWN_TOPIC]
    assert broker.produce_requests == asked, "a deleted topic has no leaders"
    assert broker.complaints == []


def test_queued_batches_go_out_when_the_topic_is_created_again(broker, rig):
    rig.attach()
    rig.send(0, 2)
    rig.settle()
    delete(rig)
    rig.send(0, 1)
    broker.create(4)
    run_until(rig.engine, lambda: published(rig) == (0, 4))
    rig.send(0, 3)
    rig.settle()
    assert rig.errors(0)[2:] == [0, 0]
    assert len(broker.values(1)) == len(broker.values(3)) == 2
    assert broker.complaints == []


def test_a_topic_that_was_created_again_is_known_without_topic_ids_too():
    """The epochs of its leaders begin again: they are not mistaken for those of a broker that is behind."""
    with ScriptedBroker(partitions=2, nodes=2) as broker, Rig(broker) as rig:
        rig.attach()
        for _ in range(3):
            broker.move_leaders()
        rig.send(0, 0)
        rig.settle()
        delete(rig)
        broker.create(2)
        run_until(rig.engine, lambda: published(rig) == (0, 2))
        rig.send(0, 1)
        rig.settle()
        assert rig.errors(0)[2] == 0
