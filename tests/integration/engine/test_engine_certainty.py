"""Tests the outcome of an expired batch: whether it is in the log, and with which error its attempts failed.

DELIVERY_TIMEOUT means that it is not there and will not be (`rig.check` compares the log); OUTCOME_UNKNOWN leaves it
open.
"""

import pytest
from kfake.scripted_broker import Fault
from support.fault_rig import Rig
from support.front_end import run_until
from support.takeover_rig import TakeoverRig

from cyproducer import KafkaProducer, errors
from cyproducer.codes import (
    INVALID_RECORD,
    LEADER_NOT_AVAILABLE,
    NETWORK_EXCEPTION,
    NOT_ENOUGH_REPLICAS,
    NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    NOT_LEADER_OR_FOLLOWER,
    REQUEST_TIMED_OUT,
)

MANY = 100_000
PLAIN = {"acks": 1, "enable_idempotence": False}


def answer_all(broker, fault: Fault) -> None:
    with broker.lock:
        broker.faults.extend([fault] * MANY)


def stop_faults(broker) -> None:
    with broker.lock:
        broker.faults.clear()
        broker.without_leader = 0


def cause(rig: Rig, index: int, slot: int) -> int:
    return rig.front_ends[index].explained[slot][0]


@pytest.mark.parametrize("settings", [{}, PLAIN], ids=["idempotent", "acks=1"])
@pytest.mark.parametrize("code", [NOT_ENOUGH_REPLICAS, LEADER_NOT_AVAILABLE])
def test_batch_refused_at_every_attempt_was_not_written(rig, broker, code, settings):
    """The outcome of a batch is unknown if it expires while an attempt is in flight, even its first attempt."""
    index = rig.attach(delivery_timeout_ms=300, **settings)
    answer_all(broker, Fault(code=code))
    for _ in range(6):
        rig.send(index, 0)
        rig.engine.run(1)
    rig.settle()
    stop_faults(broker)
    rig.send(index, 0)
    rig.finish()
    *failed, last = rig.errors(index)
    assert last == 0, "later batches are not delayed by the expired ones"
    assert errors.DELIVERY_TIMEOUT in failed
    assert set(failed) <= {errors.DELIVERY_TIMEOUT, errors.OUTCOME_UNKNOWN}
    # Batches that were never sent name the error of the batch that they were waiting for.
    causes = {error: {cause(rig, index, slot) for slot in range(6) if failed[slot] == error} for error in set(failed)}
    assert causes.pop(errors.DELIVERY_TIMEOUT) == {code}
    assert all(found <= {0, code} for found in causes.values()), "no error came before the end of a first attempt"


@pytest.mark.parametrize(
    ("fault", "code", "time_ms"),
    [
        (Fault(code=NOT_ENOUGH_REPLICAS_AFTER_APPEND), NOT_ENOUGH_REPLICAS_AFTER_APPEND, 100),
        (Fault(code=REQUEST_TIMED_OUT), REQUEST_TIMED_OUT, 100),
        (Fault(close="before"), NETWORK_EXCEPTION, 150),
    ],
    ids=["after append", "timed out", "broken connection"],
)
def test_unsure_batch_is_unknown_and_names_the_last_error(rig, broker, fault, code, time_ms):
    index = rig.attach(delivery_timeout_ms=time_ms)
    answer_all(broker, fault)
    rig.deliver(index, 0)
    assert rig.errors(index) == [errors.OUTCOME_UNKNOWN]
    assert cause(rig, index, 0) == code


def test_batch_in_flight_is_unknown_if_no_error_came_before(rig, broker):
    index = rig.attach(delivery_timeout_ms=100)
    with broker.lock:
        broker.faults.append(Fault(hang="appended"))
    rig.send(index, 0)
    run_until(rig.engine, lambda: rig.listen() or bool(rig.heard[index]))
    assert rig.errors(index) == [errors.OUTCOME_UNKNOWN]
    assert cause(rig, index, 0) == 0
    rig.settle()


@pytest.mark.parametrize("settings", [{}, PLAIN], ids=["idempotent", "acks=1"])
def test_batch_without_a_leader_was_not_written(rig, broker, settings):
    index = rig.attach(delivery_timeout_ms=700, **settings)
    with broker.lock:
        broker.without_leader = MANY
        broker.faults.append(Fault(code=NOT_LEADER_OR_FOLLOWER, move=True))
    rig.deliver(index, 0)
    stop_faults(broker)
    rig.send(index, 0)
    rig.finish()
    first, second = rig.errors(index)
    # With acks=all NOT_LEADER_OR_FOLLOWER can follow an append.
    assert first == (errors.DELIVERY_TIMEOUT if settings else errors.OUTCOME_UNKNOWN)
    assert cause(rig, index, 0) == NOT_LEADER_OR_FOLLOWER
    assert second == 0


