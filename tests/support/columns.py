"""The rows that arguments of `send_array` are read as, and what wrong ones raise."""

import pytest
from cyproducer.producer.rows import parse_arrays


def values_of(values, **more):
    """The values that would be sent."""
    return [row[1] for row in parse_arrays("t", values, **more).to_list()]


def column_of(name, **arguments):
    """One column of the rows by its place in Rows.to_list()."""
    place = {"topic": 0, "value": 1, "key": 2, "headers": 3, "partition": 4, "timestamp": 5}[name]
    count = arguments.pop("count", 3)
    return [row[place] for row in parse_arrays("t", [b"v"] * count, **arguments).to_list()]


def refusal(kind, values=(b"v", b"v", b"v"), **arguments):
    """The message of the TypeError or ValueError that the arguments raise."""
    if isinstance(values, tuple) and len(values) == 3:
        values = list(values)
    with pytest.raises(kind) as caught:
        parse_arrays("t", values, **arguments)
    assert type(caught.value) is kind
    return str(caught.value)
