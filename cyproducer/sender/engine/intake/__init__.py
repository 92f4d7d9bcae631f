"""Processing of submitted batches before they are sent: validation, choice of partitions, compression."""
