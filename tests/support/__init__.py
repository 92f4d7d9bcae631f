"""Holds helpers of the tests; imported as ``support`` since ``tests/`` is on the path of every test module."""
