"""Processes submitted batches before they are sent: queues, checks and compresses them, and chooses partitions."""
