"""Checks the names in the first column of docs/reference/java_differences.md against the classes of the real Kafka."""

import re
import zipfile
from pathlib import Path

import pytest
from devkafka.jars import KAFKA_VERSION, kafka_jars
from devkafka.maven import DownloadError

PAGE = Path(__file__).parents[3] / "docs/reference/java_differences.md"
#: Kafka's own tests, which the jar does not contain, and a setting of a later version.
ELSEWHERE = re.compile(r"test[A-Z]\w+|\w+\.py|partitioner\.rack\.aware")


def names() -> set[str]:
    """Return the names of classes, methods and settings. `Class.method` is two names."""
    found = set()
    for line in PAGE.read_text().splitlines():
        if line.startswith("| `"):
            found |= set(re.findall(r"`([\w.]+)", line.split(" | ")[0]))
    found = {name for name in found if not ELSEWHERE.fullmatch(name)}
    return {part for name in found for part in ([name] if name.islower() else name.split("."))}


def test_every_name_is_one_of_kafka() -> None:
    try:
        jars = kafka_jars()
    except DownloadError as error:
        pytest.fail(str(error), pytrace=False)
    with zipfile.ZipFile(jars / f"kafka-clients-{KAFKA_VERSION}.jar") as jar:
        classes = [name for name in jar.namelist() if name.startswith("org/apache/kafka/") and name.endswith(".class")]
        known = set(re.findall(r"[\w.]+", "\n".join(classes)))
        for name in classes:
            # Before a name are two bytes, its length, which below 48 is no letter. Another constant begins behind it.
            known |= {word.decode() for word in re.findall(rb"[\w.]+", jar.read(name))}
    wanted = names()
    assert len(wanted) > 90
    assert sorted(wanted - known) == []
