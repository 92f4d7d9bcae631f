"""Stands in for Kafka's brokers in tests: their logs, their coordinators, and their answers to requests.

What drives them (sockets, time and faults) is a part of it for tests with threads (scripted_broker.py), and of
tests/simulation for schedules on a virtual clock.
"""
