"""Fetches Kafka's jars, from which a Kafka node on this machine is started."""

from pathlib import Path

from cyproducer.devkafka.maven import Artifact, cached_jars

KAFKA_VERSION = "4.3.1"

ARTIFACTS = (
    Artifact("org.apache.kafka", "kafka_2.13", KAFKA_VERSION, whole=True),
    # DumpLogSegments and TopicCommand; the broker already brings their dependencies.
    Artifact("org.apache.kafka", "kafka-tools", KAFKA_VERSION),
    # The broker brings slf4j-api 1.7 without a binding, and would print no log.
    Artifact("org.slf4j", "slf4j-simple", "1.7.36"),
)


def kafka_jars() -> Path:
    """Return the directory with the jars of Kafka 4.3.1. The first call fetches them, which takes half a minute.

    Raise the same errors as `cached_jars`.
    """
    return cached_jars(f"kafka-{KAFKA_VERSION}", f"Kafka {KAFKA_VERSION} (about 45 MB)", ARTIFACTS)
