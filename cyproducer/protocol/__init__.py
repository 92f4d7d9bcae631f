"""Kafka's wire protocol as tables of fields, without sockets."""
