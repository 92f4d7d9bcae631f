"""Tests that the checker finds each defect that is put into correct journals and a correct log, and nothing else."""

import os
import random
import time
from pathlib import Path

import pytest

from chaos import journal
from chaos.check import Hidden, Log, compare
from chaos.falls import Fall
from chaos.records import parse, value_of
from cyproducer import errors

PARTITIONS = 3
RECORDS = 200


class Story:
    """Journals of two processes and the log that belongs to them: [incarnation, number, partition, offset]."""

    def __init__(self, directory: Path, killed: bool = False) -> None:
        self.directory = directory
        self.rows: list[list[int]] = []
        self.writers: list[journal.Writer] = []
        draw = random.Random(3)
        offsets = [0] * PARTITIONS
        for slot in (0, 1):
            path = directory / journal.name_of(slot, 0)
            writer = journal.Writer(path)
            for number in range(RECORDS):
                partition = draw.randrange(PARTITIONS)
                writer.put(journal.INTENT, number, 1)
                writer.put(journal.ACCEPTED, number, 1)
                if not (killed and number >= RECORDS - 10):
                    writer.put(journal.ACKED, number, offsets[partition], partition)
                self.rows.append([journal.incarnation_of(path), number, partition, offsets[partition]])
                offsets[partition] += 1
            self.writers.append(writer)
        if not killed:
            for writer in self.writers:
                writer.put(journal.END, RECORDS, flags=journal.CLOSED)

    def compare(self, falls=(), killed=(), excused=None, hidden=None):
        for writer in self.writers:
            writer.close()
        log = Log.of([tuple(row) for row in self.rows])
        return compare(journal.read_all(self.directory), log, falls, killed, excused, hidden)


@pytest.fixture
def story(tmp_path):
    return Story(tmp_path)


@pytest.fixture
def killed(tmp_path):
    return Story(tmp_path, killed=True)


def test_a_correct_run_is_clean(story):
    report = story.compare()
    assert report.clean, report.lines()
    assert report.counts["accepted"] == report.counts["acknowledged"] == report.counts["in the log"] == 2 * RECORDS


def test_records_accepted_before_a_kill_must_be_there(killed):
    assert killed.rows.pop()[1] == RECORDS - 1
    assert dict(killed.compare().defects) == {"lost": 1}


@pytest.mark.parametrize(
    ("unknown", "code", "lost"),
    [(1, errors.OUTCOME_UNKNOWN, 0), (0, errors.OUTCOME_UNKNOWN, 1), (1, errors.DELIVERY_TIMEOUT, 1)],
)
def test_a_killed_process_may_miss_what_the_ledger_says_has_failed(killed, unknown, code, lost):
    """The other process has an error in its journal, which the ledger counts too."""
    assert killed.rows.pop()[1] == RECORDS - 1
    killed.writers[0].put(journal.INTENT, RECORDS, 1)
    killed.writers[0].put(journal.ACCEPTED, RECORDS, 1)
    killed.writers[0].put(journal.FAILED, RECORDS, 0, code)
    kills = [(os.getpid(), time.monotonic_ns())]
    report = killed.compare((), kills, {errors.OUTCOME_UNKNOWN: 1 + unknown if code == errors.OUTCOME_UNKNOWN else 0})
    assert report.defects["lost"] == lost, report.lines()


@pytest.mark.parametrize(("is_later", "per_kill", "lost"), [(True, 1, 0), (False, 1, 1), (True, 0.5, 1)])
def test_only_a_later_kill_hides_errors_that_the_ledger_had(killed, is_later, per_kill, lost):
    assert killed.rows.pop()[1] == RECORDS - 1
    now = time.monotonic_ns()
    hidden = Hidden([now if is_later else 0], per_kill)
    report = killed.compare((), [(os.getpid(), now)], {errors.OUTCOME_UNKNOWN: 0}, hidden)
    assert report.defects["lost"] == lost, report.lines()


def test_the_ledger_excuses_no_record_of_a_living_process(story):
    for writer in story.writers:
        writer.put(journal.INTENT, RECORDS, 1)
        writer.put(journal.ACCEPTED, RECORDS, 1)
    report = story.compare((), (), {errors.OUTCOME_UNKNOWN: 5})
    assert report.defects["lost"] == 2, report.lines()


def test_all_of_a_killed_process_there_is_clean(killed):
    assert killed.compare().clean


def test_the_record_in_doubt_may_be_there_or_not_but_once(tmp_path):
    for name, times, defects in (("none", 0, {}), ("once", 1, {}), ("twice", 2, {"duplicated": 1})):
        (tmp_path / name).mkdir()
        story = Story(tmp_path / name, killed=True)
        story.writers[1].put(journal.INTENT, RECORDS, 1)
        story.rows += [[story.rows[-1][0], RECORDS, 0, 10_000 + i] for i in range(times)]
        assert dict(story.compare().defects) == defects


