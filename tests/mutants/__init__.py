"""Mutants of the product: one mistake each, which a test must find. `python -m tests.mutants --help` runs them."""
