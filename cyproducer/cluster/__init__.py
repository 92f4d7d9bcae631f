"""Cluster metadata: topics, leaders, epochs, and when to refresh them."""
