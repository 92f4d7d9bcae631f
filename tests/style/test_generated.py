"""Tests that the declarations which tools/generate.py writes are those of their sources."""

import re
import subprocess
import sys

from test_tidy import ROOT

SHM = ROOT / "cyproducer" / "shm"
#: Cython needs no function of it: its macro is declared by hand.
NOT_DECLARED = "crashpoint.h"


def test_generating_again_changes_nothing() -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "tools" / "generate.py", "--check"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, ""), f"run python tools/generate.py\n{done.stdout}{done.stderr}"


def test_every_function_of_shared_memory_is_declared() -> None:
    """So that no header is left out."""
    declared = set(re.findall(r"\b(cyp_\w+)\"?\(", (SHM / "protocol.pxd").read_text()))
    functions = {
        name
        for header in SHM.glob("*.h")
        if header.name != NOT_DECLARED
        for name in re.findall(r"^static inline .*?\b(cyp_\w+)\(", header.read_text(), re.MULTILINE)
    }
    assert "cyp_slot_open" in functions
    assert functions <= declared, functions - declared
