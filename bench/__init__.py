"""Measures cyproducer beside confluent-kafka and Spark's own Kafka sink: ``python -m bench --help``."""
