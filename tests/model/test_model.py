"""Checks a model of the shared-memory protocol: every order of steps of owner and sender, each killed anywhere.

The checked code is that of ``cyproducer/shm/{slot,rings,entry}.h`` itself. An explorer takes every access of shared
memory as a step (machine.h describes its memory model: the view machine of C11's release/acquire and sequentially
consistent fences, which includes x86's store buffers). The operations around it (owner.c, sender.c) repeat the call
sequences of ``producer/`` and ``sender/`` by hand.

Checked in every state: I1 (a chunk is in one batch; at the end each word is FREE as its owner left it, none is lost),
I3 (every record whose commit returned is in the log once, with its own offset as its outcome; a record with the outcome
"not sent" is never in the log), I4 (uncommitted records are never sent), I6 (a stale generation changes nothing), I7
(order), I12 (rings never overflow), the hint of the largest timestamp, data races on everything that is not atomic, and
that no thread sleeps for ever. The broker is a log that knows sequences: it does not append a batch a second time.

Covered: a commit against a seal, chains of chunks, hints that are read late, reused slots, an owner killed at any
access, a sender killed at any access with a successor that takes over (and is killed, too), both killed, the last
sender killed, both sides asleep, a front-end that is idle for its sender, a sender that releases a living front-end
and ends when it has delivered the rest. Bounds: 1 to 4 records in chunks of two, 2 or 3 slots, one or two batches in
flight, up to two kills; a load returns one of the last 6 stores of a place.

topics.c does the same for the metadata snapshot: a front-end waits for a topic that its sender, killed up to twice,
enters, stores, changes and announces. No half-written row is read, and no change or wake-up is lost.

numbers.c models a topic number that gets another name, with the opening of a batch and a sender that is killed: every
batch has the name that its front-end meant.

extents.c does the same for batches that are sent in parts: their results share the rows of a table of extents. No
record gets two results, none gets that of another one, and no batch is sent anew of which a part is in the log.

Not covered: load buffering (a load that returns what its own thread stores later), the wrap of a generation after 2^24
batches, a front-end that breaks the protocol (tests/hostile), one that is detached while it lives, merged batches and
their fragments, refusals of the broker, and timers. stress.c runs the same headers on the real memory of this machine,
under ThreadSanitizer.
"""

import functools
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from compiling import EXPLORER, EXTENTS, NUMBERS, TOPICS, changed_headers, compile_c

# history: (slots, states). The states are counted, so that a history that gets smaller does not go unnoticed.
QUICK = {
    "seal": (2, 20_000), "reuse": (2, 15_000), "owner-killed": (2, 150_000), "wake-one": (2, 5_000),
    "idle": (2, 50_000), "sender-killed-early": (2, 7_000), "none-left": (2, 40_000),
    "release-owner-killed": (2, 200_000), "release-sender-killed": (2, 200_000),
}  # fmt: skip
LONG = {
    "seal": (3, 50_000), "owner-killed": (3, 400_000), "wake": (2, 1_000_000), "sender-killed": (2, 500_000),
    "sender-killed-reuse": (2, 2_000_000), "successor-killed": (2, 100_000), "sender-killed-asleep": (2, 800_000),
    "both-killed": (2, 800_000), "sender-killed-idle": (2, 5_000_000),
    "release": (2, 1_000_000),
}  # fmt: skip
STATES_MOST = 6_000_000

