"""Puts one mistake after the other into a copy of the product, and runs the tests that must find it.

The tests first run once on the unchanged code: if one fails there, the result would mean nothing. The exit status is 1
if a mutant survives, and 2 after an error.
"""

import argparse
import re
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from tiers.git import git

from mutants.children import TooLongError, become_subreaper, run
from mutants.mutant import Mutant, chosen_by
from mutants.table import MUTANTS
from mutants.tree import BuildError, Tree

TEST_S = 60  # of one test; one that hangs has found the mutant
TESTS_S = 300.0  # of all tests of a mutant, in case that a test cannot be ended
UNCHANGED_S = 3600.0
PYTEST = ("-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "--hypothesis-profile=fixed", f"--timeout={TEST_S}")
FAILED = re.compile(r"^(?:FAILED|ERROR) (.+?)(?: - |$)", re.MULTILINE)


class WrongError(Exception):
    """The tests cannot say whether they find the mutant."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("ids", nargs="*", metavar="ID", help="only these mutants")
    parser.add_argument("--list", action="store_true", help="list the mutants, and run nothing")
    parser.add_argument(
        "--pick", type=int, metavar="N", help="only N mutants of those whose tests need no Kafka, chosen by the commit"
    )
    chosen = parser.parse_args()
    unknown = sorted(set(chosen.ids) - {mutant.id for mutant in MUTANTS})
    if unknown:
        parser.error(f"no mutant is called {', '.join(unknown)}; --list lists them")
    mutants = [mutant for mutant in MUTANTS if not chosen.ids or mutant.id in chosen.ids]
    if chosen.pick is not None:
        commit = git("rev-parse", "HEAD")[0]
        mutants = chosen_by(commit, [mutant for mutant in mutants if not mutant.needs_kafka], chosen.pick)
        print(f"commit {commit} chooses {', '.join(mutant.id for mutant in mutants)}", flush=True)
    mutants.sort(key=lambda mutant: (mutant.is_native, mutant.file))
    if chosen.list:
        for mutant in mutants:
            print(f"{mutant.id:28} {mutant.promise}  {mutant.file}: {mutant.mistake}")
        return 0
    # A shell's background jobs ignore SIGINT.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    directory = Path(tempfile.mkdtemp(prefix="cyp-mutants-"))
    try:
        return run_all(directory, mutants)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def run_all(directory: Path, mutants: Sequence[Mutant]) -> int:
    """Run the mutants, print what becomes of each, and return the exit status."""
    become_subreaper()
    began = time.monotonic()
    tree = Tree(directory)
    output = directory / "tests.txt"
    try:
        tree.build()
        tree.save()
        say(f"copied and built in {time.monotonic() - began:.0f} s; the tests run on the unchanged code")
        found_by = run_tests(tree, (test for mutant in mutants for test in mutant.tests), output, UNCHANGED_S)
    except (BuildError, WrongError) as error:
        print(error, file=sys.stderr)
        return 2
    if found_by is not None:
        print(f"without a mutant, the tests fail: {found_by}\n{output.read_text()[-3000:]}", file=sys.stderr)
        return 2
    say(f"they pass; {time.monotonic() - began:.0f} s so far")
    survived, wrong = [], []
    for number, mutant in enumerate(mutants, 1):
        start = time.monotonic()
        try:
            with tree.mutated(mutant):
                built = time.monotonic()
                found_by = run_tests(tree, mutant.tests, output, TESTS_S)
        except (BuildError, ValueError, WrongError) as error:
            wrong.append(mutant)
            result = f"ERROR: {error}"
        else:
            survived += [mutant] * (found_by is None)
            result = "SURVIVED" if found_by is None else f"found by {found_by}"
            result += f" ({time.monotonic() - start:.0f} s, of them {built - start:.0f} s to build it)"
        say(f"{number}/{len(mutants)} {mutant.id}: {result}")
    for what, some in (("survived", survived), ("could not be run", wrong)):
        for mutant in some:
            print(f"{mutant.id} {what}: {mutant.file}: {mutant.mistake}")
    found = len(mutants) - len(survived) - len(wrong)
    print(f"{found} of {len(mutants)} mutants found, in {time.monotonic() - began:.0f} s")
    return 2 if wrong else 1 if survived else 0


def run_tests(tree: Tree, tests: Iterable[str], output: Path, limit_s: float) -> str | None:
    """Run tests until one fails. Return which one, or what ended the tests; None if all pass.

    Raise WrongError if they cannot be run.
    """
    paths = [f"tests/{test}" for test in dict.fromkeys(tests)]
    try:
        status = run([sys.executable, *PYTEST, *paths], tree.root, tree.environment, output, limit_s)
    except TooLongError:
        return f"the end of the time, {limit_s:.0f} s"
    if status == 0:
        return None
    if status < 0:
        return f"a crash of the tests, signal {-status}"
    failed = FAILED.search(output.read_text(errors="replace"))
    if status > 2 or failed is None:
        raise WrongError(f"pytest ends with status {status}:\n{output.read_text(errors='replace')[-2000:]}")
    return failed[1]


def say(text: str) -> None:
    print(text, flush=True)
