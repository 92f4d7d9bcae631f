"""Serves the sender's control socket: attaches front-ends, answers messages, and decides when the sender ends."""
