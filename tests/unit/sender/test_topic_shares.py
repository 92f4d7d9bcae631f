"""Tests how the sender's table of topics is shared among front-ends."""

import logging
from collections.abc import Iterator

import pytest
from support.whole_engine import Engine

from cyproducer.config.settings import Settings
from cyproducer.shm.native import TOPICS_MAX


@pytest.fixture
def engine() -> Iterator[Engine]:
    made = Engine(Settings.parse(bootstrap_servers="127.0.0.1:1").sender_settings(), logging.getLogger("engine"))
    yield made
    made.close()


def add_all(engine: Engine, attach_id: int, prefix: str) -> int:
    """Request new names until one is refused. Return how many were not."""
    for number in range(TOPICS_MAX):
        try:
            engine.want_topic(attach_id, f"{prefix}{number}")
        except OverflowError:
            return number
    return TOPICS_MAX


def test_each_front_end_that_asks_without_end_leaves_half_of_the_table(engine: Engine) -> None:
    assert add_all(engine, 1, "a") == TOPICS_MAX // 2
    assert add_all(engine, 2, "b") == TOPICS_MAX // 4
    assert add_all(engine, 3, "c") == TOPICS_MAX // 8
    engine.want_topic(1, "c0")  # a name that the table has costs nothing
    with pytest.raises(OverflowError, match=r"has added 8192 topic names.*a sender of its own"):
        engine.want_topic(1, "new")
    engine.want_topic(4, "new")


def test_front_ends_that_ask_in_turn_get_equal_shares(engine: Engine) -> None:
    added = dict.fromkeys((1, 2, 3), 0)
    for number in range(TOPICS_MAX):
        for attach_id in added:
            try:
                engine.want_topic(attach_id, f"{attach_id}-{number}")
                added[attach_id] += 1
            except OverflowError:
                pass
        if sum(added.values()) < 3 * number:
            break
    assert max(added.values()) - min(added.values()) <= 1
    assert sum(added.values()) <= TOPICS_MAX * 3 // 4 + 3
