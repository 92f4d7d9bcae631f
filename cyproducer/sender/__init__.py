"""Runs the sender process: one native loop sends the batches of all front-ends."""
