"""Keeps the name by which pickles of any version contain a RecordMetadata."""

from cyproducer.producer.core.native import unpickled_metadata as RecordMetadata

__all__ = ["RecordMetadata"]
