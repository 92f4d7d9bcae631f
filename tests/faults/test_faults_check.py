"""Tests that the check of a row finds each defect that is put into a correct journal or log, and no other."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from chaos import journal
from devkafka.node import LogBatch, LogRecord
from support.consumer import ReadRecords

from cyproducer import errors
from faults.check import Log, Times, Verdict, check_dump, check_stamps, compare
from faults.load import STAMP

PARTITIONS = 3
RECORDS = 60
TOO_LARGE, UNKNOWN = 10, errors.OUTCOME_UNKNOWN
FAILED, DOUBTFUL, DOUBTFUL_AND_WRITTEN, REFUSED = range(RECORDS - 4, RECORDS)


class Story:
    """The journal of one front-end and its log. The last four records end in the ways that the names above say."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.rows: list[list[int]] = []
        self.skipped: set[int] = set()
        self.extra: list[tuple[int, ...]] = []
        offsets = [0] * PARTITIONS
        for number in range(RECORDS):
            if number not in (FAILED, DOUBTFUL, REFUSED):
                partition = number % PARTITIONS
                self.rows.append([0, number, partition, offsets[partition], 1000 + number])
                offsets[partition] += 1

    def log(self) -> Log:
        table = np.array(self.rows, "i8")
        return Log(*table.T, [], ReadRecords())

    def lives(self) -> list[journal.Life]:
        writer = journal.Writer(self.directory / journal.name_of(0, 0))
        places = {row[1]: row for row in Story(self.directory).rows}
        for number in range(RECORDS):
            writer.put(journal.INTENT, number, 1)
            writer.put(journal.REFUSED if number == REFUSED else journal.ACCEPTED, number, 1, TOO_LARGE)
            if number == FAILED:
                writer.put(journal.FAILED, number, 0, TOO_LARGE)
            elif number in (DOUBTFUL, DOUBTFUL_AND_WRITTEN):
                writer.put(journal.FAILED, number, 0, UNKNOWN)
            elif number != REFUSED and number not in self.skipped:
                _, _, partition, offset, stamp = places[number]
                writer.put(journal.ACKED, number, offset, partition)
                writer.put(STAMP, number, stamp)
        for line in self.extra:
            writer.put(*line)
        writer.put(journal.END, RECORDS, flags=journal.CLOSED)
        writer.close()
        return journal.read_all(self.directory)

    def compare(self) -> Verdict:
        return compare(self.lives(), [self.log()])


@pytest.fixture
def story(tmp_path: Path) -> Story:
    return Story(tmp_path)


def test_a_correct_row_has_no_defects(story):
    verdict = story.compare()
    assert not verdict.defects
    assert dict(verdict.failed) == {"MESSAGE_TOO_LARGE": 1}
    assert dict(verdict.refused) == {"MESSAGE_TOO_LARGE": 1}
    assert verdict.counts["acknowledged"] == RECORDS - 4
    assert (verdict.counts["unknown"], verdict.counts["unknown, in the log"]) == (2, 1)


def _written(number: int) -> Callable[[Story], None]:
    return lambda story: story.rows.append([0, number, 0, 900, 1])


def _swap(story: Story) -> None:
    story.rows[0][3], story.rows[PARTITIONS][3] = story.rows[PARTITIONS][3], story.rows[0][3]


@pytest.mark.parametrize(
    ("damage", "found"),
    [
        (lambda story: story.rows.pop(5), ["acknowledged and not in the log"]),
        (lambda story: story.rows.append([0, 5, 0, 901, 1]), ["twice in the log", "out of order"]),
        (lambda story: story.rows[-1].__setitem__(3, 900), []),
        (lambda story: story.rows[-2].__setitem__(3, 900), ["not at the acknowledged offset"]),
        (_swap, ["not at the acknowledged offset", "out of order"]),
        (_written(FAILED), ["failed and in the log"]),
        (_written(DOUBTFUL), []),
        (_written(REFUSED), ["refused by send() and in the log"]),
        (lambda story: story.skipped.add(7), ["without outcome"]),
        (lambda story: story.extra.append((journal.FAILED, 7, 0, TOO_LARGE)), ["with two outcomes"]),
    ],
)
def test_each_defect_is_found(story, damage, found):
    damage(story)
    defects = story.compare().defects
    assert all(any(name in defect for defect in defects) for name in found), defects
    assert bool(defects) == bool(found), defects


def test_acknowledged_records_may_be_gone_with_their_topic(story):
    lives = story.lives()
    rows = [row for row in story.rows if row[1] != 5]
    story.rows = [row for row in rows if row[1] < RECORDS // 2]
    before = story.log()
    story.rows = [row for row in rows if row[1] >= RECORDS // 2]
    after = story.log()
    assert compare(lives, [before, after]).defects
    before.until = int(lives[0].resolved.max())
    verdict = compare(lives, [before, after])
    assert not verdict.defects
    assert verdict.counts["gone with the topic"] == 1


def test_timestamps_are_compared(story):
    lives = story.lives()
    assert check_stamps(story.directory, lives, story.log()) == []
    story.rows[4][4] += PARTITIONS
    assert check_stamps(story.directory, lives, story.log())


def batch(base: int, sequence: int, count: int = 2, epoch: int = 0, valid: bool = True) -> LogBatch:
    records = [LogRecord(base + i, 1, -1, 1, sequence + i, (), None, "v") for i in range(count)]
    last = base + count - 1
    return LogBatch(
        base,
        last,
        count,
        sequence,
        sequence + count - 1,
        7,
        epoch,
        0,
        False,
        False,
        "CreateTime",
        1,
        1,
        2,
        "none",
        1,
        valid,
        records,
    )


@pytest.mark.parametrize(
    ("batches", "found"),
    [
        ([batch(0, 0), batch(2, 2)], ""),
        ([batch(0, 0), batch(2, 0, epoch=1)], ""),
        ([batch(0, 0), batch(2, 3)], "sequence 3 instead of 2"),
        ([batch(0, 0), batch(2, 2, valid=False)], "CRC"),
        ([batch(0, 0)], "2 records, not the 4"),
    ],
)
def test_the_dump_is_compared(batches, found):
    read = ReadRecords([0] * 4, [0, 1, 2, 3], [None] * 4, [b"v"] * 4, [[]] * 4, [1] * 4)
    empty = np.zeros(0, "i8")
    defects = check_dump(Log(empty, empty, empty, empty, empty, [], read), 0, batches)
    assert found in "".join(defects)
    assert bool(defects) == bool(found)


def test_sequences_go_on_in_a_topic_that_was_created_again():
    empty = np.zeros(0, "i8")
    log = Log(empty, empty, empty, empty, empty, [], ReadRecords([0] * 2, [0, 1], [None] * 2, [b"v"] * 2))
    assert check_dump(log, 0, [batch(0, 5)], recreated=True) == []
    assert check_dump(log, 0, [batch(0, 5)])


def test_throughput_is_back_when_every_partition_is():
    second = 10**9
    sent = np.arange(0, 20 * second, second // 100)
    partition = np.arange(len(sent)) % 2
    acked = sent + 1000
    assert Times(sent, acked, partition, sent).back_s(5 * second, 2) < 0.1
    late = np.where((partition == 1) & (sent > 5 * second) & (sent < 8 * second), 9 * second, acked)
    assert 2.9 < Times(sent, late, partition, sent).back_s(5 * second, 2) < 3.1
    assert Times(sent, late, partition, sent).gap_ms(0, 20 * second) > 3000
    never = Times(sent[partition == 0], acked[partition == 0], partition[partition == 0], sent)
    assert never.back_s(5 * second, 2) == float("inf")
