"""Provides RecordMetadata under the name that pickles of earlier versions contain."""

from cyproducer.producer.core.native import RecordMetadata

__all__ = ["RecordMetadata"]
