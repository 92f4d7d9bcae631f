"""Kafka's own jars, of which a real node on this machine is made."""

from pathlib import Path

from cyproducer.cli.maven_jars import Artifact, cached_jars

KAFKA_VERSION = "4.3.1"

ARTIFACTS = (
    Artifact("org.apache.kafka", "kafka_2.13", KAFKA_VERSION, whole=True),
    # DumpLogSegments and TopicCommand; their dependencies are already those of the broker.
    Artifact("org.apache.kafka", "kafka-tools", KAFKA_VERSION),
    # The broker brings slf4j-api 1.7 without a binding, and would be silent.
    Artifact("org.slf4j", "slf4j-simple", "1.7.36"),
)


def kafka_jars() -> Path:
    """Directory that holds the jars of Kafka 4.3.1, fetched on the first call (half a minute).

    Raises as cached_jars does.
    """
    return cached_jars(f"kafka-{KAFKA_VERSION}", f"Kafka {KAFKA_VERSION} (about 45 MB)", ARTIFACTS)
