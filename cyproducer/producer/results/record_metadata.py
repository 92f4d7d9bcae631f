"""Keeps the name by which pickles of any version contain a RecordMetadata."""

from cyproducer.producer.core import native

__all__ = ["RecordMetadata"]


def RecordMetadata(
    topic: str, partition: int, offset: int, timestamp: int, serialized_key_size: int, serialized_value_size: int
) -> native.RecordMetadata:
    """Return the RecordMetadata with these fields: the first versions had the class at this place."""
    return native.RecordMetadata(topic, partition, offset, timestamp, serialized_key_size, serialized_value_size)
