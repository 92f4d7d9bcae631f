"""Tests batches that the engine sends in parts, on a scripted cluster: too large ones, and those with bad records."""

import contextlib
import signal

import pytest
from kfake.scripted_broker import Fault, ScriptedBroker
from support.build import is_debug
from support.crashpoints import points
from support.engine_host import EngineEndedError
from support.fault_rig import INVALID_RECORD, NOW, Rig, _is_poison
from support.front_end import run_until
from support.process import wait_until
from support.takeover_rig import TakeoverRig

from cyproducer import errors
from cyproducer.codes import MESSAGE_TOO_LARGE, NOT_ENOUGH_REPLICAS, NOT_LEADER_OR_FOLLOWER

LARGEST = 1500
TEXTS = 8  # of the broker, that a front-end has not read
RECORDS, SIZE = 10, 350  # of a batch, which fits into one slot; three records fit into LARGEST

#: Points of merged batches, which this traffic may not have; test_takeover_points reaches them.
UNREACHED = {"split.all-shed", "split.shed", "split.part-prepared", "split.committed", "split.part-assigned"}


@pytest.fixture
def broker():
    with ScriptedBroker(partitions=1, nodes=1) as broker:
        broker.largest = LARGEST
        yield broker


def send_values(rig: Rig, index: int, values: list[bytes]) -> None:
    """Send one batch with these values to partition 0."""
    slot = len(rig.sent[index])
    rig.sent[index].append((0, values))
    rig.front_ends[index].send(slot, [(NOW, None, value) for value in values], topic=rig.number, partition=0)


def values_of(index: int, slot: int, bad: set[int], count: int) -> list[bytes]:
    return [b"%d/%d/%d" % (index, slot, n) + (b"!" if n in bad else b"") for n in range(count)]


# ---------------------------------------------------------------- too large


@pytest.mark.parametrize("settings", [{}, {"acks": 1, "enable_idempotence": False}, {"retries": 0}], ids=str)
def test_all_records_of_a_batch_that_is_too_large_are_written(rig, broker, settings):
    rig.attach(**{"enable_idempotence": "retries" not in settings, **settings})
    rig.send(0, 0, records=RECORDS, size=SIZE)
    rig.finish()
    assert rig.results(0, 0) == [(n, 0) for n in range(RECORDS)]


def test_the_parts_need_no_new_epoch(rig, broker):
    rig.attach()
    rig.send(0, 0, records=RECORDS, size=SIZE)
    rig.send(0, 0)
    rig.finish()
    assert {batch.epoch for batch in broker.partitions[0].batches} == {0}


def test_later_batches_are_split_before_they_are_sent(rig, broker):
    rig.attach()
    rig.deliver(0, 0, records=RECORDS, size=SIZE)
    refused, requests = broker.refused, broker.produce_requests
    for _ in range(4):
        rig.send(0, 0, records=RECORDS, size=SIZE)
    rig.finish()
    assert broker.refused == refused
    assert broker.produce_requests - requests <= 4 * 5


def test_a_limit_that_is_raised_is_noticed(rig, broker):
    rig.attach()
    rig.deliver(0, 0, records=RECORDS, size=SIZE)
    broker.largest = 10**6
    send_values(rig, 0, [b"0/1/0" + b"x" * 5000])
    rig.settle()
    requests = broker.produce_requests
    rig.send(0, 0, records=RECORDS, size=SIZE)
    rig.finish()
    assert broker.produce_requests - requests == 1


@pytest.mark.parametrize("at", [0, 4, 9])
def test_only_a_record_that_is_too_large_itself_fails(rig, broker, at):
    rig.attach()
    values = [b"0/0/%d" % n + b"x" * (2000 if n == at else 20) for n in range(10)]
    send_values(rig, 0, values)
    rig.finish()
    assert [error for _, error in rig.results(0, 0)] == [MESSAGE_TOO_LARGE if n == at else 0 for n in range(10)]


def test_merged_batches_that_are_too_large_by_themselves(rig, broker):
    rig.attach_many(3, linger_ms=30)
    for index in range(3):
        rig.send(index, 0, records=RECORDS, size=SIZE, seal=False)
    rig.finish()
    assert [rig.errors(index) for index in range(3)] == [[0]] * 3


def test_compressed_parts(rig, broker):
    rig.attach(compression_type="gzip")
    values = [b"0/0/%d" % n + bytes(n * 7 + k * k & 255 for k in range(SIZE)) for n in range(RECORDS)]
    broker.largest = 700
    send_values(rig, 0, values)
    rig.finish()
    assert rig.errors(0) == [0]


def test_with_acks_zero_the_records_count_as_failed(rig, broker):
    rig.attach(acks=0, enable_idempotence=False)
    rig.deliver(0, 0, records=RECORDS, size=SIZE)
    assert rig.heard[0][0] == (-1, 0)
    assert [(code, count) for _, _, code, count in rig.failures + rig.engine.take_failures()] == [
        (MESSAGE_TOO_LARGE, RECORDS)
    ]


