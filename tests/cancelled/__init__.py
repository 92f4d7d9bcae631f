"""Cancels the calls of transactions in asyncio at random, and checks what readers see and that no result is lost.

`python -m tests.cancelled --help` runs it by hand.
"""
