"""Tests that the ledger counts every failure within bounds, and that a log record is one line."""

import json
import logging
import sys

from hypothesis import given
from hypothesis import strategies as st

from cyproducer.observe import ledger
from cyproducer.observe.ledger import Ledger
from cyproducer.observe.logfmt import JsonFormatter, LogfmtFormatter, formatter_of, level_of


def test_ledger_counts_by_application_topic_and_cause() -> None:
    book = Ledger()
    book.add("a", "t", "X", 2, 10.0)
    book.add("a", "t", "X", 3, 12.0)
    book.add("a", "u", "X", 1, 11.0)
    assert book.rows() == [
        {"app": "a", "topic": "t", "cause": "X", "count": 5, "first": 10.0, "last": 12.0},
        {"app": "a", "topic": "u", "cause": "X", "count": 1, "first": 11.0, "last": 11.0},
    ]


@given(st.lists(st.tuples(st.integers(0, 3000), st.integers(1, 9)), max_size=300))
def test_ledger_is_bounded_and_loses_no_count(failures: list[tuple[int, int]]) -> None:
    limit, ledger.ROWS_MAX = ledger.ROWS_MAX, 4
    try:
        book = Ledger()
        for topic, count in failures:
            book.add("a", str(topic), "X", count, 1.0)
        assert len(book.rows()) <= 5
        assert sum(row["count"] for row in book.rows()) == sum(count for _, count in failures)
    finally:
        ledger.ROWS_MAX = limit


def test_warnings_are_rate_limited_and_complete() -> None:
    book = Ledger()
    assert book.next_warning_in(0.0) is None
    book.add("a", "t", "X", 1, 100.0)
    assert book.next_warning_in(100.0) == 0.0
    assert [(n.app, n.text) for n in book.warnings(100.0)] == [("a", "1 record of a for topic t failed: X")]
    assert book.next_warning_in(100.0) is None
    for second in range(101, 130):
        book.add("a", "t", "X", 2, float(second))
        assert book.warnings(float(second)) == []
    assert book.next_warning_in(130.0) == 30.0
    assert [n.text for n in book.warnings(160.0)] == ["58 records of a for topic t failed: X"]
    assert book.warnings(1000.0) == []


def record(message: str, **extra: object) -> logging.LogRecord:
    made = logging.LogRecord("n", logging.WARNING, "p", 1, message, (), None)
    made.fields = extra
    return made


@given(st.text(), st.text())
def test_a_record_is_one_line(message: str, value: str) -> None:
    line = LogfmtFormatter().format(record(message.replace("%", "%%"), field=value))
    assert len(line.splitlines()) == 1
    assert line.isprintable()


def test_line_of_the_log() -> None:
    line = LogfmtFormatter().format(record("two words", a='say "x"', b="plain", c=""))
    assert line.split(" ", 1)[0].startswith("ts=20")
    assert line.endswith('msg="two words" a="say \\"x\\"" b=plain c=""')
    assert " level=warning " in line


def test_level_of() -> None:
    assert [level_of(text) for text in (None, "", "debug", "WARN", "nonsense")] == [20, 20, 10, 30, 20]


@given(st.text(), st.text())
def test_a_record_is_one_object_of_json(message: str, value: str) -> None:
    line = JsonFormatter().format(record(message, field=value, number=3, names=["a"]))
    assert line.isascii()
    assert len(line.splitlines()) == 1
    found = json.loads(line)
    assert found["time"].endswith("Z")
    assert {name: found[name] for name in ("level", "message", "fields")} == {
        "level": "warning",
        "message": message,
        "fields": {"field": value, "number": 3, "names": ["a"]},
    }


def test_json_of_an_exception_and_of_any_object() -> None:
    try:
        raise ValueError("wrong")
    except ValueError:
        made = logging.LogRecord("n", logging.ERROR, "p", 1, "failed: %s", ("x",), sys.exc_info())
    made.fields = {"error": OSError(2, "none")}
    found = json.loads(JsonFormatter().format(made))
    assert (found["message"], found["fields"]) == ("failed: x", {"error": "[Errno 2] none"})
    assert found["error"].endswith("ValueError: wrong")
    assert json.loads(JsonFormatter().format(logging.LogRecord("n", 20, "p", 1, "m", (), None)))["fields"] == {}


def test_the_format_is_found_by_its_name() -> None:
    assert [type(formatter_of(text)) for text in ("json", " JSON ")] == [JsonFormatter] * 2
    assert [type(formatter_of(text)) for text in (None, "", "logfmt", "nonsense")] == [LogfmtFormatter] * 4
