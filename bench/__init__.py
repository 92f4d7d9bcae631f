"""Benchmarks that compare cyproducer with other Kafka producers and with Spark's sinks: ``python -m bench --help``."""
