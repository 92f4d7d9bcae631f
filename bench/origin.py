"""Describes the origin of results: the commit of the code, and the run in which they were measured."""

import json
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
WRITTEN = (":(exclude)bench/results", ":(exclude)bench/RESULTS.md", ":(exclude)README.md")
"""The files that a run writes. Changes in them do not make the tree dirty."""


def commit_of(root: Path = ROOT) -> dict[str, Any] | None:
    """Return the `hash` of the commit and whether the tree is `dirty`; None if `root` is not a repository's top."""
    top = _git(root, "rev-parse", "--show-toplevel")
    head = _git(root, "rev-parse", "--short", "HEAD")
    if top is None or head is None or Path(top).resolve() != root.resolve():
        return None
    return {"hash": head, "dirty": bool(_git(root, "status", "--porcelain", "--", ".", *WRITTEN))}


def _git(root: Path, *arguments: str) -> str | None:
    """Return git's output, None if git fails or is missing. It takes no lock, because other git commands may run."""
    try:
        run = subprocess.run(
            ["git", "--no-optional-locks", "-C", root, *arguments], capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return run.stdout.strip()


class Run(NamedTuple):
    """A run that has left results."""

    began: float
    commit: Mapping[str, Any] | None
    processor: str
    loopback: float | None
    names: tuple[str, ...]

    @property
    def day(self) -> str:
        """The date in UTC."""
        return time.strftime("%Y-%m-%d", time.gmtime(self.began))

    @property
    def code(self) -> str:
        """The commit as text."""
        if self.commit is None:
            return "commit not known"
        return f"commit {self.commit['hash']}{' with changes' if self.commit['dirty'] else ''}"

    @property
    def label(self) -> str:
        """A text that distinguishes this run from other runs."""
        at = time.strftime("%H:%M UTC", time.gmtime(self.began))
        loopback = "not measured" if self.loopback is None else f"{self.loopback:.3g} GB/s"
        return f"{self.day} {at}, {self.code}, {self.processor}, loopback {loopback}"


def runs_of(found: Mapping[str, Mapping[str, Any]]) -> list[Run]:
    """Return the runs of results, the oldest first. The limits identify a run: no two runs measure the same values."""
    by_run: dict[str, list[str]] = {}
    for name, made in sorted(found.items(), key=lambda item: item[1]["began"]):
        by_run.setdefault(json.dumps([made.get("commit"), made["limits"]], sort_keys=True), []).append(name)
    return [_run(names, found[names[0]]) for names in by_run.values()]


def largest(runs: Sequence[Run]) -> Run:
    """Return the run with the most results, the newest of several."""
    return max(reversed(runs), key=lambda run: len(run.names))


def _run(names: list[str], first: Mapping[str, Any]) -> Run:
    loopback = first["limits"].get("loopback_gb_per_s")
    return Run(first["began"], first.get("commit"), first["machine"]["processor"], loopback, tuple(names))
