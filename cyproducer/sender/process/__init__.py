"""Runs the supervisor and the sender process, and writes their files."""
