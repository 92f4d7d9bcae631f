"""Tests two senders started at once, forty times. A thousand times: `python -m tests.chaos --double-starts 1000`."""

import os
import re
import subprocess
import sys

from support.process import script_environment

ROUNDS = 40


def test_one_of_two_senders_wins(runtime_dir):
    command = [sys.executable, "-m", "chaos.starts", str(ROUNDS), "4"]
    ended = subprocess.run(command, env=script_environment(), stdout=subprocess.PIPE, text=True, timeout=120)
    assert ended.returncode == 0, ended.stdout
    assert re.search(rf"with a stale socket and lock +{ROUNDS // 2}\n", ended.stdout), ended.stdout
    assert [name for name in os.listdir(runtime_dir) if not name.endswith(".log")] == []