# A history that must find the change: (header, text, changed text, history, what is reported).
MUTANTS = {
    "no fence before looking whether the sender sleeps": (
        "rings.h", "cyp_fence_seq_cst(); /* pairs with the fences in cyp_sender_sleeps and cyp_front_end_idles */", "",
        "wake-one", "waits for ever",
    ),
    "no fence before the sender sleeps": (
        "rings.h", "cyp_fence_seq_cst(); /* pairs with the fence in cyp_sender_needs_wake */", "",
        "wake-one", "waits for ever",
    ),
    "no fence before a front-end is idle": (
        "rings.h", "cyp_fence_seq_cst(); /* pairs with that in cyp_sender_needs_wake */", "",
        "idle", "waits for ever",
    ),
    "no fence before looking whether a front-end is idle": (
        "rings.h", "cyp_fence_seq_cst(); /* pairs with the fences in cyp_sender_sleeps and cyp_front_end_idles */", "",
        "idle", "waits for ever",
    ),
    "no fence before a waiter sleeps": (
        "rings.h", "cyp_fence_seq_cst(); /* pairs with the fence in cyp_waiter_needs_wake */", "",
        "wake-one", "waits for ever",
    ),
    "the tail of the submission ring is not released": (
        "rings.h", "cyp_store_release_u64(tail, position + 1); /* pairs with cyp_submit_tail",
        "cyp_store_relaxed_u64(tail, position + 1); /* pairs with cyp_submit_tail",
        "seal", "data race: .* submit_ring",
    ),
    "the tail of the outcome ring is not released": (
        "rings.h", "cyp_store_release_u64(tail, position);", "cyp_store_relaxed_u64(tail, position);",
        "seal", "data race: .* outcome",
    ),
    "a word is looked at without acquiring it": (
        "batch.h", "return cyp_load_acquire_u64(&row->word); /* pairs with the owner's CAS",
        "return cyp_load_relaxed_u64(&row->word); /* pairs with the owner's CAS",
        "seal", "data race",
    ),
    "a commit does not look whether the batch was sealed": (
        "batch.h", "return cyp_cas_u64(&row->word, seen, desired);",
        "(void)seen; cyp_store_release_u64(&row->word, desired); return true;",
        "seal", "I3|I4|counts other records",
    ),
    "the hint's timestamp before its count": (
        "batch.h", "    cyp_store_relaxed_u32(&row->max_count, count);\n    if (raised) {",
        "    if (raised) cyp_store_release_i64(&row->max_timestamp, max_timestamp);\n"
        "    cyp_store_relaxed_u32(&row->max_count, count);\n    if (false) {",
        "seal", "a maximum of timestamps",
    ),
    "a batch is admitted whatever its generation": (
        "batch.h", "return cyp_word_generation(word) == generation && (word & CYP_WORD_HEAD)\n        &&",
        "(void)generation; return (word & CYP_WORD_HEAD)\n        &&",
        "reuse", "malformed|I3|I7",
    ),
    "DONE whatever the generation": (
        "batch.h", "if (cyp_word_generation(seen) == generation) {", "(void)generation; {",
        "reuse", ".",
    ),
    "what is sent is not marked as SENT": (
        "batch.h", "cyp_store_release_u32(sent, generation + 1);", "(void)sent; (void)generation;",
        "none-left", "not sent is in the log",
    ),
    "no fence after the sender has released a front-end": (
        "batch.h", "cyp_fence_seq_cst(); /* pairs with that in cyp_may_commit", "/*",
        "release-owner-killed", "waits for ever|I3",
    ),
    "no fence before looking whether records may be committed": (
        "batch.h", "cyp_fence_seq_cst(); /* pairs with that in cyp_control_end */", "",
        "release-owner-killed", "waits for ever|I3",
    ),
    "records are committed without a look at the control word": (
        "batch.h", "return seen != CYP_CONTROL_RELEASED && seen != CYP_CONTROL_DETACHED;", "(void)seen; return true;",
        "release-owner-killed", "waits for ever|I3",
    ),
    "an entry is RESOLVED before it has its result": (
        "batch.h", "    CYP_SET(entry->error, error);\n",
        "    cyp_store_release_u32(&entry->state, CYP_ENTRY_RESOLVED);\n    CYP_SET(entry->error, error);\n",
        "sender-killed", "I3: a wrong offset",
    ),
}  # fmt: skip

# A dropped fence, a release made relaxed, a check left out: these run always, the others only in the long runs.
ALWAYS = {
    "no fence before looking whether the sender sleeps", "the tail of the submission ring is not released",
    "a commit does not look whether the batch was sealed",
}  # fmt: skip


# The same for the metadata snapshot, with one kill of the sender.
TOPIC_MUTANTS = {
    "changes are not released": (
        "snapshot.h", "cyp_store_release_u64(published, position + 1);",
        "cyp_store_relaxed_u64(published, position + 1);", "not announced|half a row|more partitions",
    ),
    "a row is not released": (
        "snapshot.h", "cyp_store_release_u64(&row->word, word);", "cyp_store_relaxed_u64(&row->word, word);",
        "more partitions than room",
    ),
    "an area of leaders is not released": (
        "snapshot.h", "cyp_store_release_u64(&row->leaders, (uint64_t)room << 32 | at);",
        "cyp_store_relaxed_u64(&row->leaders, (uint64_t)room << 32 | at);", "half a row",
    ),
    "no fence before looking who waits for metadata": (
        "rings.h", "cyp_fence_seq_cst(); /* pairs with the fence in cyp_waiter_sleeps */", "", "waits for ever",
    ),
}  # fmt: skip


