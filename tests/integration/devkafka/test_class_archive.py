"""Tests archives of Java classes: made once, used by nodes, and no condition for their start."""

import subprocess
import threading
import time
from pathlib import Path

import psutil
import pytest

from cyproducer.devkafka.class_archive import class_archive, using
from cyproducer.devkafka.maven import find_java
from cyproducer.devkafka.node import KafkaCluster


@pytest.fixture
def jars(tmp_path: Path) -> Path:
    """Return a directory with a jar."""
    directory = tmp_path / "jars"
    directory.mkdir()
    (directory / "a.jar").touch()
    return directory


def test_a_node_uses_the_archive(kafka: KafkaCluster) -> None:
    mapped = [Path(each.path).name for each in psutil.Process(kafka.pid()).memory_maps()]
    assert any(name.startswith("kafka-") and name.endswith(".jsa") for name in mapped), mapped


def test_it_is_made_once(jars: Path) -> None:
    made: list[Path] = []

    def make(path: Path) -> None:
        made.append(path)
        time.sleep(0.3)
        path.write_text("classes")

    found: list[Path | None] = []
    threads = [threading.Thread(target=lambda: found.append(class_archive(jars, make))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 1
    [archive] = {*found, class_archive(jars, make)}
    assert archive is not None
    assert archive.read_text() == "classes"
    assert not made[0].exists()


def test_one_that_could_not_be_made_is_tried_again(jars: Path) -> None:
    assert class_archive(jars, lambda path: None) is None
    assert class_archive(jars, lambda path: path.write_text("classes")) is not None


def test_a_place_that_cannot_be_written() -> None:
    assert class_archive(Path("/proc/self"), lambda path: None) is None


def test_one_of_older_jars_is_removed(jars: Path) -> None:
    older = jars.with_name("jars-0123456789abcdef.jsa")
    older.touch()
    other = jars.with_name("jars-of-another.txt")
    other.touch()
    archive = class_archive(jars, lambda path: path.touch())
    assert {path.name for path in jars.parent.iterdir()} == {"jars", "jars.jsa.lock", other.name, archive.name}


@pytest.mark.parametrize("content", [b"", b"no archive"], ids=["empty", "text"])
def test_java_ignores_one_that_is_damaged(tmp_path: Path, content: bytes) -> None:
    archive = tmp_path / "damaged.jsa"
    archive.write_bytes(content)
    run = subprocess.run([find_java(), *using(archive), "-version"], capture_output=True, text=True, check=True)
    assert run.stdout == ""
    assert "version" in run.stderr
