"""Tests every crash point of the source on a real broker: a process is killed, or stopped, at each of them.

`python -m tests.crash --help` runs it from the source tree, with a debug build.
"""
