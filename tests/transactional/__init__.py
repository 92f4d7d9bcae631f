"""Kills transactional front-ends, senders and brokers at random, and checks that no transaction is visible in part.

`python -m tests.transactional --help` runs it by hand.
"""
