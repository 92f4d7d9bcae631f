"""Helps tests of the arguments of `send_array`: gives the rows they stand for, and the errors of invalid ones."""

import pytest

from cyproducer.producer.producer import parse_arrays


def values_of(values, **more):
    """Return the values that would be sent."""
    return [row[1] for row in parse_arrays("t", values, **more).to_list()]


def column_of(name, **arguments):
    """Return one column of the rows that the arguments stand for."""
    place = {"topic": 0, "value": 1, "key": 2, "headers": 3, "partition": 4, "timestamp": 5}[name]
    count = arguments.pop("count", 3)
    return [row[place] for row in parse_arrays("t", [b"v"] * count, **arguments).to_list()]


def refusal(kind, values=(b"v", b"v", b"v"), **arguments):
    """Return the message of the TypeError or ValueError that the arguments raise."""
    if isinstance(values, tuple) and len(values) == 3:
        values = list(values)
    with pytest.raises(kind) as caught:
        parse_arrays("t", values, **arguments)
    assert type(caught.value) is kind
    return str(caught.value)
