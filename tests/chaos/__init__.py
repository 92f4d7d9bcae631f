"""Chaos: front-ends, sender, supervisor and brokers are killed and stopped at random; nothing may be lost.

`python -m tests.chaos --help` runs it from the source tree.
"""
