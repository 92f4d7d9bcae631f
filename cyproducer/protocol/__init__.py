"""Encodes and decodes the messages of Kafka's protocol with tables of fields, without sockets."""
