"""Contains the demo that `./demo` runs: it publishes real data, reads it back and compares."""
