"""Chaos runs: front-ends, sender, supervisor and brokers are killed and stopped at random; no record may be lost.

`python -m tests.chaos --help` runs it from the source tree.
"""
