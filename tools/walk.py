"""Lists the files in which a function runs for each record, or for each commit: the walk of a record or of a commit.

The rule for a record: a keyless, uncompressed record is sent and its future awaited, many times, one after the other,
through a sender process and a scripted broker. A file counts if one of its lines runs at least once for each record, in
the application or in the sender: twice as many records are sent in a second run, so that lines of the start do not
count. Only native files are looked at.

The rule for a commit (`--subject commit`): transactions follow each other, and each record is awaited before the
commit. Three runs have N transactions of one record; N of two records; and 2N of one record. In the last two, the
sender is also asked N times for its status. A line that runs at least N times more in the third run than in the second
one runs for each transaction. A line that runs at least N/2 times more in the second run than in the first one is no
line of the commit: it runs for each record, or whenever the sender gets a message. A file counts if one of its lines
runs for each transaction, and is not such a line. Python files count as native ones do, in the main threads of the
application and of the sender. begin_transaction() is counted with the commit.

Declarations do not run. The source tree, or another commit with `--commit`, is built with the compiler's coverage, and
Cython names the lines of its files. Python's lines are counted by a trace function. Needs gcov.
"""

import argparse
import collections
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LEFT_OUT = shutil.ignore_patterns(".git", ".tox", "build", "*.so", "__pycache__", ".hypothesis", ".mypy_cache")
SUFFIXES = (".py", ".pyx", ".pxd", ".h")

# Argument: how many records.
RECORDS = """
import sys
from kfake.scripted_broker import ScriptedBroker
from cyproducer import KafkaProducer

with ScriptedBroker("t", partitions=1, nodes=1) as broker:
    producer = KafkaProducer(bootstrap_servers=broker.bootstrap_servers, sender_idle_timeout_ms=0, linger_ms=0)
    for _ in range(int(sys.argv[1])):
        producer.send("t", b"value").result(30)
    producer.close()
"""
# Arguments: how many transactions, records of each, and questions for the status.
COMMITS = """
import socket, sys
from kfake.scripted_broker import ScriptedBroker
from cyproducer import KafkaProducer
from cyproducer.producer.shared_transaction import sender_of

with ScriptedBroker("t", partitions=1, nodes=1) as broker:
    broker.coordinate(version=2)
    servers = broker.bootstrap_servers
    producer = KafkaProducer(bootstrap_servers=servers, sender_idle_timeout_ms=0, linger_ms=0, transactional_id="walk")
    producer.init_transactions()
    for _ in range(int(sys.argv[1])):
        producer.begin_transaction()
        for _ in range(int(sys.argv[2])):
            producer.send("t", b"value").result(30)
        producer.commit_transaction()
    address = sender_of(producer).address
    for _ in range(int(sys.argv[3])):
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sender:
            sender.connect(address)
            sender.send(b'{"op":"status"}')
            assert sender.recv(1 << 20)
    producer.close()
"""
# Becomes the module cyproducer.walk_lines, which the package imports.
TRACING = '''
import atexit, collections, ctypes, json, os, sys

FOLDER = os.path.dirname(os.path.abspath(__file__))
found = collections.Counter()

def trace(frame, event, argument):
    name = frame.f_code.co_filename
    if not name.startswith(FOLDER):
        return None
    if event == "line":
        found[name, frame.f_lineno] += 1
    return trace

def write():
    sys.settrace(None)
    rows = [[name, line, count] for (name, line), count in found.items()]
    with open(os.path.join(FOLDER, f"{os.getpid()}.lines"), "w") as file:
        json.dump(rows, file)

def leave(status):
    """End the process as os._exit() does, but write what was counted."""
    write()
    ctypes.CDLL(None).exit(status)

atexit.register(write)
sys.settrace(trace)
'''


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--subject", choices=("record", "commit"), default="record")
    parser.add_argument("--commit", help="the commit whose files are counted (default: the source tree)")
    parser.add_argument("--records", type=int, default=1000, help="how many are sent, or committed (default: 1000)")
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


