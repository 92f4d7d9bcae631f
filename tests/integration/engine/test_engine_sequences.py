"""Tests what a broker's answer proves about earlier attempts (idempotence.pyx), row by row and at random.

The scripted broker forgets as Kafka does: a restart leaves it the last batch of each producer. Nothing may be in the
log twice or out of order, and every acknowledged batch is there at the reported offset.
"""

import random
from collections import deque

import pytest
from kfake.codes import DESCRIBE_PRODUCERS
from kfake.partition_log import LogBatch
from kfake.scripted_broker import Fault, ScriptedBroker
from support.fault_rig import Rig
from support.front_end import run_until
from support.record_twin import Record, encode_records

from cyproducer import errors
from cyproducer.codes import (
    NOT_ENOUGH_REPLICAS,
    NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    NOT_LEADER_OR_FOLLOWER,
    REQUEST_TIMED_OUT,
    UNKNOWN_PRODUCER_ID,
    UNKNOWN_TOPIC_OR_PARTITION,
)

BROKER = {"partitions": 1, "nodes": 1}


@pytest.fixture
def rig(broker):
    """Yield a rig whose requests time out later than any test takes: only the test ends connections."""
    with Rig(broker, request_timeout_ms=60_000) as rig:
        yield rig


def leave_unanswered(rig: Rig, broker: ScriptedBroker, appended: int, lost: int = 0, records: int = 2) -> None:
    """Make an acknowledged batch, then unanswered ones: `appended` are in the log, `lost` are not."""
    if not rig.front_ends:
        rig.attach(delivery_timeout_ms=60_000)
    rig.deliver(0, 0)
    with broker.lock:
        end = broker.partitions[0].end
        broker.swallow = True
    for number in range(appended + lost):
        if number == appended:
            with broker.lock:
                broker.lose = True
        rig.send_now(0, 0, records=records)
        if number < appended:
            expected = end + (number + 1) * records
            run_until(rig.engine, lambda expected=expected: broker.partitions[0].end == expected)
    with broker.lock:
        broker.swallow = broker.lose = False


