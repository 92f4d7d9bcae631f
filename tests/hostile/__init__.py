"""A front-end that has gone mad beside two honest ones, on a real Kafka: `python -m tests.hostile`."""
