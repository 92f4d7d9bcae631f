"""Executes a long run of the fuzzer of control messages, in both directions."""

import time
from collections.abc import Callable
from typing import Any

import hypothesis
from hypothesis import strategies as st

from hostile.false_sender import FalseSender
from hostile.live_control import LiveControl
from hostile.messages import actions, answers

__all__ = ["fuzz_messages"]


def fuzz_messages(count: int, seed: int, say: Callable[[str], None]) -> int:
    """Let hypothesis draw `count` examples for each direction. Return 1 if one of them breaks something, else 0."""
    live, false = LiveControl(), FalseSender()
    try:
        for name, target, drawn in (
            ("a control server", live, actions()),
            ("a front-end that attaches", false, answers()),
        ):
            began = time.monotonic()
            try:
                _run(live.attack if target is live else false.answer, drawn, count, seed)
            except Exception as error:  # with the smallest example that shows it
                say(f"{name}: {type(error).__name__}: {error}\n" + "\n".join(getattr(error, "__notes__", [])))
                return 1
            seconds = time.monotonic() - began
            say(f"{name}: {target.inputs} messages in {seconds:.0f} s, each answered or hung up on")
    finally:
        live.remove()
        false.close()
    return 0


def _run(attack: Callable[[Any], None], drawn: "st.SearchStrategy[Any]", count: int, seed: int) -> None:
    chosen = hypothesis.settings(
        max_examples=count, deadline=None, database=None, suppress_health_check=list(hypothesis.HealthCheck)
    )
    hypothesis.seed(seed)(chosen(hypothesis.given(drawn)(attack)))()
