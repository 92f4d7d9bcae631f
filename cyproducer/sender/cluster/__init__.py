"""Keeps the connections to the brokers of a cluster and its metadata, and asks its coordinators."""
