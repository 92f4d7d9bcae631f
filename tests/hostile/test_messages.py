"""Tests a short run of the fuzzer of control messages; longer: `python -m tests.hostile --messages N`."""

from unittest.mock import Mock

import pytest
from hypothesis import given

from cyproducer.host.messages import COMMANDS
from cyproducer.sender.control.requests import Requests
from hostile.message_campaign import TARGETS
from hostile.messages import REQUESTS


@pytest.mark.parametrize("what", TARGETS)
def test_a_process_survives_any_message(what: str) -> None:
    """A sender answers or hangs up, keeps no descriptor, and serves the others.

    A front-end or a command goes on, tries again, or raises a KafkaError. It keeps no descriptor.
    """
    made = TARGETS[what]()

    @given(drawn=made.drawn)
    def attack(drawn: object) -> None:
        made.attack(drawn)

    try:
        attack()
    finally:
        made.close()
    assert made.inputs() > 0


def test_every_operation_of_a_sender_is_among_the_requests() -> None:
    """The names are those of the control server's table, so a new one is not forgotten."""
    operations = set(Requests(*[Mock() for _ in range(12)]).operations)
    assert len(operations) > 5
    known = [request() for request in REQUESTS]
    assert {each["op"] for each in known} >= operations
    assert {each["do"] for each in known if each["op"] == "transaction"} == set(COMMANDS)
