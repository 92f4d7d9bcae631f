"""Compares the behaviour of the source tree with that of a commit: a change that only moves code alters nothing.

Both are built in a temporary directory and play the same schedules of the simulation. What happens in a schedule has a
digest, and the digests must be equal. `--points` also builds both for debug, and plays schedules in which senders are
killed at each crash point. `--tests` also runs the model and the tests of the engine on the source tree.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LEFT_OUT = shutil.ignore_patterns(".git", ".tox", "build", "*.so", "__pycache__", ".hypothesis", ".mypy_cache")
#: Prints {seed: digest}. A schedule with a defect has a digest, too.
PLAY = """
import json, sys
from simulation.campaign import play
first, count, point = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3] or None
print(json.dumps(play(first, count, point=point, workers=int(sys.argv[4])).digests))
"""
POINTS = "import json; from simulation.worker import crash_points; print(json.dumps(crash_points()))"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("base", help="the commit to compare with")
    parser.add_argument("--schedules", type=int, default=3000, help="how many schedules are played (default: 3000)")
    parser.add_argument("--points", type=int, metavar="N", help="also play N schedules at each crash point")
    parser.add_argument("--tests", action="store_true", help="also run the model and the tests of the engine")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="processes of the simulation")
    return parser.parse_args()


def environment(tree: Path, debug: bool) -> dict[str, str]:
    compiler = os.environ.get("CC", "gcc")
    if shutil.which("ccache") and "ccache" not in compiler:
        compiler = f"ccache {compiler}"
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(tree), str(tree / "tests")]),
        "CC": compiler,
        "CFLAGS": os.environ.get("CFLAGS", "-O1"),
        "CYPRODUCER_DEBUG": "1" if debug else "",
        "CYPRODUCER_BUILD_JOBS": os.environ.get("CYPRODUCER_BUILD_JOBS", "2"),
    }


def run(tree: Path, debug: bool, *command: str) -> str:
    """Run Python in a tree and return what it printed. End this program if it fails."""
    done = subprocess.run(
        [sys.executable, *command], cwd=tree, env=environment(tree, debug), capture_output=True, text=True, check=False
    )
    if done.returncode:
        sys.exit(f"{' '.join(command)[:100]} failed in {tree.name}:\n{done.stdout[-2000:]}{done.stderr[-4000:]}")
    return done.stdout


def build(tree: Path, debug: bool) -> None:
    print(f"building {tree.name}{' for debug' if debug else ''}", flush=True)
    run(tree, debug, "setup.py", "build_ext", "--inplace")


def digests(tree: Path, debug: bool, count: int, point: str, workers: int) -> dict[str, str]:
    found: dict[str, str] = json.loads(run(tree, debug, "-c", PLAY, "0", str(count), point, str(workers)))
    return found


def compare(trees: list[Path], debug: bool, count: int, point: str, workers: int) -> int:
    """Play schedules in both trees, print the seeds that differ, and return how many these are.

    At a crash point the play ends after some kills, so one tree may have played more seeds than the other.
    """
    base, now = (digests(tree, debug, count, point, workers) for tree in trees)
    played = sorted(base.keys() & now.keys() if point else base.keys() | now.keys(), key=int)
    differ = [seed for seed in played if base.get(seed) != now.get(seed)]
    where = f" at {point}" if point else ""
    print(f"{len(played) - len(differ)} of {len(played)} digests are equal{where}", flush=True)
    if differ:
        print(f"  different{where}: seeds {', '.join(differ[:20])}", flush=True)
    return len(differ)


def main() -> int:
    chosen = arguments()
    with tempfile.TemporaryDirectory(prefix="cyp-equal-") as directory:
        base, now = trees = [Path(directory, "base"), Path(directory, "now")]
        subprocess.run(["git", "clone", "-q", "--no-checkout", str(ROOT), str(base)], check=True)
        commit = subprocess.check_output(["git", "-C", str(ROOT), "rev-parse", chosen.base], text=True).strip()
        subprocess.run(["git", "-C", str(base), "checkout", "-q", commit], check=True)
        shutil.copytree(ROOT, now, ignore=LEFT_OUT, symlinks=True)
        for tree in trees:
            build(tree, debug=False)
        different = compare(trees, False, chosen.schedules, "", chosen.workers)
        if chosen.tests:
            tests = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not long")
            print(run(now, False, *tests, "tests/model", "tests/integration/engine").splitlines()[-1], flush=True)
        if chosen.points:
            for tree in trees:
                build(tree, debug=True)
            points = json.loads(run(base, True, "-c", POINTS))
            different += sum(compare(trees, True, chosen.points, point, chosen.workers) for point in points)
    print("equal" if not different else f"NOT EQUAL: {different} schedules differ")
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
