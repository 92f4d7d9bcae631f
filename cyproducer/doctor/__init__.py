"""Checks why a producer cannot work, or does not share a sender: what `cyproducer doctor` prints."""
