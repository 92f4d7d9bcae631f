"""The sender process: one native loop that ships the batches of all front-ends."""
