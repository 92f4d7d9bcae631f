"""Finds, loses and waits for a sender: the channel from a producer to the sender process."""
