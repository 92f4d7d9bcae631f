"""Fetches the jars of Spark's own Kafka source and sink, which PySpark lacks, and keeps them in the user's cache."""

from pathlib import Path

from devkafka.maven import Artifact, cached_jars

# They run on Spark 4.1 to 4.3. Spark's `spark.jars.packages` resolves the first to these; PySpark has the rest.
JARS = (
    Artifact("org.apache.spark", "spark-sql-kafka-0-10_2.13", "4.2.0"),
    Artifact("org.apache.spark", "spark-token-provider-kafka-0-10_2.13", "4.2.0"),
    Artifact("org.apache.kafka", "kafka-clients", "3.9.2"),
    Artifact("org.apache.commons", "commons-pool2", "2.13.1"),
)


def spark_kafka_jars() -> list[Path]:
    """Return the four jars, which the first call fetches.

    Raise the same errors as `cached_jars`.
    """
    target = cached_jars(f"spark-kafka-{JARS[0].version}", "Spark's Kafka connector (about 10 MB)", JARS)
    return [target / f"{jar.name}-{jar.version}.jar" for jar in JARS]
