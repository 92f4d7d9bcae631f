"""Writes Produce requests, reads their responses, and decides what happens to a batch after each response."""