WRONG_TOPIC = "to another topic|another generation"

# The same for numbers that get another name, without a kill.
NUMBER_MUTANTS = {
    "no fence before looking at the generation": (
        "batch.h", "cyp_fence_seq_cst(); /* pairs with that in cyp_topic_retire */", "", WRONG_TOPIC,
    ),
    "no fence after a number is retired": (
        "batch.h", "cyp_fence_seq_cst(); /* pairs with that in cyp_topic_is_valid: the owner", "/*",
        WRONG_TOPIC,
    ),
    "the generation is not compared": (
        "batch.h", "return cyp_load_relaxed_u32(&row->generation) == generation;",
        "(void)row; (void)generation; return true;",
        WRONG_TOPIC,
    ),
    "a number has the same generation under another name": (
        "batch.h", "return (cyp_load_relaxed_u32(&row->generation) | 1) + 1;", "(void)row; return 2;",
        WRONG_TOPIC,
    ),
    "a name is compared without its generation": (
        "snapshot.h", "return cyp_topic_is_valid(row, generation) ? generation : 0;",
        "return cyp_load_relaxed_u32(&row->generation);", WRONG_TOPIC,
    ),
    "a slot that is open without records is not found": (
        "batch.h", "if (!(seen & CYP_WORD_HEAD) || state < CYP_OPEN",
        "if (!(seen & CYP_WORD_HEAD) || !cyp_word_count(seen) || state < CYP_OPEN", WRONG_TOPIC,
    ),
}  # fmt: skip

# Mistakes in the order of the calls.
NUMBER_ORDERS = ("CHECK_BEFORE_OPEN", "SEARCH_BEFORE_RETIRE")


