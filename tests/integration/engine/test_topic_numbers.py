"""Tests that topics which are not used give their numbers back, and that no batch reaches a wrong topic."""

import mmap
import time
from collections.abc import Iterator

import pytest
from kfake.scripted_broker import ScriptedBroker
from support import layout, successor
from support.fault_rig import NOW, Rig
from support.front_end import HEAD, OPEN, PlainFrontEnd, run_until

from cyproducer import errors
from cyproducer.sender.cluster import engine as engine_module

IDLE_MS = 60_000
NUMBER = 0x3FFF
FREE, USED, RETIRED = range(3)
LANE_FREE = 2
FIRST_GENERATION = 2


@pytest.fixture
def clock(monkeypatch) -> list[int]:
    """Return [ms], by which the sender's clock for metadata is ahead."""
    ahead, now_ms = [0], engine_module._now_ms
    monkeypatch.setattr(engine_module, "_now_ms", lambda: now_ms() + ahead[0])
    return ahead


@pytest.fixture
def rig(broker: ScriptedBroker, clock: list[int]) -> Iterator[Rig]:
    with Rig(broker, metadata_max_idle_ms=IDLE_MS) as made:
        made.attach()
        yield made


def topics(rig: Rig) -> set[str]:
    """Return the names that have a number."""
    return set(rig.engine._loop.topics())


def pass_time(rig: Rig, clock: list[int]) -> None:
    """Let metadata_max_idle_ms pass, with an answer of a broker after it."""
    for _ in range(2):  # the first answer finds which topics were used before it
        clock[0] += IDLE_MS + 1
        answered = rig.broker.metadata_requests
        rig.engine._cluster.request_update()
        rig.engine.want_topic(rig.front_ends[0].attach_id, "another")
        run_until(rig.engine, lambda before=answered: rig.broker.metadata_requests > before)
    for _ in range(20):
        rig.engine.run(0)


def give_back(rig: Rig, clock: list[int]) -> None:
    """Let the topic give its number back."""
    pass_time(rig, clock)
    run_until(rig.engine, lambda: rig.broker.topic not in topics(rig))


def identifier(rig: Rig, name: str) -> int:
    """Return number and generation of a topic that is published."""
    return rig.front_ends[0].snapshot.read()[3][name][0]


def rest(rig: Rig) -> None:
    """Run until no list of the sender has the topic."""
    until = time.monotonic() + 0.1
    while time.monotonic() < until:
        rig.engine.run(10)
        rig.engine._loop.take_used_topics()


def come_back(rig: Rig) -> None:
    """Look the topic up again, as a front-end does that finds another generation."""
    rig.engine.want_topic(rig.front_ends[0].attach_id, rig.broker.topic)
    run_until(rig.engine, lambda: len(rig.front_ends[0].snapshot.read()[3].get(rig.broker.topic, (0, 0, b""))[2]) == 3)
    rig.number = identifier(rig, rig.broker.topic)


def test_a_name_that_comes_back_has_another_generation_and_epoch(rig: Rig, clock: list[int]) -> None:
    """The broker knows the producer id: sequence 0 in the same epoch would be a duplicate, and its records lost."""
    rig.deliver(0, 0)
    before = rig.number
    for _ in range(3):
        give_back(rig, clock)
        come_back(rig)
        assert rig.number >> 14 > before >> 14
        before = rig.number
        rig.deliver(0, 0)
    assert rig.errors(0) == [0] * 4
    rig.check()


def test_a_number_gets_another_name(rig: Rig, clock: list[int]) -> None:
    former = rig.number
    give_back(rig, clock)
    names = [f"other-{index}" for index in range(3)]
    for name in names:
        rig.engine.want_topic(rig.front_ends[0].attach_id, name)
    come_back(rig)
    run_until(rig.engine, lambda: set(names) <= set(rig.front_ends[0].snapshot.read()[3]))
    assert former & NUMBER in {identifier(rig, name) & NUMBER for name in names}
    rig.send(0, 1)
    rig.finish()


@pytest.mark.parametrize("reused", [False, pytest.param(True, marks=pytest.mark.breaks_protocol)])
def test_a_batch_with_a_generation_of_another_name_is_a_violation(rig: Rig, clock: list[int], reused: bool) -> None:
    """No correct front-end commits it. It fails, and reaches no topic."""
    give_back(rig, clock)
    if reused:
        come_back(rig)
        rig.number = (rig.number & NUMBER) | FIRST_GENERATION << 14
    rig.send(0, 0)
    run_until(rig.engine, lambda: rig.listen() or 0 in rig.heard[0])
    assert rig.heard[0][0][1] == (errors.INVALID_BATCH if reused else errors.UNKNOWN_PARTITION)
    run_until(rig.engine, lambda: bool(rig.engine.take_violators()) == reused)
    assert rig.broker.values(0) == []


