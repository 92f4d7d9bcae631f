"""The commands of `./test` that choose environments of tox themselves."""

import argparse
import subprocess
import sys
from pathlib import Path

from tiers import changed, full, smoke
from tiers.git import ROOT, GitError


def main() -> int:
    parser = argparse.ArgumentParser(prog="./test", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    whole = commands.add_parser("full", help="all environments for the present commit, in several sittings")
    whole.add_argument("--again", action="append", default=[], metavar="ENV", help="run ENV although it has passed")
    whole.add_argument("--report", action="store_true", help="print what is known, and run nothing")
    some = commands.add_parser("changed", help="the tests that changed files need")
    some.add_argument("since", nargs="?", default="HEAD", help="the commit to compare with; HEAD by default")
    some.add_argument("--list", action="store_true", help="print the tests, and run nothing")
    names = commands.add_parser("smoke", help="write the tests of the tier `smoke` into a file of arguments for pytest")
    names.add_argument("file", type=Path)
    chosen = parser.parse_args()
    if chosen.command == "smoke":
        chosen.file.write_text("".join(f"{argument}\n" for argument in smoke.arguments()))
        return 0
    try:
        if chosen.command == "full":
            return full.run(chosen.again, chosen.report)
        return _run_changed(chosen.since, chosen.list)
    except (full.ChangedFilesError, GitError) as error:
        print(f"test: {error}", file=sys.stderr)
        return 2


def _run_changed(since: str, only_list: bool) -> int:
    files = changed.changed_files(since)
    if not files:
        print(f"test: nothing differs from {since}")
        return 0
    found = changed.by_environment(changed.tests_of(files))
    print(f"{len(files)} files differ from {since}. They need:\n  lint")
    for environment, tests in found.items():
        print(f"  {environment}: {' '.join(tests)}")
    if only_list:
        return 0
    status = _tox("lint", [])
    for environment, tests in found.items():
        status = _tox(environment, tests) or status
    return status


def _tox(environment: str, tests: list[str]) -> int:
    paths = [str(ROOT / "tests" / test) for test in tests]
    return subprocess.call([sys.executable, "-m", "tox", "run", "-e", environment, "--", *paths], cwd=ROOT)
