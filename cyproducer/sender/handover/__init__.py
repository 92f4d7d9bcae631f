"""Passes the work of one sender process to the next: election, handover and upgrade (`--replace`)."""
