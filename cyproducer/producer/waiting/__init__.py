"""Waits in threads and event loops for outcomes, metadata, memory and a new sender."""
