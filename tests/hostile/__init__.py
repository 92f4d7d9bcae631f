"""Attacks the sender as a front-end (a fuzzer), beside two correct ones, on a real Kafka: `python -m tests.hostile`."""
