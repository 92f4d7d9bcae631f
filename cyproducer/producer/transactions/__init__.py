"""Implements the front-end half of transactions: states, the sender's commands, offsets, context managers."""
