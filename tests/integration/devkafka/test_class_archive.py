"""Tests archives of Java classes: made once, used by nodes, and no condition for their start."""

import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from devkafka import class_archive as module
from devkafka.class_archive import class_archive, using
from devkafka.maven import cache_directory, find_java
from devkafka.node import KafkaCluster

Get = Callable[[Callable[[Path], bool]], Path | None]


@pytest.fixture
def jars(tmp_path: Path) -> Path:
    """Return a directory with a jar."""
    directory = tmp_path / "jars"
    directory.mkdir()
    (directory / "a.jar").touch()
    return directory


@pytest.fixture
def get(jars: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Get:
    """Return ``get(make)``: the archive for these jars, in a cache of its own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return lambda make: class_archive("a", str(find_java()), jars, make)


def written(path: Path) -> bool:
    path.write_text("classes")
    return True


def files() -> set[str]:
    """Return what is in the cache beside locks."""
    return {path.name for path in cache_directory().iterdir() if path.suffix != ".lock"}


def test_a_node_uses_the_archive(kafka: KafkaCluster) -> None:
    mapped = [Path(each.path).name for each in psutil.Process(kafka.pid()).memory_maps()]
    assert any(name.startswith("kafka-") and name.endswith(".jsa") for name in mapped), mapped


def test_it_is_made_once(get: Get) -> None:
    calls: list[Path] = []
    found: list[Path | None] = []
    begun = threading.Semaphore(0)

    def make(path: Path) -> bool:
        calls.append(path)
        for _ in range(3):
            assert begun.acquire(timeout=20)
        return written(path)

    def call() -> None:
        begun.release()
        found.append(get(make))

    threads = [threading.Thread(target=call) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(calls) == 1
    assert len(found) == 3
    [archive] = {*found, get(make)}
    assert archive is not None
    assert archive.read_text() == "classes"
    assert files() == {archive.name}


def test_a_java_that_makes_none_is_asked_once(get: Get) -> None:
    assert get(lambda path: True) is None
    assert get(written) is None


@pytest.mark.parametrize("error", [OSError("no space"), subprocess.TimeoutExpired("java", 1), None])
def test_one_that_was_not_made_to_its_end_is_not_kept(get: Get, error: Exception | None, capsys) -> None:
    def make(path: Path) -> bool:
        written(path)
        if error is not None:
            raise error
        return False

    assert get(make) is None
    assert "no archive of Java classes is used, since it could not be made" in capsys.readouterr().err
    assert files() == set()
    assert get(written) is not None


def test_an_interrupt_leaves_nothing(get: Get) -> None:
    def make(path: Path) -> bool:
        written(path)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        get(make)
    assert files() == set()


def test_an_interrupt_of_the_first_start_leaves_no_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("devkafka.node.class_archive", interrupted)
    cluster = KafkaCluster()
    with pytest.raises(KeyboardInterrupt):
        cluster.start()
    assert not cluster.directory.exists()


def test_a_place_that_cannot_be_written(get: Get, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/dev/null/cache")
    calls: list[Path] = []
    assert get(lambda path: bool(calls.append(path))) is None
    assert not calls


def test_other_jars_have_another_archive(get: Get, jars: Path) -> None:
    first = get(written)
    (jars / "a.jar").write_text("changed")
    second = get(written)
    assert None not in (first, second)
    assert first != second


def test_one_that_nobody_uses_is_removed(get: Get, jars: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = get(written)
    assert first is not None
    (jars / "b.jar").touch()
    second = get(written)
    assert second is not None
    assert files() == {first.name, second.name}
    later = time.time() + module.KEPT_S + 60
    monkeypatch.setattr(module.time, "time", lambda: later)
    (jars / "c.jar").touch()
    third = get(written)
    assert third is not None
    assert files() == {third.name}


@pytest.mark.parametrize("content", [b"", b"no archive", None], ids=["empty", "text", "missing"])
def test_java_ignores_one_that_is_damaged(tmp_path: Path, content: bytes | None) -> None:
    archive = tmp_path / "damaged.jsa"
    if content is not None:
        archive.write_bytes(content)
    run = subprocess.run([find_java(), *using(archive), "-version"], capture_output=True, text=True, check=True)
    assert run.stdout == ""
    assert "version" in run.stderr
