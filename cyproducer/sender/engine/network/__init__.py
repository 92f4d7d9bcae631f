"""Connections of the loop to brokers: epoll, and writing and reading without blocking."""
