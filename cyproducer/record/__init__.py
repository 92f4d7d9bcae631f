"""Implements Kafka's RecordBatch v2: varints, CRC-32C, encoding, merging, and a reference in plain Python."""
