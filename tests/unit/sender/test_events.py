"""Tests that the types of the loop's events are complete."""

from typing import get_args

from cyproducer.sender.engine import events


def test_every_event_is_one_of_the_union_and_is_exported() -> None:
    kinds = {
        each
        for each in vars(events).values()
        if isinstance(each, type) and issubclass(each, tuple) and each.__module__ == events.__name__
    }
    assert kinds == set(get_args(events.Event))
    assert {each.__name__ for each in kinds} <= set(events.__all__)
