"""Kills drivers of a streaming query with `exactly_once`, their senders and Spark's workers at random moments.

`python -m tests.spark_chaos --help`. Each number that the source has must be visible once to a reader of committed
records at the end.
"""
