"""Tests a connection that sends more than a correct one does: it has to wait, others do not."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from control_rig import Sender

from cyproducer.host import control_messages
from cyproducer.sender.control import quotas

TURNS = 20
TOPIC_COUNT = 300


@pytest.fixture
def sender(short_tmp: Path, runtime_dir: Path) -> Iterator[Sender]:
    sender = Sender(runtime_dir)
    yield sender
    sender.close()


def flood(client, message: Callable[[int], dict], most: int = 1000) -> int:
    """Send as many messages as the socket takes."""
    client.setblocking(False)
    for number in range(most):
        try:
            control_messages.send(client, message(number))
        except OSError:
            return number
    return most


def same_topic(_: int) -> dict:
    return {"op": "want", "topic": "t"}


def test_a_flood_of_messages_is_read_at_a_limited_rate(sender: Sender) -> None:
    _, noisy = sender.attach()
    _, correct = sender.attach()
    sent = flood(noisy, same_topic)
    assert sent > quotas.BURST
    for _ in range(TURNS):
        sender.turn()
    assert len(sender.engine.wanted) <= quotas.BURST
    control_messages.send(correct, {"op": "want", "topic": "u"})
    sender.turn()
    assert sender.engine.wanted[-1] == (2, "u")
    heard = len(sender.engine.wanted)
    assert 0 <= sender.server.timeout_ms() <= 1000 * quotas.PAUSE_MESSAGES / quotas.MESSAGES_PER_S + 1
    sender.turn(quotas.PAUSE_MESSAGES / quotas.MESSAGES_PER_S)
    for _ in range(TURNS):
        sender.turn()
    assert 0 < len(sender.engine.wanted) - heard <= quotas.PAUSE_MESSAGES
    for _ in range(sent):
        sender.turn(1)
    assert len(sender.engine.wanted) == sent + 1, "nothing is lost"


def test_new_topics_are_not_limited(sender: Sender) -> None:
    _, client = sender.attach()
    client.setblocking(False)
    left = [f"t{number}" for number in range(TOPIC_COUNT)]
    for _ in range(TOPIC_COUNT):
        while left:
            try:
                control_messages.send(client, {"op": "want", "topic": left[0]})
            except OSError:
                break
            del left[0]
        sender.turn()
    assert len(sender.engine.wanted) == TOPIC_COUNT


def test_the_end_of_a_rate_limited_connection(sender: Sender) -> None:
    """The number of its descriptor may belong to another connection when the pause would be over."""
    _, noisy = sender.attach()
    flood(noisy, same_topic)
    for _ in range(TURNS):
        sender.turn()
    (fd,) = sender.table._budget.until
    sender.table.end(sender.table.peers[fd], "the test ends it")
    assert not sender.table._budget.until
    sender.turn(1)
    assert sender.engine.detached == [1]
