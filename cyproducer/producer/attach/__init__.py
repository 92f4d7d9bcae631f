"""Finds or starts a sender and attaches to it."""
