"""Tests the ledger's file: bounded, kept for a day, written by a thread so that the sender never waits for it."""

import json
import logging
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.process import wait_until

from cyproducer.host.rendezvous import Rendezvous
from cyproducer.observe import failures
from cyproducer.observe.ledger import Ledger
from cyproducer.sender.process import files
from cyproducer.sender.process.files import FailureFile

DAY_S = 86_400.0


def row(**given: Any) -> dict[str, Any]:
    now = time.time()
    return {"app": "a", "topic": "t", "cause": "X", "count": 1, "first": now, "last": now, **given}


def test_rows_of_the_last_day_come_back(tmp_path: Path) -> None:
    path = str(tmp_path / "f.failures")
    rows = [row(), row(topic="old", last=time.time() - 1.1 * DAY_S), row(topic="u", last=time.time() - 0.9 * DAY_S)]
    failures.write(path, failures.encode({"socket": "/s"}, rows))
    assert failures.read(path) == {"socket": "/s", "rows": [rows[0], rows[2]]}
    assert os.stat(path).st_mode & 0o777 == 0o600
    failures.write(path, failures.encode({}, [rows[1]]))
    assert failures.read(path) is None
    assert [each.name for each in tmp_path.iterdir()] == ["f.failures"]


def test_a_row_that_grows_old_in_the_file_is_not_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = str(tmp_path / "f.failures")
    failures.write(path, failures.encode({}, [row()]))
    assert failures.read(path) is not None
    later = time.time() + 1.1 * DAY_S
    monkeypatch.setattr(failures.system_clock, "wall", lambda: later)
    assert failures.read(path) is None


def test_size_is_bounded() -> None:
    data = failures.encode({}, [row(app="a" * 1000, topic=f"{number}" + "t" * 1000) for number in range(5000)])
    assert len(json.loads(data)["rows"]) == 1001
    assert len(data) < 1 << 20


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"rows": 1}', '{"rows": [1]}', '{"rows": [{"app": "a"}]}'])
def test_a_file_that_is_damaged_holds_nothing(tmp_path: Path, text: str) -> None:
    (tmp_path / "f").write_text(text)
    assert failures.read(str(tmp_path / "f")) is None


@pytest.fixture
def post(runtime_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(files, "INTERVAL_S", 0.1)
    stem = str(runtime_dir / "s")
    return SimpleNamespace(
        place=Rendezvous(stem, stem + ".sock", stem + ".json"),
        settings={"bootstrap_servers": ["b:1"]},
        relay=SimpleNamespace(path=stem + ".log"),
        log=logging.getLogger("test"),
    )


def written(file: FailureFile) -> int:
    """Return the records in the file."""
    found = failures.read(file.path)
    return sum(each["count"] for each in found["rows"]) if found is not None else 0


def test_no_file_without_failures(post: Any, runtime_dir: Path) -> None:
    file = FailureFile(post, Ledger())
    file.restore()
    file.changed()
    assert file.due() is None
    file.write_if_due()
    file.close()
    assert list(runtime_dir.iterdir()) == []


def test_the_first_failure_is_written_at_once_and_what_follows_once_a_second(post: Any) -> None:
    ledger = Ledger()
    file = FailureFile(post, ledger)
    ledger.add("a", "t", "X", 1, time.time())
    file.changed()
    file.write_if_due()
    wait_until(lambda: written(file) == 1, what="the file")
    ledger.add("a", "t", "X", 1, time.time())
    file.changed()
    due = file.due()
    assert due is not None and due - time.monotonic() <= files.INTERVAL_S

    def write() -> bool:
        file.write_if_due()
        return written(file) == 2

    wait_until(write, what="the second failure")
    assert file.due() is None


def test_the_end_writes_what_is_left_and_the_next_sender_goes_on_with_it(
    post: Any, caplog: pytest.LogCaptureFixture
) -> None:
    ledger = Ledger()
    file = FailureFile(post, ledger)
    for number in (1, 2):
        ledger.add("a", "t", "X", number, time.time())
        file.changed()
        file.write_if_due()
    file.close()
    assert written(file) == 3
    assert "`cyproducer status` shows them for a day" in caplog.text
    following = Ledger()
    restored = FailureFile(post, following)
    restored.restore()
    assert following.rows() == ledger.rows()
    assert following.warnings(0.0) == [], "they were reported before"
    following.add("a", "t", "X", 1, time.time())
    restored.restore()
    restored.close()
    assert written(restored) == 4


@pytest.fixture
def stuck(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Simulate a file system that does not answer until the event is set."""
    answer = threading.Event()
    write = failures.write
    monkeypatch.setattr(files, "FLUSH_S", 0.1)
    monkeypatch.setattr(failures, "write", lambda path, data: answer.wait(60) and write(path, data))
    yield answer
    answer.set()


def test_the_sender_does_not_wait_for_a_file_system(post: Any, stuck: threading.Event) -> None:
    ledger = Ledger()
    file = FailureFile(post, ledger)
    for _ in range(3):
        ledger.add("a", "t", "X", 1, time.time())
        file.changed()
        file.write_if_due()
        time.sleep(0.01)
    file.close()
    stuck.set()
    wait_until(lambda: written(file) > 0, what="the file")
    wait_until(lambda: not any(t.name == "cyproducer-failures" for t in threading.enumerate()), what="the thread's end")


def test_a_file_that_cannot_be_written_is_reported_once(post: Any, caplog: pytest.LogCaptureFixture) -> None:
    post.place = Rendezvous("/absent/s", "/absent/s.sock", "/absent/s.json")
    ledger = Ledger()
    ledger.add("a", "t", "X", 1, time.time())
    file = FailureFile(post, ledger)
    file.close()
    file.close()
    assert caplog.text.count("the ledger of failures cannot be written") == 1
