"""Provides Linux services for the sender and the supervisor: signals, a log that never blocks, process settings."""
