"""Tests the slot word and the rings, used from two processes."""

import contextlib
import os
import random
import signal
import struct
import time
import traceback
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from probe.native import OutcomeRingProbe, SlotProbe, SubmitRingProbe, make_word, split_word

from cyproducer.shm.native import Region

OPEN, READY, TAKEN = 1, 2, 3
PAGE = 4096
TIMEOUT_S = 120.0


@pytest.fixture
def region():
    region = Region.create("cyproducer-test", 64 * PAGE)
    yield region
    region.close()


@contextlib.contextmanager
def child(region: Region, body) -> Iterator[None]:
    """Run `body(region of its own)` in a forked child meanwhile, and check how it ended.

    The mapping is not inherited, the memfd is.
    """
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            body(Region.attach(os.dup(region.fd), region.size, True))
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    try:
        yield
    except BaseException:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        raise
    assert os.waitpid(pid, 0)[1] == 0


def until(met, what: str):
    """Return the first true value of `met()`; the other process gets the processor between two attempts."""
    deadline = time.monotonic() + TIMEOUT_S
    while not (found := met()):
        assert time.monotonic() < deadline, f"the other process did not get to {what}"
        os.sched_yield()
    return found


@given(
    state=st.integers(0, 5),
    generation=st.integers(0, 2**24 - 1),
    count=st.integers(0, 9362),
    size=st.integers(0, 65536),
    head=st.booleans(),
    cont=st.booleans(),
)
def test_a_slot_word_holds_what_was_put_in(state, generation, count, size, head, cont):
    word = make_word(state, generation, count, size, head, cont)
    assert word < 2**64
    assert split_word(word) == (state, generation, count, size, head, cont)


def test_an_append_after_the_seal_fails_and_leaves_the_batch_as_it_was(region):
    owner, other = SlotProbe(region, 0, PAGE), SlotProbe(region, 0, PAGE)
    assert owner.open(0)
    assert owner.append(b"one")
    assert other.seal(0) == (1, b"one")
    assert not owner.append(b"two")
    assert split_word(owner.load()) == (TAKEN, 0, 1, 3, True, False)


def test_a_stale_generation_seals_and_opens_nothing(region):
    owner, late = SlotProbe(region, 0, PAGE), SlotProbe(region, 0, PAGE)
    assert owner.open(0)
    owner.append(b"x")
    assert late.seal(7) is None
    assert late.seal(0) is not None
    owner.free(1)
    assert not owner.open(0)
    assert owner.open(1)
    assert late.seal(0) is None


def test_two_processes_append_and_seal_without_losing_or_inventing_a_record(region):
    """The owner counts its successful commits; the sealer's count and bytes are exactly those, 100 times."""
    rounds = 100
    compared, counts = 40 * PAGE, 32 * PAGE  # rounds that the sealer has finished; what the owner counted in each

    def own(mine: Region) -> None:
        slot = SlotProbe(mine, 0, PAGE)
        tally = mine.memory()
        for generation in range(rounds):
            assert slot.open(generation)
            committed = 0
            while committed < 4000 and slot.append(struct.pack("=IQ", generation, committed)):
                committed += 1
            until(lambda: split_word(slot.load())[0] != OPEN, "the seal")
            struct.pack_into("Q", tally, counts + generation * 8, committed + 1)  # native: stored whole
            until(lambda generation=generation: tally[compared] == (generation + 1) % 256, "the comparison")
            slot.free(generation + 1)

    with child(region, own):
        slot = SlotProbe(region, 0, PAGE)
        with region.memory() as memory:
            for generation in range(rounds):
                for _ in range(random.randrange(2000)):
                    pass
                count, records = until(lambda generation=generation: slot.seal(generation), "the next batch")
                assert records == b"".join(struct.pack("=IQ", generation, index) for index in range(count))
                tally = until(lambda at=counts + generation * 8: struct.unpack_from("Q", memory, at)[0], "its count")
                assert tally == count + 1
                assert split_word(slot.load())[2] == count, "the word changed after the seal"
                memory[compared] = (generation + 1) % 256


@given(
    st.lists(st.one_of(st.none(), st.tuples(st.integers(1, 2), st.integers(0, 2**20), st.integers(0, 2**24 - 1)))),
    st.integers(0, 2**64 - 1),
)
def test_a_submission_ring_gives_what_was_pushed_in_order_from_any_position(steps, start):
    region = Region.create("cyproducer-test", 4 * PAGE)
    struct.pack_into("=Q", region.memory(), 0, start)
    producer = SubmitRingProbe(region, PAGE, 0, 8, start)
    consumer = SubmitRingProbe(region, PAGE, 0, 8, start)
    expected = []
    for step in steps:
        if step is None or len(expected) == 8:
            assert consumer.pop() == (expected.pop(0) if expected else None)
        if step is not None:
            producer.push(*step)
            expected.append(step)
    while expected:
        assert consumer.pop() == expected.pop(0)
    assert consumer.pop() is None
    region.close()


@pytest.mark.parametrize("entries", [4, 64, 1024])
def test_rings_between_two_processes_lose_and_tear_nothing(entries):
    """Entries go there, outcomes come back: the credit that keeps the first ring from overflowing."""
    region = Region.create("cyproducer-test", 64 * PAGE)
    total = 250 * min(entries, 64)

    def answer(mine: Region) -> None:
        submitted = SubmitRingProbe(mine, PAGE, 0, entries)
        outcomes = OutcomeRingProbe(mine, 16 * PAGE, 64, entries)
        for _ in range(total):
            kind, slot, generation = until(submitted.pop, "an entry")
            outcomes.push(slot, generation, slot * 2**32 + generation, -kind)

    with child(region, answer):
        submitted = SubmitRingProbe(region, PAGE, 0, entries)
        outcomes = OutcomeRingProbe(region, 16 * PAGE, 64, entries)
        sent = received = 0
        while received < total:
            while sent < total and sent - received < entries:
                submitted.push(1 + sent % 2, sent, sent * 7 % 2**24)
                sent += 1
            generation = received * 7 % 2**24
            assert until(outcomes.pop, "an outcome") == (
                received,
                generation,
                received * 2**32 + generation,
                -(1 + received % 2),
            )
            received += 1
    region.close()
