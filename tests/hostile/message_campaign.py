"""Executes a long run of the fuzzer of control messages, in both directions."""

import logging
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import hypothesis
from hypothesis import strategies as st

from hostile.false_sender import FalseSender
from hostile.false_session import FalseSession
from hostile.live_control import LiveControl
from hostile.messages import actions, answers, handovers

__all__ = ["TARGETS", "Target", "fuzz_messages"]


class Target(NamedTuple):
    """What gets the messages.

    drawn    the messages of one example
    attack   sends them, and raises an exception if they break something
    inputs   returns how many messages were sent
    close    ends everything
    """

    drawn: "st.SearchStrategy[Any]"
    attack: Callable[[Any], None]
    inputs: Callable[[], int]
    close: Callable[[], None]


def _control(tokens: bool) -> Target:
    live = LiveControl(tokens)
    return Target(actions(), live.attack, lambda: live.inputs, live.remove)


def _front_end(kind: str, attack: Callable[[FalseSender, Any], None]) -> Target:
    false = FalseSender()
    return Target(answers(kind), lambda steps: attack(false, steps), lambda: false.inputs, false.close)


def _successor() -> Target:
    """Return a target whose inputs count only if some of them were a complete handover."""
    false = FalseSender()
    return Target(handovers(), false.hand_over, lambda: false.inputs if false.handovers else 0, false.close)


def _session(kind: str, attack: Callable[[FalseSession, Any], None]) -> Target:
    false = FalseSession()
    return Target(answers(kind), lambda steps: attack(false, steps), lambda: false.inputs, false.close)


#: The makers of all targets, by what they are.
TARGETS: dict[str, Callable[[], Target]] = {
    "a control server": lambda: _control(False),
    "a control server that is supplied with tokens": lambda: _control(True),
    "a front-end that attaches": lambda: _front_end("attach", FalseSender.answer_attach),
    "a front-end that shows its token": lambda: _front_end("token", FalseSender.answer_token),
    "a front-end that supplies tokens": lambda: _front_end("token", FalseSender.serve_tokens),
    "a command": lambda: _front_end("request", FalseSender.answer_requests),
    "an attached front-end": lambda: _session("attach", FalseSession.tell),
    "a transactional front-end": lambda: _session("command", FalseSession.answer_commands),
    "a supervisor that takes over": _successor,
}


def fuzz_messages(count: int, seed: int, say: Callable[[str], None]) -> int:
    """Let hypothesis draw `count` examples for each target. Return 1 if one of them breaks something, else 0."""
    logging.getLogger("cyproducer").addHandler(logging.NullHandler())  # the warnings are those of the drawn messages
    for name, make in TARGETS.items():
        target = make()
        began = time.monotonic()
        try:
            _run(target, count, seed)
        except Exception as error:  # with the smallest example that shows it
            say(f"{name}: {type(error).__name__}: {error}\n" + "\n".join(getattr(error, "__notes__", [])))
            return 1
        finally:
            target.close()
        seconds = time.monotonic() - began
        say(f"{name}: {target.inputs()} messages in {seconds:.0f} s, each answered or hung up on")
    return 0


def _run(target: Target, count: int, seed: int) -> None:
    chosen = hypothesis.settings(
        max_examples=count, deadline=None, database=None, suppress_health_check=list(hypothesis.HealthCheck)
    )
    hypothesis.seed(seed)(chosen(hypothesis.given(target.drawn)(target.attack)))()
