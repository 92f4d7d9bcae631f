"""Tests a short run of the fuzzer of control messages; longer: `python -m tests.hostile --messages N`."""

import ast
import inspect

import pytest
from hypothesis import given

from cyproducer.sender.control import control_server
from cyproducer.sender.control.transaction_commands import COMMANDS
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
    """The names are those that the control server compares with, so a new one is not forgotten."""
    compared = {
        node.comparators[0].value
        for node in ast.walk(ast.parse(inspect.getsource(control_server)))
        if isinstance(node, ast.Compare)
        and isinstance(node.left, ast.Name)
        and node.left.id == "op"
        and isinstance(node.comparators[0], ast.Constant)
    }
    assert len(compared) > 5
    known = [request() for request in REQUESTS]
    assert {each["op"] for each in known} >= compared
    assert {each["do"] for each in known if each["op"] == "transaction"} == set(COMMANDS)
