"""Tests that old files of ended senders are removed after a day, or earlier if there are too many; live ones stay."""

import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cyproducer.sender.process import files
from cyproducer.sender.process.files import remove_old_files

DAY_S = 86_400.0


def stem(number: int) -> str:
    return f"{number:016x}"


def make(directory: Path, name: str, age_s: float) -> Path:
    path = directory / name
    path.write_text("")
    then = time.time() - age_s
    os.utime(path, (then, then))
    return path


def names(directory: Path) -> set[str]:
    return {path.name for path in directory.iterdir()}


@pytest.fixture
def living(runtime_dir: Path) -> Iterator[str]:
    """Return the stem of a sender that holds its lock."""
    with open(make(runtime_dir, stem(7) + ".lock", 3 * DAY_S)) as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield stem(7)
    (runtime_dir / (stem(7) + ".lock")).unlink(missing_ok=True)


def test_old_files_of_ended_senders_go(runtime_dir: Path, living: str) -> None:
    for suffix in ("log", "log.1", "sock", "json", "failures"):
        make(runtime_dir, f"{living}.{suffix}", 2 * DAY_S)
    kept = names(runtime_dir)
    for number, age in ((1, 1.1), (2, 0.9)):
        for suffix in ("log", "log.1", "failures", "json.123"):
            make(runtime_dir, f"{stem(number)}.{suffix}", age * DAY_S)
    kept |= {f"{stem(2)}.{suffix}" for suffix in ("log", "log.1", "failures", "json.123")}
    # Its older half is as new as the newer one: they are one log.
    for suffix, age in (("log", 0.1), ("log.1", 2)):
        kept.add(make(runtime_dir, f"{stem(3)}.{suffix}", age * DAY_S).name)
    # Names that are not ours, or a description of a sender whose lock is elsewhere.
    for name in ("app.log", "0123.log", stem(4) + ".log.gz", stem(5) + ".json"):
        kept.add(make(runtime_dir, name, 9 * DAY_S).name)
    remove_old_files(str(runtime_dir))
    assert names(runtime_dir) == kept
    for name in names(runtime_dir):
        (runtime_dir / name).unlink()


def test_names_of_a_killed_sender_go_after_a_day(runtime_dir: Path) -> None:
    for number, age in ((1, 1.1), (2, 0.9)):
        for suffix in ("lock", "sock", "json", "spawn"):
            make(runtime_dir, f"{stem(number)}.{suffix}", age * DAY_S)
    remove_old_files(str(runtime_dir))
    assert names(runtime_dir) == {f"{stem(2)}.{suffix}" for suffix in ("lock", "sock", "json", "spawn")}
    for name in names(runtime_dir):
        (runtime_dir / name).unlink()


def test_no_more_than_a_number_stay(runtime_dir: Path, living: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "ENDED_MAX", 3)
    for number in range(10, 20):
        make(runtime_dir, stem(number) + ".log", 60.0 * number)
    make(runtime_dir, living + ".log", 0.5 * DAY_S)
    remove_old_files(str(runtime_dir))
    assert names(runtime_dir) == {living + ".lock", living + ".log", *(stem(n) + ".log" for n in (10, 11, 12))}


def test_a_directory_that_is_gone(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        remove_old_files(str(tmp_path / "absent"))