def test_batch_without_any_broker_was_not_sent(rig, broker):
    index = rig.attach(delivery_timeout_ms=100)
    with broker.lock:
        broker.without_leader = MANY
    rig.engine.want_topic(rig.front_ends[index].attach_id, "another")  # makes the engine ask for metadata again
    for node in range(1, 3):
        broker.down.add(node)
    broker.drop_connections()
    rig.send(index, 0)
    rig.finish()
    assert rig.errors(index) == [errors.DELIVERY_TIMEOUT]


@pytest.mark.parametrize("settings", [{}, PLAIN], ids=["idempotent", "acks=1"])
def test_one_of_a_merged_batch_expires_and_the_others_go_on_without_it(rig, broker, settings):
    long_timeout = [rig.attach(linger_ms=5, **settings) for _ in range(2)]
    short_timeout = rig.attach(linger_ms=5, delivery_timeout_ms=250, **settings)
    all_three = [long_timeout[0], short_timeout, long_timeout[1]]
    for index in all_three:
        rig.send(index, 0)
    rig.settle()
    answer_all(broker, Fault(code=NOT_ENOUGH_REPLICAS))
    before = rig.engine._loop.totals()["merged"]
    for index in all_three:
        rig.send(index, 0, seal=False)
    run_until(rig.engine, lambda: rig.listen() or 1 in rig.heard[short_timeout])
    assert rig.engine._loop.totals()["merged"] - before == 3
    assert not any(1 in rig.heard[index] for index in long_timeout)
    stop_faults(broker)
    rig.finish()
    assert [rig.errors(index) for index in long_timeout] == [[0, 0]] * 2
    # an attempt may have been in flight at that very moment
    assert rig.errors(short_timeout)[1] in (errors.DELIVERY_TIMEOUT, errors.OUTCOME_UNKNOWN)
    assert cause(rig, short_timeout, 1) == NOT_ENOUGH_REPLICAS


def test_batches_that_expire_amid_unsure_ones(rig, broker):
    """The epoch that closes the gap begins when the unsure batches are settled; nothing is duplicated or reordered."""
    short_timeout, long_timeout = rig.attach(delivery_timeout_ms=200), rig.attach()
    for index in (short_timeout, long_timeout):
        rig.send(index, 0)
    rig.settle()
    with broker.lock:
        broker.faults.extend([Fault(code=NOT_ENOUGH_REPLICAS), Fault(close="after"), Fault(close="before")])
        broker.faults.extend([Fault(code=NOT_ENOUGH_REPLICAS)] * 60)
    for _ in range(4):
        rig.send(short_timeout, 0)
        rig.send(long_timeout, 0)
        rig.engine.run(1)
    rig.finish(30)
    assert set(rig.errors(long_timeout)) == {0}
    assert set(rig.errors(short_timeout)[1:]) <= {0, errors.DELIVERY_TIMEOUT, errors.OUTCOME_UNKNOWN}


def test_the_last_error_outlives_the_sender(broker, nursery):
    with TakeoverRig(broker, nursery) as rig:
        index = rig.attach(delivery_timeout_ms=3000)
        rig.deliver(index, 0)
        answer_all(broker, Fault(code=NOT_ENOUGH_REPLICAS))
        rig.send(index, 0)
        asked = broker.produce_requests + 2
        run_until(rig.engine, lambda: broker.produce_requests >= asked)
        with broker.lock:
            broker.faults.clear()
            broker.swallow = True
            broker.lose = True
        rig.engine.kill()
        rig.engine.take_over()
        run_until(rig.engine, lambda: rig.listen() or 1 in rig.heard[index], 30)
        with broker.lock:
            broker.swallow = broker.lose = False
        broker.drop_connections()
        rig.settle()
        assert rig.errors(index)[1] in (errors.OUTCOME_UNKNOWN, errors.DELIVERY_TIMEOUT)
        assert list(rig.front_ends[index].explained.values())[1][0] in (NOT_ENOUGH_REPLICAS, NETWORK_EXCEPTION)


