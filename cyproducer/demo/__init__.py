"""The demo that `cyproducer demo` runs: publish real data, read it back and compare."""
