"""Tests that the declarations which tools/generate.py writes are those of their sources."""

import subprocess
import sys

from test_tidy import ROOT


def test_generating_again_changes_nothing() -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "tools" / "generate.py", "--check"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, ""), f"run python tools/generate.py\n{done.stdout}{done.stderr}"
