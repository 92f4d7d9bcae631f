"""Makes generated calls of arrays for a longer time, with other seeds each time, in a process that may crash."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

SECONDS = 60


@pytest.mark.long
def test_generated_calls_for_a_longer_time():
    root = Path(__file__).resolve().parents[2]
    command = [sys.executable, "-m", "tests.arrays", "--seconds", str(SECONDS)]
    done = subprocess.run(command, cwd=root, env=os.environ, capture_output=True, text=True)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