def test_application_gets_class_code_cause_and_text(foreground, broker):
    """A complete producer and sender: class, code, cause, text, and whether the record can be sent again."""
    sender = foreground(broker.bootstrap_servers, settings={"request_timeout_ms": 500, "retry_backoff_ms": 10}).ready()
    with KafkaProducer(sender=str(sender.socket), delivery_timeout_ms=600, request_timeout_ms=500) as producer:
        producer.send("t", b"first", partition=0).result(60)
        answer_all(broker, Fault(code=NOT_ENOUGH_REPLICAS))
        found = [producer.send("t", b"%d" % number, partition=0).exception(60) for number in range(3)]
        found.append(producer.send_array("t", [b"3"], partition=0).exception(60))
        stop_faults(broker)
        assert producer.send("t", b"last", partition=0).result(60).offset >= 1
    named = [error for error in found if isinstance(error.__cause__, errors.NotEnoughReplicasError)]
    assert named, "a busy machine may take longer than request_timeout_ms for some of the answers, but not for all"
    for error in named:
        assert "the last error was NOT_ENOUGH_REPLICAS: fewer replicas are in sync" in error.message
    for error in found:
        if error.code == errors.DELIVERY_TIMEOUT:
            assert isinstance(error, errors.KafkaTimeoutError)
            assert error.retriable
        else:  # an attempt was in flight at that very moment
            assert type(error) is errors.OutcomeUnknownError
            assert not error.retriable
    written = set(broker.values(0))
    certain = {b"%d" % number for number, error in enumerate(found) if error.code == errors.DELIVERY_TIMEOUT}
    assert not certain & written


# ---------------------------------------------------------------- the broker's error texts


SAYS = "the broker says: "


def said(rig: Rig, index: int) -> list[str]:
    """Return the text of each batch, or of its first record that has one."""
    found = []
    for slot in range(len(rig.sent[index])):
        texts = [text for _, _, text in rig.parts[index][slot].values()]
        found.append(next(filter(None, [rig.front_ends[index].explained[slot][1], *texts]), ""))
    return found


def test_the_brokers_error_text_arrives_with_the_outcome(rig, broker):
    index = rig.attach()
    broker.names_records = False
    for number in range(30):
        broker.says = f"refused for reason {number}, \u20ac" + "." * number * 40
        rig.deliver(index, 0, poison=True)
    assert rig.errors(index) == [INVALID_RECORD] * 30
    for number, text in enumerate(said(rig, index)):
        full = f"{SAYS}refused for reason {number}, \u20ac" + "." * number * 40
        assert text == full.encode()[:476].decode()
    rig.deliver(index, 0)
    assert rig.errors(index)[-1] == 0
    assert said(rig, index)[-1] == ""


def test_the_brokers_text_of_a_record_arrives_if_all_records_of_a_batch_are_refused(rig, broker):
    """With a text for the whole batch, too, as a real broker gives it."""
    index = rig.attach()
    broker.says = "One or more records have been rejected"
    broker.refuses = lambda record: True
    for records in (1, 3):
        rig.send(index, 0, records=records)
        rig.settle()
    assert rig.errors(index) == [INVALID_RECORD] * 2
    texts = [f"{SAYS}record {number} is one that this topic refuses" for number in range(3)]
    assert said(rig, index)[0] == texts[0]
    assert {number: text for number, (_, _, text) in rig.parts[index][1].items()} == dict(enumerate(texts))


def test_unread_error_texts_are_dropped_when_their_ring_is_full(rig, broker):
    index = rig.attach()
    rig.front_ends[index].takes_texts = False
    broker.names_records = False
    broker.says = "no"
    for _ in range(20):
        rig.deliver(index, 0, poison=True)
    assert said(rig, index) == [f"{SAYS}no"] * 8 + [""] * 12


def test_each_owner_of_a_merged_batch_gets_only_its_own_error_text(rig, broker):
    rig.attach_many(3, linger_ms=5)
    broker.says = "a text about the records of all of them"
    for index in range(3):
        rig.send(index, 0, seal=False, poison=index == 1)
    rig.finish()
    assert [rig.errors(index) for index in range(3)] == [[0], [INVALID_RECORD], [0]]
    assert said(rig, 1) == [f"{SAYS}record 3 is one that this topic refuses"]
    assert said(rig, 0) == said(rig, 2) == [""]


def test_the_texts_of_a_front_end_go_on_after_a_takeover(broker, nursery):
    with TakeoverRig(broker, nursery) as rig:
        index = rig.attach()
        broker.names_records = False
        broker.says = "before"
        for _ in range(5):
            rig.deliver(index, 0, poison=True)
        rig.engine.kill()
        rig.engine.take_over()
        broker.says = "after"
        for _ in range(10):
            rig.deliver(index, 0, poison=True)
        texts = [text for _, text in rig.front_ends[index].explained.values()]
        assert texts == [f"{SAYS}before"] * 5 + [f"{SAYS}after"] * 10
