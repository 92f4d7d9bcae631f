"""Contains the demo that `cyproducer demo` runs: it publishes real data, reads it back and compares."""