def test_a_lost_record(story):
    del story.rows[50]
    assert dict(story.compare().defects) == {"lost": 1}


def test_a_duplicated_record(story):
    story.rows.append([*story.rows[50][:2], PARTITIONS - 1, 10_000])
    report = story.compare()
    assert report.defects["duplicated"] == 1


def test_swapped_records(story):
    same = [row for row in story.rows if row[0] == 0 and row[2] == 0]
    same[3][1], same[4][1] = same[4][1], same[3][1]
    report = story.compare()
    assert report.defects["reordered"] == 1
    assert report.defects["wrong offset"] == 2


def test_records_out_of_order_between_batches(killed):
    """Unacknowledged records have no offset that could be wrong: only the order shows it."""
    last = [row for row in killed.rows if row[0] == 1_000_000 and row[1] >= RECORDS - 10]
    place = next(p for p in range(PARTITIONS) if sum(row[2] == p for row in last) >= 2)
    first, second = [row for row in last if row[2] == place][:2]
    first[1], second[1] = second[1], first[1]
    assert dict(killed.compare().defects) == {"reordered": 1}


def test_a_wrong_offset(story):
    story.rows[77][3] += 10_000  # the end of the log, so that the order is as before
    story.rows.append([7, 0, 0, 0])
    report = story.compare()
    assert report.defects["wrong offset"] == 1
    assert report.defects["foreign"] == 1


def test_a_wrong_partition(story):
    row = next(row for row in story.rows if row[1] == 0)
    row[2] = (row[2] + 1) % PARTITIONS
    assert dict(story.compare().defects) == {"wrong offset": 1}


def test_a_record_that_no_front_end_sent(story):
    story.rows.append([0, RECORDS, 0, 10_000])
    assert dict(story.compare().defects) == {"foreign": 1}


def test_a_missing_and_a_second_outcome(story):
    path = story.directory / journal.name_of(2, 0)
    writer = journal.Writer(path)
    for number in range(2):
        writer.put(journal.INTENT, number, 1)
        writer.put(journal.ACCEPTED, number, 1)
        story.rows.append([journal.incarnation_of(path), number, 0, 20_000 + number])
    writer.put(journal.ACKED, 0, 20_000, 0)
    writer.put(journal.ACKED, 0, 20_000, 0)
    writer.put(journal.END, 2, flags=journal.CLOSED)
    story.writers.append(writer)
    assert dict(story.compare().defects) == {"two outcomes": 1, "no outcome": 1}


def test_errors(story):
    path = story.directory / journal.name_of(2, 0)
    writer = journal.Writer(path)
    for number, code in enumerate((errors.OUTCOME_UNKNOWN, errors.OUTCOME_UNKNOWN, errors.DELIVERY_TIMEOUT)):
        writer.put(journal.INTENT, number, 1)
        writer.put(journal.ACCEPTED, number, 1)
        writer.put(journal.FAILED, number, 0, code)
    writer.put(journal.INTENT, 4, 2)
    writer.put(journal.ACCEPTED, 4, 2)
    for number in (4, 5):
        writer.put(journal.FAILED, number, 0, errors.DELIVERY_TIMEOUT, journal.SOME)
    writer.put(journal.INTENT, 3, 1)
    writer.put(journal.REFUSED, 3, 1, errors.DELIVERY_TIMEOUT)
    writer.put(journal.END, 4, flags=journal.CLOSED)
    story.writers.append(writer)
    story.rows += [[journal.incarnation_of(path), number, 0, 20_000 + number] for number in (1, 2, 3, 4)]
    assert dict(story.compare().defects) == {"failed": 5, "failed yet delivered": 1, "refused yet delivered": 1}


class Survivor:
    """A third process' journal, written while `fall` happens."""

    FOUNDER, SUCCESSOR = 1000, 2000

    def __init__(self, story):
        self.path = story.directory / journal.name_of(2, 0)
        self.writer = journal.Writer(self.path)
        story.writers.append(self.writer)
        self.sent = 0
        self.writer.put(journal.SAFE, 0, self.FOUNDER)

    def send_array(self, count):
        self.writer.put(journal.INTENT, self.sent, count)
        self.writer.put(journal.ACCEPTED, self.sent, count)
        self.sent += count

    def send(self, count=1):
        for _ in range(count):
            self.writer.put(journal.INTENT, self.sent, 1)
            self.writer.put(journal.ACCEPTED, self.sent, 1)
            self.sent += 1

    def fall(self, held=(), at_begin=(), founder=FOUNDER):
        begin = time.monotonic_ns()
        me = journal.incarnation_of(self.path)
        return Fall(begin, begin + 1000, founder, {me: set(held)}, {me: set(at_begin)})