@pytest.mark.parametrize("unanswered", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("restarts", [0, 1, 2])
def test_unanswered_batches_after_a_restart_of_the_broker(rig, broker, unanswered, restarts):
    """The restarted broker answers "out of order" for all but the last one. All are acknowledged at their offsets."""
    leave_unanswered(rig, broker, unanswered)
    broker.drop_connections()
    for _ in range(restarts):
        broker.restart()
    rig.finish()
    assert rig.errors(0) == [0] * (1 + unanswered)
    assert [rig.heard[0][slot][0] for slot in range(1 + unanswered)] == [2 * n for n in range(1 + unanswered)]
    rig.send(0, 0)
    rig.finish()


@pytest.mark.parametrize("appended", [0, 1, 2, 3])
@pytest.mark.parametrize("lost", [1, 2])
def test_some_of_the_unanswered_batches_were_appended(rig, broker, appended, lost):
    """The engine finds out which ones are not in the log, and sends those."""
    leave_unanswered(rig, broker, appended, lost)
    broker.restart()
    rig.finish()
    assert rig.errors(0) == [0] * (1 + appended + lost)
    assert len(broker.values(0)) == 2 * (1 + appended + lost)


def test_an_offset_that_does_not_follow_is_not_known(rig, broker):
    """Records of another producer lie between: the batches are in the log, at unknown offsets."""
    rig.attach()
    other = rig.attach(enable_idempotence=False)
    leave_unanswered(rig, broker, 1)
    with broker.lock:
        broker.partitions[0].append(LogBatch(-1, -1, -1, 1, encoded=encode_records([Record(0, None, b"another's")], 0)))
        broker.swallow = True
    for _ in range(2):
        rig.send_now(0, 0)
    run_until(rig.engine, lambda: broker.partitions[0].end == 9)
    broker.swallow = False
    broker.restart()
    rig.settle()
    assert rig.errors(0) == [0] * 4
    assert [rig.heard[0][slot][0] for slot in range(4)] == [0, -1, -1, 7]
    assert rig.errors(other) == []
    assert len(broker.values(0)) == 9


def test_merged_batches_after_a_restart_of_the_broker(rig, broker):
    rig.begin(3, linger_ms=20)
    broker.swallow = True
    for _ in range(3):
        slots = [len(sent) for sent in rig.sent]
        for index in range(3):
            rig.send(index, 0, seal=False)
        run_until(
            rig.engine,
            lambda slots=slots: all(
                front_end.sent_word(slot) for front_end, slot in zip(rig.front_ends, slots, strict=True)
            ),
        )
    run_until(rig.engine, lambda: broker.partitions[0].end == 20)
    broker.swallow = False
    broker.restart()
    rig.finish()
    assert all(rig.heard[index][slot][0] >= 0 for index in range(3) for slot in range(len(rig.sent[index])))
    assert len(broker.values(0)) == 20


CODES = {
    "7,7,7": [(REQUEST_TIMED_OUT, True)] * 3,
    "3,3,3": [(UNKNOWN_TOPIC_OR_PARTITION, True)] * 3,
    "6,6,6": [(NOT_LEADER_OR_FOLLOWER, True)] * 3,
    "20,19,19": [(NOT_ENOUGH_REPLICAS_AFTER_APPEND, True), *[(NOT_ENOUGH_REPLICAS, False)] * 2],
    "7 ten times": [(REQUEST_TIMED_OUT, True)] * 10,
}


@pytest.mark.parametrize("codes", CODES.values(), ids=CODES.keys())
@pytest.mark.parametrize("restart", [False, True], ids=["", "then a restart"])
def test_an_appended_batch_is_refused_again_and_again_while_later_ones_are_acknowledged(rig, broker, codes, restart):
    """Later batches do not push it out of the broker's memory of five. After a restart those behind it prove it."""
    rig.begin()
    broker.results[b"0/5/0"] = deque(codes)
    for number in range(30):
        rig.send(0, 0)
        rig.engine.run(1)
        if restart and number == 15:
            broker.restart()
    rig.finish()
    assert rig.errors(0) == [0] * 31
    assert len(broker.values(0)) == 62
    # not all if a later batch was in flight already: its acknowledgement tells where this one is
    assert len(broker.results[b"0/5/0"]) < len(codes), "the errors were not met"


def test_a_broker_without_state_says_nothing_of_an_earlier_attempt(rig, broker):
    """Kafka before 2.4 answers UNKNOWN_PRODUCER_ID: an unsure batch is not sent in a new epoch."""
    leave_unanswered(rig, broker, 2)
    broker.faults.append(Fault(code=UNKNOWN_PRODUCER_ID))
    broker.forget()
    broker.drop_connections()
    rig.finish()
    assert rig.errors(0) == [0, errors.OUTCOME_UNKNOWN, errors.OUTCOME_UNKNOWN]
    assert len(broker.values(0)) == 6
    rig.send(0, 0)
    rig.finish()


@pytest.mark.parametrize("unanswered", [1, 2, 5])
def test_a_broker_that_has_lost_the_state_of_a_producer_is_asked_before_a_batch_is_sent_again(rig, broker, unanswered):
    """The broker would append any sequence: an unsure batch ends as unknown, and the next batch begins an epoch."""
    leave_unanswered(rig, broker, unanswered)
    broker.forget()
    broker.drop_connections()
    rig.settle()
    assert broker.states_asked == 1
    assert rig.errors(0) == [0, *[errors.OUTCOME_UNKNOWN] * unanswered]
    rig.send(0, 0)
    rig.finish()
    assert len(broker.values(0)) == 4 + 2 * unanswered
    assert broker.partitions[0].batches[-1].epoch == 1
    assert broker.partitions[0].batches[-1].first == 0


@pytest.mark.parametrize("refusals", [1, 3])
def test_the_state_is_asked_for_again_when_an_attempt_was_refused(rig, broker, refusals):
    """The state expires while an unsure batch is refused for other reasons: the earlier answer is out of date."""
    rig.begin()
    broker.results[b"0/1/0"] = deque(
        [
            (NOT_ENOUGH_REPLICAS_AFTER_APPEND, True),
            *[(NOT_ENOUGH_REPLICAS, False)] * refusals,
        ]
    )
    broker.faults.extend([*[Fault()] * refusals, Fault(forget=True)])
    rig.deliver(0, 0)
    assert rig.errors(0) == [0, errors.OUTCOME_UNKNOWN]
    assert len(broker.values(0)) == 4
    rig.send(0, 0)
    rig.finish()


def test_after_the_loss_of_the_state_the_next_epoch_begins_without_one(rig, broker):
    """A node that is not leader yet refuses the first batch, which is sent again: no state can be missing."""
    leave_unanswered(rig, broker, 2)
    broker.forget()
    broker.drop_connections()
    run_until(rig.engine, lambda: rig.engine.undelivered() == 0)
    broker.faults.append(Fault(code=NOT_LEADER_OR_FOLLOWER))
    rig.send(0, 0)
    rig.finish()
    assert broker.states_asked == 2
    assert rig.errors(0) == [0, errors.OUTCOME_UNKNOWN, errors.OUTCOME_UNKNOWN, 0]


def test_batches_that_were_never_acknowledged_need_no_state(rig, broker):
    """The broker knows nothing of the producer because nothing was appended."""
    rig.attach()
    broker.faults.append(Fault(close="before"))
    rig.send(0, 0)
    rig.finish()
    assert broker.states_asked == 1
    assert rig.errors(0) == [0]


@pytest.mark.parametrize("code", [29, -1])
def test_a_broker_that_does_not_say_whether_it_has_the_state(rig, broker, caplog, code):
    """The broker is assumed to have the state, like brokers before 2.8, which cannot be asked."""
    broker.states_code = code
    caplog.set_level("INFO")
    for _ in range(2):
        leave_unanswered(rig, broker, 2)
        broker.restart()
        rig.settle()
    rig.check()
    assert rig.errors(0) == [0] * 6
    assert sum("does not say whether" in message for message in caplog.messages) == 1


def test_a_broker_that_is_no_leader_any_more_is_asked_again():
    with ScriptedBroker(partitions=1, nodes=2) as broker, Rig(broker, request_timeout_ms=60_000) as rig:
        leave_unanswered(rig, broker, 2)
        broker.states_code = NOT_LEADER_OR_FOLLOWER
        broker.drop_connections()
        run_until(rig.engine, lambda: broker.states_asked >= 2)
        broker.states_code = 0
        broker.move_leaders()
        rig.finish()
        assert rig.errors(0) == [0] * 3


def test_a_broker_before_kafka_2_8_is_not_asked():
    with ScriptedBroker(partitions=1, nodes=1) as broker:
        broker.apis_left_out = {DESCRIBE_PRODUCERS}
        with Rig(broker, request_timeout_ms=60_000) as rig:
            leave_unanswered(rig, broker, 3)
            broker.restart()
            rig.finish()
            assert rig.errors(0) == [0] * 4


@pytest.mark.parametrize("seed", range(12))
def test_any_mixture_of_lost_answers_restarts_and_errors(seed):
    """Nothing is ever in the log twice or out of order, and acknowledged batches are at their offsets."""
    chance = random.Random(seed)
    with ScriptedBroker(partitions=2, nodes=2) as broker, Rig(broker, request_timeout_ms=150) as rig:
        for _ in range(3):
            rig.attach(linger_ms=chance.choice([0, 2]))
        for _ in range(60):
            happens = chance.random()
            if happens < 0.15:
                broker.restart()
            elif happens < 0.2:
                broker.move_leaders()
            elif happens < 0.5:
                fault = chance.choice(
                    [
                        {"hang": "appended"}, {"hang": "lost"}, {"close": "after"}, {"close": "before"},
                        {"code": REQUEST_TIMED_OUT, "after_append": True}, {"code": NOT_ENOUGH_REPLICAS},
                        {"partial": 9}, {"code": NOT_LEADER_OR_FOLLOWER, "after_append": True}, {"delay": 0.03},
                        {"restart": True},
                    ]
                )  # fmt: skip
                broker.faults.append(Fault(**fault, partitions=chance.choice([None, (0,), (1,)])))
            for _ in range(chance.randrange(4)):
                rig.send(chance.randrange(3), chance.randrange(2), seal=chance.random() < 0.5)
            rig.engine.run(chance.randrange(5))
        broker.faults.clear()
        rig.finish(60)
        assert {error for index in range(3) for error in rig.errors(index)} == {0}
