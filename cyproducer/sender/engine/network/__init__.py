"""Runs the loop's connections to brokers with epoll: writes and reads without blocking."""
