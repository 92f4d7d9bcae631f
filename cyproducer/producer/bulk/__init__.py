"""Implements `send_array` and `send_arrow`: columns become record batches."""
