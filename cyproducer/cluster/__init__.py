"""Cluster metadata: topics, leaders and epochs, and the rules for refreshing them."""
