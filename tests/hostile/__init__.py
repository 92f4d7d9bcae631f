"""A fuzzer attacks the sender as a front-end, beside two correct ones, on a real Kafka: `python -m tests.hostile`."""