@pytest.mark.parametrize("after", [1, 2, 3])
@pytest.mark.parametrize(
    "fault",
    [
        Fault(hang="appended"),
        Fault(hang="lost"),
        Fault(close="after"),
        Fault(code=NOT_ENOUGH_REPLICAS),
        Fault(code=NOT_LEADER_OR_FOLLOWER),
    ],
    ids=str,
)
def test_a_fault_between_the_parts_neither_loses_nor_doubles(rig, broker, fault, after):
    broker.largest = 1600  # the first parts fit: one that is in doubt is not split again
    rig.begin()
    broker.faults.extend([Fault()] * after + [fault])
    rig.send(0, 0, records=RECORDS, size=SIZE)
    rig.send(0, 0)
    rig.finish()
    assert rig.errors(0) == [0, 0, 0]


def test_leaders_move_between_the_parts():
    with ScriptedBroker(partitions=1, nodes=2) as broker, Rig(broker) as rig:
        broker.largest = LARGEST
        rig.attach()
        # The size of parts that fit is learned first. A former leader may have written what it refuses
        # (NOT_LEADER_OR_FOLLOWER), and a part that may be in the log and is then too large ends with an unknown
        # outcome.
        rig.deliver(0, 0, records=RECORDS, size=SIZE)
        for _ in range(5):
            rig.send(0, 0, records=RECORDS, size=SIZE)
            for _ in range(3):
                rig.engine.run(1)
            broker.move_leaders()
        rig.finish()
        assert rig.errors(0) == [0] * 6


def test_a_delivery_timeout_between_the_parts(broker):
    """What was acknowledged keeps its offset; what may be in the log is unknown; the rest was not written."""
    with Rig(broker, request_timeout_ms=5_000) as rig:
        rig.begin(delivery_timeout_ms=700)
        broker.faults.extend([Fault()] * 3 + [Fault(hang="lost")])
        rig.send(0, 0, records=RECORDS, size=SIZE)
        run_until(rig.engine, lambda: rig.listen() or 1 in rig.heard[0])
        results = rig.results(0, 1)
        acknowledged = [offset for offset, error in results if error == 0]
        assert acknowledged == list(range(2, 2 + len(acknowledged)))
        assert 0 < len(acknowledged) < RECORDS
        assert {error for _, error in results[len(acknowledged) :]} == {errors.OUTCOME_UNKNOWN, errors.DELIVERY_TIMEOUT}
        rig.finish()


def test_a_batch_whose_parts_have_no_row_for_their_results_fails_as_a_whole(rig, broker):
    """A front-end that takes no outcomes uses up its table of extents."""
    broker.largest = 10**6
    broker.refuses = _is_poison
    rig.attach(slots=512)
    rig.front_ends[0].takes_texts = False
    count = 600
    for slot in range(20):
        send_values(rig, 0, values_of(0, slot * 16, set(range(0, count, 2)), count))
        for _ in range(15):
            rig.sent[0].append((1, []))
            rig.heard[0][len(rig.sent[0]) - 1] = (-1, 0)
            rig.released[0].add(len(rig.sent[0]) - 1)
    rig.settle(60)
    assert rig.engine.tables_in_use()["extents"] == 4096 // count * count
    rig.front_ends[0].takes_texts = True
    rig.listen()
    rig.check()
    found = [{error for _, error in rig.results(0, slot * 16)} for slot in range(20)]
    assert found[0] == {0, INVALID_RECORD}
    assert found[-1] == {INVALID_RECORD}


# ---------------------------------------------------------------- named records


@pytest.mark.parametrize(
    "bad", [{0}, {9}, {3}, {3, 4}, {0, 2, 4, 6, 8}, set(range(8)), set(range(1, 10)), set(range(10))], ids=str
)
@pytest.mark.parametrize("settings", [{}, {"acks": 1, "enable_idempotence": False}], ids=str)
def test_only_the_records_that_the_broker_names_fail(rig, broker, bad, settings):
    broker.refuses = _is_poison
    rig.attach(**settings)
    send_values(rig, 0, values_of(0, 0, bad, 10))
    if not settings:  # without idempotence the order may change
        rig.send(0, 0)
    rig.finish()
    assert [error for _, error in rig.results(0, 0)] == [INVALID_RECORD if n in bad else 0 for n in range(10)]
    assert rig.errors(0)[1:] == [0] * (not settings)
    texts = [rig.parts[0][0][n][2] for n in sorted(bad)]
    said = [f"the broker says: record {n} is one that this topic refuses" for n in sorted(bad)]
    assert texts == [*said[:TEXTS], *[""] * len(said[TEXTS:])]


def test_unread_texts_of_records_are_dropped_when_their_places_are_used(rig, broker):
    """A place for a text is used again once the front-end has read the outcome that leads to it."""
    broker.refuses = _is_poison
    rig.attach()
    for unread in (True, False):
        rig.front_ends[0].takes_texts = not unread
        first = len(rig.sent[0])
        for _ in range(12):
            send_values(rig, 0, values_of(0, len(rig.sent[0]), {1}, 3))
            rig.settle()
        texts = [rig.parts[0][slot][1][2] for slot in range(first, first + 12)]
        assert [bool(text) for text in texts] == ([True] * 8 + [False] * 4 if unread else [True] * 12)
        assert rig.engine.tables_in_use()["extents"] == (12 * 3 if unread else 0)
    rig.check()


