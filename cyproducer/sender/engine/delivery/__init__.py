"""Requests, responses, and the rules that decide what happens to a batch after each response."""
