"""Tests a short run of the fuzzer of control messages; longer: `python -m tests.hostile --messages N`."""

from hypothesis import given

from hostile.false_sender import FalseSender
from hostile.live_control import LiveControl
from hostile.messages import Step, actions, answers


def test_a_control_server_survives_any_message() -> None:
    """It answers or hangs up, keeps no descriptor, and serves the others."""
    live = LiveControl()

    @given(connections=actions())
    def attack(connections: list[list[Step]]) -> None:
        live.attack(connections)

    try:
        attack()
    finally:
        live.remove()


def test_a_front_end_survives_any_answer() -> None:
    """It attaches, tries again, or raises a KafkaError. It keeps no descriptor."""
    sender = FalseSender()

    @given(steps=answers())
    def answer(steps: list[Step]) -> None:
        sender.answer(steps)

    try:
        answer()
    finally:
        sender.close()
