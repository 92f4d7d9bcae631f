"""Runs rounds against a real Kafka: a proxy drops its answers until a broker fault ends the connection.

Required: nothing is in the log twice or out of order, and every acknowledged record is there, at the reported offset.
"""
