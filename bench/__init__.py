"""Compares cyproducer with other Kafka producers and with Spark's sinks in benchmarks: ``python -m bench --help``."""
