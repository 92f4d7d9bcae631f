"""Fails a test in which an engine of this process has detached a front-end that broke the protocol."""

from collections.abc import Iterator

import pytest

from cyproducer.sender.cluster.violations import Violations
from cyproducer.sender.engine.events import Violated


@pytest.fixture(autouse=True)
def no_violation_in_an_engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Look at the engine, whose owner may not log it. A test that is marked breaks_protocol may have violations."""
    seen: list[Violated] = []
    detach = Violations.on_event

    def note(violations: Violations, event: Violated, now_ms: int) -> None:
        seen.append(event)
        detach(violations, event, now_ms)

    monkeypatch.setattr(Violations, "on_event", note)
    yield
    if seen and not request.node.get_closest_marker("breaks_protocol"):
        pytest.fail(f"a front-end was detached for a violation: {seen}", pytrace=False)
