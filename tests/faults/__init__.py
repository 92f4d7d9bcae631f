"""Injects one fault at a time into three real brokers under steady load, and checks the outcome of every record."""
