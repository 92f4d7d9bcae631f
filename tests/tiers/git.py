"""Asks git about the source tree."""

import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


class GitError(Exception):
    """git cannot answer."""


def git(*arguments: str) -> list[str]:
    """Return the lines that a command of git prints. Raise GitError."""
    run = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True)
    if run.returncode:
        raise GitError(f"git {' '.join(arguments)} failed: {run.stderr.strip()}")
    return run.stdout.splitlines()
