"""Tests the loop without memory for reports to Python: a connection, its end, a producer id, a front-end to detach."""

import os
import shlex
import subprocess
from pathlib import Path

import pytest
from support.process import run_script

SCRIPT = """
    import ctypes, sys, time
    from support.fault_rig import Rig
    from support.front_end import SUBMIT_FULL, run_until
    from kfake.scripted_broker import ScriptedBroker

    library = ctypes.CDLL(sys.argv[1])
    failing = ctypes.c_int.in_dll(library, "cyp_failing_of_eight")
    failed = ctypes.c_int.in_dll(library, "cyp_failed")

    def run(seconds):
        until = time.monotonic() + seconds
        run_until(rig.engine, lambda: time.monotonic() >= until)

    with ScriptedBroker(nodes=2) as broker, Rig(broker, request_timeout_ms=5000) as rig:
        rig.attach()
        failing.value = int(sys.argv[2])
        rig.send(0, 0)
        rig.send(0, 1)
        run(0.5)
        broker.drop_connections()
        run(0.5)
        assert failed.value > 0
        if failing.value == 8:  # no request that Python makes gets its answer
            failing.value = 0
        rig.settle(30)
        # A hint that names a slot outside the table.
        hostile = rig.attach()
        failing.value = 8
        rig.front_ends[hostile].submit(SUBMIT_FULL, 9999)
        found = []
        run_until(rig.engine, lambda: found.extend(rig.engine.take_violators()) or found, 30)
        assert found == [rig.front_ends[hostile].attach_id]
        failing.value = 0
        rig.send(0, 0)
        rig.settle(30)
        assert rig.errors(0) == [0, 0, 0]
        rig.check()
    print("done", failed.value)
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("preloaded") / "no_memory.so"
    source = Path(__file__).with_name("no_memory_for_events.c")
    compiler = shlex.split(os.environ.get("CC") or "cc")
    subprocess.run([*compiler, "-O1", "-shared", "-fPIC", "-o", path, source, "-ldl"], check=True)
    return path


@pytest.mark.parametrize("of_eight", [4, 8])
def test_report_that_had_no_memory_is_sent_later(library: Path, of_eight: int) -> None:
    done = run_script(SCRIPT, library, of_eight, env={"LD_PRELOAD": str(library)}, timeout=120)
    assert done.stdout.startswith("done")
