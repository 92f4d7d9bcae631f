"""Implements the results of records: futures, record metadata and callbacks."""