@pytest.fixture
def survivor(story):
    return Survivor(story)


@pytest.mark.parametrize(
    ("code", "when", "defects"),
    [
        (errors.SENDER_LOST, "before", {}),
        (errors.OUTCOME_UNKNOWN, "before", {"failed": 1}),
        (errors.DELIVERY_TIMEOUT, "before", {"failed": 1}),
        (errors.SENDER_LOST, "after", {"failed": 1}),
        (errors.SENDER_LOST, "over", {"failed": 1}),
    ],
)
def test_the_outcome_of_records_sent_before_the_fall_may_be_unknown(story, survivor, code, when, defects):
    if when == "after":
        fall = survivor.fall()
    survivor.send()
    if when == "before":
        fall = survivor.fall()
    survivor.writer.put(journal.FAILED, 0, 0, code)
    if when == "over":
        fall = survivor.fall()
    survivor.writer.put(journal.END, 1, flags=journal.CLOSED)
    assert dict(story.compare([fall]).defects) == defects


def test_records_of_a_dead_front_end_may_be_lost_with_their_sender(story, survivor):
    survivor.send(5)
    survivor.writer.put(journal.END, 5)
    fall = survivor.fall(held=[1, 2])
    report = story.compare([fall])
    assert dict(report.defects) == {"lost": 3}
    assert report.counts["gone with its holders"] == 2


@pytest.mark.parametrize("ending", ["killed", "_exit", "exit", "close"])
@pytest.mark.parametrize("successor", [None, "the dead one", "one that died before", "the next"])
def test_front_end_that_dies_after_the_fall_loses_all_unless_it_reattached(story, survivor, ending, successor):
    falls = [survivor.fall(founder=500)]
    survivor.send(5)
    falls.append(survivor.fall())
    if successor:
        founders = {"the dead one": survivor.FOUNDER, "one that died before": 500, "the next": survivor.SUCCESSOR}
        survivor.writer.put(journal.SAFE, 5, founders[successor])
    if ending != "killed":
        flags = {"_exit": 0, "exit": journal.EXIT, "close": journal.CLOSED}[ending]
        survivor.writer.put(journal.END, 5, flags=flags)
    defects = {"lost": 5} if successor == "the next" or ending in ("exit", "close") else {}
    if ending == "close":
        defects["no outcome"] = 5
    assert dict(story.compare(falls).defects) == defects


def test_front_end_killed_while_it_exits_has_not_exited(story, survivor):
    survivor.send(5)
    fall = survivor.fall()
    survivor.writer.put(journal.END, 5, flags=journal.EXIT)
    assert story.compare([fall], killed=[(os.getpid(), time.monotonic_ns())]).clean


def test_missing_outcome_at_an_exit_is_excused_if_in_flight(story, survivor):
    survivor.send(5)
    survivor.writer.put(journal.END, 5, flags=journal.EXIT)
    fall = survivor.fall(at_begin=[0, 1, 2], held=[2])
    assert dict(story.compare([fall]).defects) == {"lost": 2}


def test_an_unfinished_bulk_call_has_no_outcome(story, survivor):
    survivor.send(2)
    survivor.send_array(4)
    fall = survivor.fall(at_begin=[0, 1, 2, 3])
    survivor.writer.put(journal.SAFE, 6, survivor.SUCCESSOR)
    assert dict(story.compare([fall]).defects) == {"lost": 4}


def test_a_fall_before_the_front_end_began_excuses_nothing(story):
    begin = time.monotonic_ns()
    survivor = Survivor(story)
    survivor.send(5)
    fall = Fall(begin - 2000, begin - 1000, survivor.FOUNDER)
    assert dict(story.compare([fall]).defects) == {"lost": 5}


def test_a_torn_journal_is_read(tmp_path):
    story = Story(tmp_path, killed=True)
    path = tmp_path / journal.name_of(1, 0)
    with open(path, "ab") as file:
        file.write(b"\x02\x00")
    assert story.compare().clean


@pytest.mark.parametrize("size", [0, 1, 200, 70_000])
def test_records_are_parsed_and_damage_is_found(size):
    for number in (0, 1, 12_345):
        value = value_of(3_000_001, number, size)
        assert parse(value) == (3_000_001, number)
        if size:
            assert parse(value[:-1] + bytes([value[-1] ^ 1])) is None
    assert parse(None) is None
    assert parse(b"text") is None
