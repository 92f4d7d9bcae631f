"""Holds the sender's engine: the native loop, its front-ends, draining, and recovery after a takeover."""
