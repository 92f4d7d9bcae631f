"""Sends records to a real Kafka while the handler of an alarm raises exceptions at random moments."""
