"""Holds the points at which an application extends the producer: interceptors and partitioners."""
