"""Makes generated calls of arrays for a longer time, with other seeds each time, in a process that may crash."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

SECONDS = 60


@pytest.mark.long
def test_generated_calls_for_a_longer_time(tmp_path):
    # In another directory: the package that is installed is the one that is tested.
    command = [sys.executable, str(Path(__file__).with_name("__main__.py")), "--seconds", str(SECONDS)]
    done = subprocess.run(command, cwd=tmp_path, env=os.environ, capture_output=True, text=True)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