# The same for the results of parts.
EXTENT_MUTANTS = {
    "the front-end's position is not acquired": (
        "rings.h", "return cyp_load_acquire_u64(head); /* pairs with the release in OutcomeReader",
        "return cyp_load_relaxed_u64(head); /* pairs with the release in OutcomeReader", "data race: .* extent",
    ),
    "the tail of the outcome ring is not released": (
        "rings.h", "cyp_store_release_u64(tail, position);", "cyp_store_relaxed_u64(tail, position);",
        "data race: .* (outcome|extent)",
    ),
    "a row is FILLED before it has its result": (
        "rings.h", "    CYP_SET(row->slot, filled->slot);\n",
        "    cyp_store_release_u32(&row->state, CYP_EXTENT_FILLED);\n    CYP_SET(row->slot, filled->slot);\n",
        "a record|no record|the rows of a batch",
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def explorer(tmp_path_factory) -> Callable[[int], Path]:
    """Return the explorer for this many slots, with the headers that ship."""
    directory = tmp_path_factory.mktemp("model")
    return functools.cache(lambda slots: compile_c(EXPLORER, directory / f"model{slots}", "-O2", f"-DSLOTS={slots}"))


def explore(program: Path, history: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([program, history, str(STATES_MOST)], capture_output=True, text=True, timeout=280)


def check(program: Path, history: str, least: int) -> None:
    done = explore(program, history)
    assert done.returncode == 0, f"{history}\n{done.stdout}{done.stderr}"
    states = int(re.match(r"(\d+) states", done.stdout)[1])
    assert states >= least, done.stdout


def check_is_found(program: Path, expected: str, kills: int = 1) -> None:
    """Check that the program, with one kill, reports a violation that matches `expected`."""
    done = subprocess.run([program, str(kills)], capture_output=True, text=True, timeout=280)
    assert done.returncode == 1, done.stdout + done.stderr
    violation = re.match(r"VIOLATION: (.*)\n", done.stdout)
    assert violation and re.search(expected, violation[1]), done.stdout[:2000]


@pytest.mark.parametrize("history", QUICK)
def test_no_order_of_steps_breaks_an_invariant(explorer, history):
    slots, least = QUICK[history]
    check(explorer(slots), history, least)


@pytest.mark.long
@pytest.mark.parametrize("history", LONG)
def test_no_order_of_many_steps_breaks_an_invariant(explorer, history):
    slots, least = LONG[history]
    check(explorer(slots), history, least)


@pytest.mark.parametrize(
    "mutant", [pytest.param(name, marks=() if name in ALWAYS else pytest.mark.long) for name in MUTANTS]
)
def test_a_mistake_in_the_headers_is_found(tmp_path, mutant):
    """A test of the model: it reports a mutated header."""
    header, old, new, history, expected = MUTANTS[mutant]
    headers = changed_headers(tmp_path, header, old, new)
    done = explore(compile_c(EXPLORER, tmp_path / "mutant", "-O1", "-DSLOTS=2", headers=headers), history)
    assert done.returncode == 1, done.stdout + done.stderr
    violation = re.match(r"VIOLATION: (.*)\n", done.stdout)
    assert violation and re.search(expected, violation[1]), done.stdout[:2000]


@pytest.mark.parametrize(
    ("kills", "least"), [(0, 2_000), (1, 150_000), pytest.param(2, 5_000_000, marks=pytest.mark.long)]
)
def test_no_order_of_steps_breaks_the_metadata_snapshot(tmp_path, kills, least):
    program = compile_c(TOPICS, tmp_path / "topics", "-O2")
    done = subprocess.run([program, str(kills), "16000000"], capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
    assert int(re.match(r"(\d+) states", done.stdout)[1]) >= least, done.stdout


@pytest.mark.parametrize("mutant", TOPIC_MUTANTS)
def test_a_mistake_in_the_metadata_snapshot_is_found(tmp_path, mutant):
    header, old, new, expected = TOPIC_MUTANTS[mutant]
    headers = changed_headers(tmp_path, header, old, new)
    check_is_found(compile_c(TOPICS, tmp_path / "mutant", "-O1", headers=headers), expected)


@pytest.mark.parametrize(
    ("kills", "least", "bounds"),
    [
        (0, 100_000, ()),
        (1, 200_000, ("-DLOOKS=2", "-DSENDS=1", "-DROUNDS=1")),
        pytest.param(2, 1_000_000, ("-DLOOKS=2", "-DSENDS=1", "-DROUNDS=1"), marks=pytest.mark.long),
    ],
)
def test_no_order_of_steps_sends_a_batch_to_another_topic(tmp_path, kills, least, bounds):
    program = compile_c(NUMBERS, tmp_path / "numbers", "-O2", *bounds)
    done = subprocess.run([program, str(kills), "12000000"], capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
    assert int(re.match(r"(\d+) states", done.stdout)[1]) >= least, done.stdout


@pytest.mark.parametrize("mutant", NUMBER_MUTANTS)
def test_a_mistake_with_topic_numbers_is_found(tmp_path, mutant):
    header, old, new, expected = NUMBER_MUTANTS[mutant]
    headers = changed_headers(tmp_path, header, old, new)
    check_is_found(compile_c(NUMBERS, tmp_path / "mutant", "-O1", headers=headers), expected, 0)


@pytest.mark.parametrize("mistake", NUMBER_ORDERS)
def test_a_wrong_order_with_topic_numbers_is_found(tmp_path, mistake):
    check_is_found(compile_c(NUMBERS, tmp_path / "mutant", "-O1", f"-D{mistake}"), WRONG_TOPIC, 0)


@pytest.mark.parametrize(("kills", "least"), [(0, 150), (1, 8_000), (2, 200_000)])
def test_no_order_of_steps_breaks_the_results_of_parts(tmp_path, kills, least):
    program = compile_c(EXTENTS, tmp_path / "extents", "-O2")
    done = subprocess.run([program, str(kills)], capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
    assert int(re.match(r"(\d+) states", done.stdout)[1]) >= least, done.stdout


@pytest.mark.parametrize("mutant", EXTENT_MUTANTS)
def test_a_mistake_in_the_results_of_parts_is_found(tmp_path, mutant):
    header, old, new, expected = EXTENT_MUTANTS[mutant]
    headers = changed_headers(tmp_path, header, old, new)
    check_is_found(compile_c(EXTENTS, tmp_path / "mutant", "-O1", headers=headers), expected)


def test_an_entry_that_is_free_before_the_outcome_is_found(tmp_path):
    program = compile_c(EXTENTS, tmp_path / "mutant", "-O1", "-DFREE_BEFORE_OUTCOME")
    check_is_found(program, "sent anew|never gets a result")


def test_every_history_is_explored(explorer):
    done = subprocess.run([explorer(2)], capture_output=True, text=True, timeout=60)
    assert set(done.stdout.split()) == QUICK.keys() | LONG.keys()
