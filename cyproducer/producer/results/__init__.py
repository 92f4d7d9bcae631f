"""Results of records: futures, record metadata and callbacks."""