def open_slot(front_end: PlainFrontEnd, slot: int, topic: int) -> None:
    """Open a slot without records, as a front-end that is stopped before it looks at the generation."""
    front_end.write_chunk(
        slot, b"", 0, topic=topic, partition=0, base=NOW, highest=NOW, state=OPEN, flags=HEAD, next_slot=0xFFFFFFFF
    )


def test_a_number_with_an_open_slot_keeps_its_name(rig: Rig, clock: list[int]) -> None:
    """The front-end may have looked at the generation already: what it commits later has the right topic."""
    stopped = rig.front_ends[rig.attach()]
    former = rig.number
    open_slot(stopped, 3, former)
    pass_time(rig, clock)
    assert rig.broker.topic in topics(rig)
    come_back(rig)
    assert rig.number == former
    stopped.send(4, [(NOW, None, b"late")], topic=former, partition=0)
    run_until(rig.engine, lambda: rig.broker.values(0) == [b"late"])
    assert rig.engine.take_violators() == []


def test_a_topic_that_is_used_during_the_search_keeps_its_number(rig: Rig, clock: list[int]) -> None:
    numbers = rig.engine._metadata._numbers
    former = rig.number
    rest(rig)
    assert numbers.retire([rig.broker.topic]) == []
    assert rig.broker.topic not in rig.front_ends[0].snapshot.read()[3], "the generation is odd"
    rig.engine.want_topic(rig.front_ends[0].attach_id, rig.broker.topic)
    while not numbers.search():
        pass
    assert numbers.reclaim() == ([], [])
    assert identifier(rig, rig.broker.topic) == former


def test_a_batch_that_was_committed_before_the_search_is_delivered(rig: Rig, clock: list[int]) -> None:
    numbers = rig.engine._metadata._numbers
    rest(rig)
    rig.send(0, 0)
    assert numbers.retire([rig.broker.topic]) == []
    while not numbers.search():
        pass
    assert numbers.reclaim() == ([], [rig.broker.topic])
    rig.finish()


def test_more_names_than_numbers(rig: Rig, clock: list[int]) -> None:
    """One front-end uses more than 16,384 names over time."""
    attach_id = rig.front_ends[0].attach_id
    numbers = rig.engine._metadata._numbers
    for turn in range(5):
        names = [f"name-{turn}-{index}" for index in range(4_000)]
        for name in names:
            rig.engine.want_topic(attach_id, name)
        metadata = rig.engine._cluster
        for name in names:  # as if it had left the metadata: 4,000 answers take long
            metadata._wanted.pop(name, None)
            metadata.topics.pop(name, None)
        rig.engine._metadata._idle.add(names, engine_module._now_ms())
        run_until(rig.engine, lambda names=names: topics(rig).isdisjoint(names) and not numbers.is_searching(), 60)
    rig.send(0, 2)
    rig.finish()


def test_metrics_of_a_number_begin_anew(rig: Rig, clock: list[int]) -> None:
    rig.deliver(0, 0)
    assert rig.engine.stats()["counts"]["topics"][rig.broker.topic]
    give_back(rig, clock)
    assert rig.broker.topic not in rig.engine.stats()["counts"]["topics"]


def test_a_higher_epoch_than_the_last_one_needs_another_producer_id(rig: Rig, clock: list[int]) -> None:
    """The numbers stay until then."""
    rig.deliver(0, 0)
    state, _ = rig.engine.regions()
    at = partition_row(state, 0)
    at += layout.offset("cyp_partition_row", "identity")
    first = layout.read_from(state, "cyp_identity", at, "producer_id")
    assert layout.read_from(state, "cyp_state_header", 0, "producer_epoch") == 0
    for place in range(2):
        layout.write_to(state, "cyp_identity", at + place * layout.size("cyp_identity"), producer_epoch=32767)
    successor.succeed(rig)
    numbers = rig.engine._metadata._numbers
    run_until(rig.engine, lambda: not rig.engine._loop.take_used_topics())
    assert numbers.retire([rig.broker.topic]) == []
    while not numbers.search():
        pass
    assert numbers.reclaim() == ([], [rig.broker.topic])
    come_back(rig)
    rig.deliver(0, 0)
    assert layout.read_from(rig.engine.regions()[0], "cyp_state_header", 0, "producer_id") != first
    rig.check()


