"""Reads what a running script prints."""

import os
import subprocess


def expect(process: "subprocess.Popen[str]", line: str) -> None:
    """Read the script's next line and compare it; on a mismatch fail with the script's stderr so far."""
    found = process.stdout.readline()
    if found != line + "\n":
        os.set_blocking(process.stderr.fileno(), False)
        try:
            errors = os.read(process.stderr.fileno(), 1 << 16).decode()
        except BlockingIOError:
            errors = ""
        raise AssertionError(f"{line!r} was expected, {found!r} was printed\n{errors}")
