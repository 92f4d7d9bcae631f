"""Kills and stops front-ends, sender, supervisor and brokers at random (chaos runs); no record may be lost.

`python -m tests.chaos --help` runs it from the source tree.
"""
