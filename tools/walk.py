"""Lists the files in which a function runs for each record, from send() to the future: the walk of a record.

The rule: a keyless, uncompressed record is sent and its future awaited, many times, one after the other, through a
sender process and a scripted broker. A file counts if one of its lines runs at least once for each record, in the
application or in the sender: twice as many records are sent in a second run, so that lines of the start do not count.
Declarations do not run. The source tree, or another commit with `--commit`, is built with the compiler's coverage, and
Cython names the lines of its files. Needs gcov.
"""

import argparse
import collections
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LEFT_OUT = shutil.ignore_patterns(".git", ".tox", "build", "*.so", "__pycache__", ".hypothesis", ".mypy_cache")
PROGRAM = """
import ctypes, sys
from kfake.scripted_broker import ScriptedBroker
from cyproducer import KafkaProducer

with ScriptedBroker("t", partitions=1, nodes=1) as broker:
    producer = KafkaProducer(bootstrap_servers=broker.bootstrap_servers, sender_idle_timeout_ms=0, linger_ms=0)
    for _ in range(int(sys.argv[1])):
        producer.send("t", b"value").result(30)
    producer.close()
"""


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--commit", help="the commit whose files are counted (default: the source tree)")
    parser.add_argument("--records", type=int, default=1000, help="how many are sent (default: 1000)")
    parser.add_argument("--lines", action="store_true", help="also print how many lines of each file have run")
    return parser.parse_args()


def copied(commit: str | None, tree: Path) -> None:
    if commit is None:
        shutil.copytree(ROOT, tree, ignore=LEFT_OUT, symlinks=True)
        return
    subprocess.run(["git", "clone", "-q", "--no-checkout", str(ROOT), str(tree)], check=True)
    subprocess.run(["git", "-C", str(tree), "checkout", "-q", commit], check=True)


def run(tree: Path, *command: str, **environment: str) -> None:
    paths = os.pathsep.join([str(tree), str(tree / "tests")])
    done = subprocess.run(
        [sys.executable, *command],
        cwd=tree,
        env={**os.environ, "PYTHONPATH": paths, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        sys.exit(f"{command[0]} failed:\n{done.stdout[-2000:]}{done.stderr[-4000:]}")


def build(tree: Path) -> None:
    setup = tree / "setup.py"
    text = setup.read_text()
    wanted = "compiler_directives=DIRECTIVES"
    assert text.count(wanted) == 1, "setup.py calls cythonize() in another way"
    setup.write_text(text.replace(wanted, f"{wanted}, emit_linenums=True"))
    for path in (tree / "cyproducer" / "sender").rglob("*.py"):
        text = path.read_text()
        if "os._exit(" in text:  # which would not write what was counted
            path.write_text(text.replace("os._exit(", "__import__('ctypes').CDLL(None).exit("))
    run(tree, "setup.py", "build_ext", "--inplace", CFLAGS="-O0 --coverage", CYPRODUCER_BUILD_JOBS="2")


def counts(tree: Path) -> collections.Counter[tuple[str, int]]:
    """Return {(file, line): how often it has run}."""
    found: collections.Counter[tuple[str, int]] = collections.Counter()
    for data in tree.rglob("*.gcda"):
        done = subprocess.run(
            ["gcov", "--json-format", "--stdout", str(data)], cwd=tree, capture_output=True, text=True, check=True
        )
        for row in done.stdout.splitlines():
            for file in json.loads(row)["files"]:
                for line in file["lines"]:
                    found[file["file"], line["line_number"]] += line["count"]
    return found


def lines_run(tree: Path, records: int, runtime: Path) -> dict[str, int]:
    """Send records twice, and return {file: number of its lines that run for each record}."""
    run(tree, "-c", PROGRAM, str(records), CYPRODUCER_RUNTIME_DIR=str(runtime))
    first = counts(tree)
    run(tree, "-c", PROGRAM, str(2 * records), CYPRODUCER_RUNTIME_DIR=str(runtime))
    both = counts(tree)
    rows: collections.Counter[str] = collections.Counter()
    for (name, line), count in both.items():
        path = Path(os.path.normpath(tree / name))
        runs = count - 2 * first[name, line]  # of the second run, without those that the first one had
        if runs >= records and tree in path.parents and path.suffix in (".pyx", ".pxd", ".h") and path.exists():
            rows[str(path.relative_to(tree))] += 1
    return dict(rows)


def main() -> int:
    chosen = arguments()
    with tempfile.TemporaryDirectory(prefix="cyp-walk-") as directory:
        tree = Path(directory).resolve() / "tree"
        copied(chosen.commit, tree)
        print("building", file=sys.stderr)
        build(tree)
        runtime = Path(directory, "runtime")
        runtime.mkdir(mode=0o700)
        found = lines_run(tree, chosen.records, runtime)
    for name in sorted(found):
        print(f"{name}: {found[name]} lines" if chosen.lines else name)
    kinds = collections.Counter(Path(name).suffix for name in found)
    print(f"{len(found)} files: {', '.join(f'{number} {kind}' for kind, number in sorted(kinds.items()))}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
