"""One Kafka producer for every Python process on a host."""

from cyproducer import errors
from cyproducer.types import ArrayMetadata, RecordMetadata, TopicPartition

__all__ = ["ArrayMetadata", "RecordMetadata", "TopicPartition", "errors"]

__version__ = "0.1.0"
