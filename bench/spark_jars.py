"""The jars of Spark's own Kafka sink, which PySpark does not bring along; kept in the user's cache."""

from pathlib import Path

from cyproducer.cli.maven_jars import Artifact, cached_jars

# They run on Spark 4.1 to 4.3.
JARS = (
    Artifact("org.apache.spark", "spark-sql-kafka-0-10_2.13", "4.2.0"),
    Artifact("org.apache.spark", "spark-token-provider-kafka-0-10_2.13", "4.0.0"),
    Artifact("org.apache.kafka", "kafka-clients", "3.9.1"),
    Artifact("org.apache.commons", "commons-pool2", "2.12.0"),
)


def spark_kafka_jars() -> list[Path]:
    """The four jars, fetched on the first call.

    Raises as cached_jars does.
    """
    target = cached_jars(f"spark-sql-kafka-{JARS[0].version}", "Spark's Kafka sink (about 6 MB)", JARS)
    return [target / f"{jar.name}-{jar.version}.jar" for jar in JARS]