# ---------------------------------------------------------------- takeover in each state


def topic_state(state: int, number: int) -> int:
    table = layout.read_from(state, "cyp_state_header", 0, "topics_offset")
    return table + number * layout.size("cyp_topic_state")


def partition_row(state: int, index: int) -> int:
    table = layout.read_from(state, "cyp_state_header", 0, "partitions_offset")
    return table + index * layout.size("cyp_partition_row")


def test_a_successor_lets_a_retired_number_keep_its_name(rig: Rig, clock: list[int]) -> None:
    former = rig.number
    rest(rig)
    assert rig.engine._metadata._numbers.retire([rig.broker.topic]) == []
    rig.send(0, 0)
    successor.succeed(rig)
    rig.settle()
    assert identifier(rig, rig.broker.topic) == former
    rig.send(0, 0)  # the front-end has not looked the topic up again
    rig.finish()


def test_a_successor_goes_on_giving_a_number_back(rig: Rig, clock: list[int]) -> None:
    former = rig.number & NUMBER
    rest(rig)
    assert rig.engine._metadata._numbers.retire([rig.broker.topic]) == []

    def decide(state: int, _: list[int]) -> None:
        layout.write_to(state, "cyp_topic_state", topic_state(state, former), state=RETIRED)
        layout.write_to(state, "cyp_partition_row", partition_row(state, 1), lane=LANE_FREE)  # one of three

    successor.succeed(rig, decide)
    assert rig.broker.topic not in topics(rig)
    state, _ = rig.engine.regions()
    assert layout.read_from(state, "cyp_topic_state", topic_state(state, former), "state") == FREE
    lanes = [layout.read_from(state, "cyp_partition_row", partition_row(state, index), "lane") for index in range(3)]
    assert lanes == [LANE_FREE] * 3
    come_back(rig)
    assert rig.number & NUMBER == former
    rig.send(0, 2)
    rig.finish()


def test_a_successor_finishes_the_naming_of_a_number(rig: Rig, clock: list[int]) -> None:
    """The predecessor died after it had stored the new name in the state region."""
    former = rig.number & NUMBER
    give_back(rig, clock)
    generation = rig.number >> 14

    def rename(state: int, _: list[int]) -> None:
        row = {"generation": generation + 2, "name": b"renamed\0", "state": USED}
        layout.write_to(state, "cyp_topic_state", topic_state(state, former), **row)

    successor.succeed(rig, rename)
    assert "renamed" in topics(rig)
    run_until(rig.engine, lambda: "renamed" in rig.front_ends[0].snapshot.read()[3])
    assert identifier(rig, "renamed") == former | (generation + 2) << 14
    come_back(rig)
    rig.send(0, 2)
    rig.finish()


def test_rows_of_partitions_may_be_in_any_order(rig: Rig, clock: list[int]) -> None:
    rig.deliver(0, 2)

    def exchange(state: int, _: list[int]) -> None:
        size = layout.size("cyp_partition_row")
        first, last = (partition_row(state, index) for index in (0, 2))
        with mmap.mmap(state, 0) as memory:
            former = memory[first : first + size]
            memory[first : first + size] = memory[last : last + size]
            memory[last : last + size] = former

    successor.succeed(rig, exchange)
    for partition in range(3):
        rig.send(0, partition)
    rig.finish()


def test_a_broker_that_is_down_does_not_keep_the_numbers(rig: Rig, clock: list[int]) -> None:
    """The shares of its partitions wait to be published."""
    for partition in range(3):
        rig.send(0, partition)
    rig.settle()
    numbers = rig.engine._metadata._numbers
    metadata = rig.engine._cluster
    for _ in range(3):
        rig.engine._loop.take_used_topics()
        metadata._wanted.pop(rig.broker.topic)
        metadata.topics.pop(rig.broker.topic)
        assert numbers.retire([rig.broker.topic]) == []  # at once: the shares were not published yet
        while not numbers.search():
            pass
        reclaimed = numbers.reclaim()
        while reclaimed is None:
            rig.engine.run(0)
            reclaimed = numbers.reclaim()
        come_back(rig)
        for partition in range(3):
            rig.send(0, partition)
        rig.settle()
    rig.check()
