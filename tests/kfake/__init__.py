"""Stands in for Kafka's brokers in tests: the log of a partition, by the rules of Kafka.

What drives it (sockets, time and faults) is in tests/support for tests with threads, and in tests/simulation for
schedules on a virtual clock.
"""
