"""Keeps the metadata of a cluster: topics, leaders and epochs, and the rules for refreshing them."""
