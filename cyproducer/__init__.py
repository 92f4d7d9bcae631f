"""One Kafka producer for every Python process on a host."""

import sys

from cyproducer import errors
from cyproducer.types import ArrayMetadata, RecordMetadata, TopicPartition

if sys.platform == "linux":
    from cyproducer.producer.producer import KafkaProducer
    from cyproducer.producer.waiters import as_completed, wait
else:
    from cyproducer.unsupported import KafkaProducer, as_completed, wait

__all__ = [
    "ArrayMetadata", "KafkaProducer", "RecordMetadata", "TopicPartition", "as_completed", "errors", "wait",
]

__version__ = "0.1.0"