def test_without_retries_the_others_are_not_sent_again(rig, broker):
    broker.refuses = _is_poison
    rig.attach(acks=1, enable_idempotence=False, retries=0)
    send_values(rig, 0, values_of(0, 0, {3}, 10))
    rig.finish()
    assert {error for _, error in rig.results(0, 0)} == {INVALID_RECORD}


def test_named_records_of_a_merged_batch(rig, broker):
    broker.refuses = _is_poison
    rig.attach_many(3, linger_ms=30)
    for index in range(3):
        rig.send(index, 0, records=3, seal=False, poison=index != 1)
    rig.finish()
    good, bad = [0, 0, 0], [0, 0, INVALID_RECORD]
    assert [[error for _, error in rig.results(index, 0)] for index in range(3)] == [bad, good, bad]


def test_named_records_in_a_part_that_was_too_large(rig, broker):
    broker.refuses = _is_poison
    rig.attach()
    values = [value[:-1] + b"x" * SIZE + value[-1:] for value in values_of(0, 0, {1, 5}, RECORDS)]
    send_values(rig, 0, values)
    rig.finish()
    assert [error for _, error in rig.results(0, 0)] == [INVALID_RECORD if n in {1, 5} else 0 for n in range(RECORDS)]


def test_a_refusal_after_a_lost_answer_is_not_taken_apart(rig, broker):
    """The records may be in the log, so none of them is sent again."""
    rig.attach()
    broker.largest = 10**6
    rig.deliver(0, 0)
    broker.faults.append(Fault(hang="appended"))
    rig.send(0, 0, records=RECORDS, size=SIZE)
    broker.faults.append(Fault(code=MESSAGE_TOO_LARGE))
    rig.finish()
    assert {error for _, error in rig.results(0, 1)} <= {errors.OUTCOME_UNKNOWN, 0}


# ---------------------------------------------------------------- takeover


@pytest.mark.skipif(not is_debug(), reason="a release build has no crash points")
@pytest.mark.parametrize("hit", [1, 2, 3])
@pytest.mark.parametrize(
    "name",
    [
        *sorted(name for name in points() if name.startswith(("split.", "parts.", "extent."))),
        *("write.unsure", "write.whole", "complete.resolved", "complete.acked", "complete.outcome-filled"),
        *("complete.outcome-published", "complete.slot-done", "complete.unlisted", "complete.freed"),
    ],
)
def test_killed_between_the_parts(trigger, crashing_nursery, name, hit):
    """Each record has one result, and is in the log once and in order."""
    with ScriptedBroker(partitions=1, nodes=1) as broker:
        broker.largest = LARGEST
        broker.refuses = _is_poison
        with TakeoverRig(broker, crashing_nursery) as rig:
            rig.attach()
            rig.begin(linger_ms=5)
            trigger.arm(name, "sender", signal.SIGKILL, hit)
            for number in range(3):
                rig.send(0, 0, records=RECORDS, size=SIZE, poison=number == 1)
                rig.send(1, 0, records=4, poison=True, seal=False)
                rig.send(1, 0, records=4, poison=number == 1)
            with contextlib.suppress(EngineEndedError):
                run_until(rig.engine, lambda: trigger.fired or rig.listen() or not any(rig.numbers))
            died = trigger.fired != 0
            trigger.disarm()
            rig.replace()
            rig.finish()
            assert died or name in UNREACHED or hit > 1
            for index in range(2):
                for slot, (_, values) in enumerate(rig.sent[index]):
                    wanted = [INVALID_RECORD if value.endswith(b"!") else 0 for value in values]
                    for (_, error), expected in zip(rig.results(index, slot), wanted, strict=True):
                        # a batch that was in flight may be in the log: if it is refused then, it is not split
                        assert error in (expected, errors.OUTCOME_UNKNOWN)


def test_the_parts_of_an_ended_front_end_are_no_failures_after_a_takeover(nursery):
    """Its first part has its result when the sender is killed. No row keeps that, since nothing would read it."""
    with ScriptedBroker(partitions=1, nodes=1) as broker:
        broker.largest = LARGEST
        broker.faults.extend([Fault(), Fault(), Fault(), Fault(hang="lost")])  # two are refused, one part is written
        with TakeoverRig(broker, nursery) as rig:
            rig.attach()
            rig.send(0, 0, records=RECORDS, size=SIZE)
            rig.engine.detach(rig.front_ends[0].attach_id)
            rig.ended.add(0)
            rig.stop_after(4)
            assert 0 < len(broker.values(0)) < RECORDS
            rig.engine.take_over()
            seen = [rig.engine.look()]
            wait_until(
                lambda: seen.append(rig.engine.look()) or not seen[-1]["undelivered"], 30, "the end of the parts"
            )
            assert [failure for look in seen for failure in look["failures"]] == []
            rig.check()