def build(tree: Path, traces: bool) -> None:
    """Build a tree whose processes write what they count. `traces`: they count the lines of Python files, too."""
    setup = tree / "setup.py"
    text = setup.read_text()
    wanted = "compiler_directives=DIRECTIVES"
    assert text.count(wanted) == 1, "setup.py calls cythonize() in another way"
    setup.write_text(text.replace(wanted, f"{wanted}, emit_linenums=True"))
    leave = "__import__('ctypes').CDLL(None).exit("  # os._exit() would not write what was counted
    if traces:
        leave = "__import__('cyproducer.walk_lines').walk_lines.leave("
    for path in (tree / "cyproducer" / "sender").rglob("*.py"):
        text = path.read_text()
        if "os._exit(" in text:
            path.write_text(text.replace("os._exit(", leave))
    if traces:
        (tree / "cyproducer" / "walk_lines.py").write_text(TRACING)
        package = tree / "cyproducer" / "__init__.py"
        package.write_text(f"{package.read_text()}\nimport cyproducer.walk_lines\n")
    run(tree, "setup.py", "build_ext", "--inplace", CFLAGS="-O0 --coverage", CYPRODUCER_BUILD_JOBS="2")


def native_rows(tree: Path) -> Iterator[tuple[str, int, int]]:
    """Yield (file, line, how often it has run) of the native files."""
    for data in tree.rglob("*.gcda"):
        done = subprocess.run(
            ["gcov", "--json-format", "--stdout", str(data)], cwd=tree, capture_output=True, text=True, check=True
        )
        for row in done.stdout.splitlines():
            for file in json.loads(row)["files"]:
                for line in file["lines"]:
                    yield os.path.normpath(tree / file["file"]), line["line_number"], line["count"]


def counts(tree: Path, runtime: Path, program: str, *numbers: int) -> collections.Counter[tuple[Path, int]]:
    """Run the program, and return {(file, line): how often it has run}."""
    for path in [*tree.rglob("*.gcda"), *tree.rglob("*.lines")]:
        path.unlink()
    run(tree, "-c", program, *map(str, numbers), CYPRODUCER_RUNTIME_DIR=str(runtime))
    found: collections.Counter[tuple[Path, int]] = collections.Counter()
    traced = [row for path in tree.rglob("*.lines") for row in json.loads(path.read_text())]
    for name, line, count in [*native_rows(tree), *traced]:
        path = Path(name)
        if tree in path.parents and path.suffix in SUFFIXES and path.exists():
            found[path.relative_to(tree), line] += count
    return found


def lines_run(tree: Path, runtime: Path, subject: str, many: int) -> dict[str, int]:
    """Return {file: number of its lines that run for each record, or for each commit}."""
    if subject == "record":
        less, more = (counts(tree, runtime, RECORDS, number) for number in (many, 2 * many))
        others = set()
    else:
        numbers = ((many, 1, 0), (many, 2, many), (2 * many, 1, many))
        least, less, more = (counts(tree, runtime, COMMITS, *each) for each in numbers)
        others = {place for place in less if less[place] - least[place] >= many / 2}
    found = collections.Counter(
        str(name) for name, line in more if more[name, line] - less[name, line] >= many and (name, line) not in others
    )
    return dict(found)


def main() -> int:
    chosen = arguments()
    with tempfile.TemporaryDirectory(prefix="cyp-walk-") as directory:
        tree = Path(directory).resolve() / "tree"
        copied(chosen.commit, tree)
        print("building", file=sys.stderr)
        build(tree, traces=chosen.subject == "commit")
        runtime = Path(directory, "runtime")
        runtime.mkdir(mode=0o700)
        found = lines_run(tree, runtime, chosen.subject, chosen.records)
    for name in sorted(found):
        print(f"{name}: {found[name]} lines" if chosen.lines else name)
    kinds = collections.Counter(Path(name).suffix for name in found)
    print(f"{len(found)} files: {', '.join(f'{number} {kind}' for kind, number in sorted(kinds.items()))}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
