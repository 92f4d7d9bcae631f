"""Fetches Kafka's jars, from which a Kafka node on this machine is started."""

from pathlib import Path

from devkafka.maven import Artifact, cached_jars

KAFKA_VERSION = "4.3.1"

# The broker brings slf4j-api 1.7 without a binding, and would print no log.
_LOGGER = Artifact("org.slf4j", "slf4j-simple", "1.7.36")


def kafka_jars(version: str = KAFKA_VERSION) -> Path:
    """Return the directory with the jars of a version of Kafka. The first call fetches them, in half a minute.

    The jars of 4.3.1 contain Kafka's tools (DumpLogSegments, TopicCommand, ConfigCommand), those of an older version
    only the broker. Raise the same errors as `cached_jars`.
    """
    artifacts = [Artifact("org.apache.kafka", "kafka_2.13", version, whole=True), _LOGGER]
    if version == KAFKA_VERSION:
        # The broker already brings the dependencies of the tools.
        artifacts.insert(1, Artifact("org.apache.kafka", "kafka-tools", version))
    return cached_jars(f"kafka-{version}", f"Kafka {version} (about 45 MB)", artifacts)
