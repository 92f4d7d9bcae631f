"""Kafka's RecordBatch v2: varints, CRC-32C, building, merging, and a plain-Python twin used as oracle."""
