"""Runs all environments of tox for the present commit, in several sittings: the result of each is kept."""

import configparser
import dataclasses
import json
import subprocess
import sys
import time
from pathlib import Path

from tiers.git import ROOT, git

RESULTS = ROOT / ".tox" / "full"


class ChangedFilesError(Exception):
    """The files are not those of a commit, so there is no commit for which results can be kept."""


@dataclasses.dataclass
class Result:
    """How an environment has ended: its status (0: passed), its time in seconds, and when that was."""

    status: int
    seconds: float
    ended: str

    def line(self, environment: str) -> str:
        """Return the line of the report."""
        how = "passed" if self.status == 0 else f"FAILED ({self.status})"
        return f"{environment:<12} {how:<12} {self.seconds:7.0f} s  {self.ended}"


def environments() -> list[str]:
    """Return the environments of the label `full`, in order."""
    settings = configparser.ConfigParser(interpolation=None)
    settings.read(ROOT / "tox.ini")
    lines = settings["tox"]["labels"].replace("\\\n", "").splitlines()
    labels = dict(line.split("=", 1) for line in lines if "=" in line)
    names = next(value for name, value in labels.items() if name.strip() == "full")
    return [name.strip() for name in names.split(",")]


class Results:
    """The results of one commit, in a file."""

    def __init__(self, directory: Path, commit: str) -> None:
        self._path = directory / f"{commit}.json"
        self._found: dict[str, Result] = {}
        if self._path.exists():
            self._found = {name: Result(**fields) for name, fields in json.loads(self._path.read_text()).items()}

    def get(self, environment: str) -> Result | None:
        """Return the last result of an environment."""
        return self._found.get(environment)

    def add(self, environment: str, result: Result) -> None:
        """Keep a result."""
        self._found[environment] = result
        self._path.parent.mkdir(parents=True, exist_ok=True)
        written = self._path.with_suffix(".new")
        written.write_text(json.dumps({name: dataclasses.asdict(each) for name, each in self._found.items()}, indent=1))
        written.replace(self._path)


def run(again: list[str], report_only: bool = False) -> int:
    """Run what has not passed yet for the commit. Print a line for each environment. Return the exit status."""
    commit = _commit(report_only)
    results = Results(RESULTS, commit)
    names = environments()
    unknown = set(again) - set(names)
    if unknown:
        print(f"test: no environment of `full`: {', '.join(sorted(unknown))}; it has {', '.join(names)}")
        return 2
    try:
        for name in names:
            known = results.get(name)
            if report_only or (known is not None and known.status == 0 and name not in again):
                continue
            print(f"=== {name}", flush=True)
            results.add(name, _run_one(name))
    except KeyboardInterrupt:
        print("\ntest: interrupted; run it again to go on with the environments that are left")
        return 130
    finally:
        print(f"\nfull, commit {commit[:12]}:")
        for name in names:
            known = results.get(name)
            print(known.line(name) if known is not None else f"{name:<12} not run")
    return int(any(known is None or known.status for known in map(results.get, names)))


def _run_one(environment: str) -> Result:
    began = time.monotonic()
    status = subprocess.call([sys.executable, "-m", "tox", "run", "-e", environment], cwd=ROOT)
    return Result(status, time.monotonic() - began, time.strftime("%Y-%m-%d %H:%M"))


def _commit(changes_allowed: bool) -> str:
    changed = git("status", "--porcelain")
    if changed and not changes_allowed:
        raise ChangedFilesError("\n".join(["results are kept for a commit, and these files differ from it:", *changed]))
    return git("rev-parse", "HEAD")[0]
