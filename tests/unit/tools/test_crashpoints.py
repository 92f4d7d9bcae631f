"""Tests crash points: the list comes from the source; a debug build acts on one, a release build has none."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from crash.scenario import AFTER, BOTH_FALL, FRESH
from crash.stimuli import STIMULI
from support.build import PACKAGE, is_debug
from support.crashpoints import AFTER_LOST_ANSWERS, Trigger, points
from support.process import script_environment

from cyproducer.shm.native import SANITIZED

STEPS = (
    "append", "commit", "submit", "seal", "outcome", "accumulate", "drain", "build", "write", "read", "complete",
    "reclaim", "attach", "recover", "split", "epoch", "expire", "supervise", "publish", "release", "metrics",
)  # fmt: skip
SCRIPT = """
import sys
from cyproducer.shm.native import crashpoint, set_role
if sys.argv[1] != "front-end":
    set_role(sys.argv[1])
crashpoint("other.point")
print("first", flush=True)
crashpoint("some.point")
print("second", flush=True)
crashpoint("some.point")
print("third", flush=True)
"""


def test_every_step_has_points():
    found = points()
    steps = {name.partition(".")[0] for name in found}
    assert steps >= set(STEPS)
    assert all(name.count(".") == 1 and len(name) < 128 and name.isascii() for name in found)


@pytest.mark.parametrize("names", [AFTER_LOST_ANSWERS, FRESH, BOTH_FALL, AFTER, STIMULI])
def test_the_tests_name_points_that_the_source_has(names):
    assert set(names) <= set(points())


@pytest.mark.skipif(SANITIZED, reason="a sanitized build keeps unreferenced names")
def test_a_release_build_has_no_points_and_a_debug_build_has_all():
    native = b"".join(path.read_bytes() for path in sorted(PACKAGE.rglob("*.so")))
    for name, file in points().items():
        if not file.endswith(".py"):
            assert (name.encode() + b"\0" in native) == is_debug(), name


@pytest.fixture
def trigger(tmp_path: Path):
    trigger = Trigger(tmp_path)
    yield trigger
    trigger.close()


def run(trigger: Trigger, role: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-c", SCRIPT, role],
        env=script_environment(trigger.environment),
        capture_output=True,
        timeout=30,
    )


@pytest.mark.parametrize("role", ["front-end", "sender"])
def test_a_point_acts_once_on_its_hit_in_its_role(trigger, role):
    trigger.arm("some.point", "sender", signal.SIGKILL, hit=2)
    ended = run(trigger, role)
    if role == "sender" and is_debug():
        assert ended.returncode == -signal.SIGKILL
        assert ended.stdout == b"first\nsecond\n"
        assert trigger.fired
    else:
        assert ended.returncode == 0
        assert trigger.fired == 0
    again = run(trigger, role)
    assert again.stdout == b"first\nsecond\nthird\n"


def test_a_point_that_is_not_armed_does_not_act(trigger):
    trigger.arm("some.point", "front-end", signal.SIGKILL)
    trigger.disarm()
    assert run(trigger, "front-end").returncode == 0
