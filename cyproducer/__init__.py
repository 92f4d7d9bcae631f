"""One Kafka producer for every Python process on a host."""

__version__ = "0.1.0"
