"""Holds the data structures of the sender's engine: front-ends, batches, partitions, entries and connections."""
