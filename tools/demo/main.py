"""Runs examples/demo.py and two jobs of Spark against a broker, reads everything back, and compares: ``./demo``."""

import argparse
import contextlib
import os
import secrets
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from devkafka.node import DownloadError, JavaMissingError, KafkaStartError, find_java

import cyproducer
from cyproducer.errors import KafkaError
from cyproducer.observe.status import status, stop
from demo.broker import MOCK_LINES_MAX, Broker, BrokerError, demo_topics, open_broker
from demo.check import TopicCheck, read_back, records_of_example, records_of_spark
from demo.input import Input, InputError, copy_input

__all__ = ["add_arguments", "run"]

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "demo.py"
STREAMED_FILES, STREAMED_WAVES, STREAMED_BYTES_MAX = 45, 3, 1_000_000
_NEEDED = {"numpy": "numpy", "pyarrow": "pyarrow", "confluent_kafka": "confluent-kafka"}


class RunError(Exception):
    """A program of the demo has failed; the text says which."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument(
        "--bootstrap-servers",
        metavar="HOST:PORT,...",
        help="use these running brokers; default: start a Kafka node (or, without Java, librdkafka's mock cluster)",
    )
    parser.add_argument(
        "--input",
        metavar="DIR",
        type=Path,
        help="send the text files below DIR; default: the standard library of the running Python",
    )
    parser.add_argument("--no-spark", action="store_true", help="skip the Spark part")
    parser.add_argument("--port", metavar="N", type=int, help="the port of the Kafka node; default: a free port")
    parser.add_argument(
        "--keep",
        action="store_true",
        help="keep the topics; a Kafka node that the demo started runs until Ctrl-C",
    )


def run(args: argparse.Namespace) -> int:
    """Run the demo. Return 0 if every record came back as it was sent, 1 if something differs or failed."""
    missing = [package for module, package in _NEEDED.items() if find_spec(module) is None]
    if missing:
        return _fail(f"{', '.join(missing)} is missing; run: pip install 'cyproducer[demo]'")
    signal.signal(signal.SIGTERM, _terminated)
    try:
        with contextlib.ExitStack() as stack:
            return _run(args, stack)
    except (BrokerError, DownloadError, InputError, JavaMissingError, KafkaError, KafkaStartError, RunError) as error:
        return _fail(str(error))
    except KeyboardInterrupt:
        _say("Interrupted. Everything that the demo started has been stopped.")
        return 130


def _run(args: argparse.Namespace, stack: contextlib.ExitStack) -> int:
    """Run all parts. `stack` ends everything that they start, in reverse order."""
    begun = time.monotonic()
    scratch = stack.enter_context(_scratch())
    # With a separate runtime directory the demo has its own sender, which it may stop.
    runtime = scratch / "run"
    runtime.mkdir(mode=0o700)
    os.environ["CYPRODUCER_RUNTIME_DIR"] = str(runtime)
    broker = stack.enter_context(open_broker(args.bootstrap_servers, args.port, _say))
    _say(f"Broker: {broker.description}.")
    tree = copy_input(args.input, scratch / "input", MOCK_LINES_MAX if broker.kind == "mock" else None)
    _say(f"Input: {tree.lines:,} lines in {len(tree.files):,} files ({tree.size / 1e6:.1f} MB).")
    for why, count in tree.left_out.items():
        _say(f"  left out: {count} files ({why})")

    prefix = f"cyproducer-demo-{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(3)}"
    expected = records_of_example(tree)
    if broker.kind == "mock":
        del expected["directories"]  # the mock cluster shows the records of aborted transactions
    java = _java_for_spark(args, broker)
    streamed = _files_for_stream(tree)
    if java is not None:
        expected |= records_of_spark(tree, streamed)
    checks = {f"{prefix}.{name}": TopicCheck(name, records) for name, records in expected.items()}

    stack.enter_context(demo_topics(broker, list(checks), args.keep))
    stack.callback(_stop_senders)
    _run_example(broker, tree, prefix, "directories" in expected)
    if java is not None:
        _run_spark(broker, tree, streamed, prefix, scratch / "spark", java)
    _say("Reading everything back with confluent-kafka's consumer ...")
    read_back(broker.servers, checks)
    differences = _report(list(checks.values()), len(list(runtime.glob("*.log"))))
    _say(f"Done in {time.monotonic() - begun:.0f} s.")
    if args.keep:
        _keep(broker, list(checks))
    return 1 if differences else 0


def _run_example(broker: Broker, tree: Input, prefix: str, transaction: bool) -> None:
    _say(f"Running {EXAMPLE.relative_to(EXAMPLE.parents[1])} ...")
    command = [sys.executable, "-P", str(EXAMPLE), broker.servers, "--input", str(tree.root), "--topic", prefix]
    if _run_program(command if transaction else [*command, "--no-transaction"], dict(os.environ)):
        raise RunError("the example has failed; its message is above")


def _run_spark(broker: Broker, tree: Input, streamed: dict[str, Path], prefix: str, scratch: Path, java: Path) -> None:
    _say("Running a batch job and a streaming query of Spark ...")
    (scratch / "tree").mkdir(parents=True)
    for number, file in enumerate(tree.files):
        (scratch / "tree" / f"{number}.txt").symlink_to(file)
    for number, (name, file) in enumerate(streamed.items()):
        wave = scratch / "waves" / str(number % STREAMED_WAVES)
        wave.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, wave / name)  # with the present time: Spark leaves out files that are a week old
    environment = dict(os.environ)
    environment.pop("SPARK_HOME", None)  # it may be another version than the installed PySpark
    interpreter = Path(sys.executable)
    environment.update(
        JAVA_HOME=str(java.resolve().parent.parent),
        # The name without the path: a path with blanks breaks the shell command by which Spark looks for it.
        PYSPARK_PYTHON=interpreter.name,
        PYSPARK_DRIVER_PYTHON=interpreter.name,
        PATH=os.pathsep.join([str(interpreter.parent), os.environ.get("PATH", os.defpath)]),
        SPARK_LOCAL_IP="127.0.0.1",
        PYTHONPATH=_python_path(),
        TMPDIR=str(scratch),
    )
    log = scratch / "spark.log"
    command = [sys.executable, "-P", "-m", "demo.spark_jobs", broker.servers, prefix, str(scratch)]
    if _run_program(command, environment, log):
        tail = "\n".join(log.read_text(errors="replace").splitlines()[-25:])
        raise RunError(f"Spark has failed; the end of its log:\n{tail}")


def _run_program(command: list[str], environment: dict[str, str], log: Path | None = None) -> int:
    """Run a program in a session of its own, and end all of the session's processes. Return its exit status."""
    with open(log, "wb") if log is not None else contextlib.nullcontext() as output:
        process = subprocess.Popen(
            command,
            stdout=output,
            stderr=output,
            stdin=subprocess.DEVNULL,
            env=environment,
            start_new_session=True,
            cwd=log.parent if log is not None else None,  # Spark's workers run here, too
        )
        try:
            return process.wait()
        finally:
            with contextlib.suppress(ProcessLookupError, subprocess.TimeoutExpired):
                os.killpg(process.pid, signal.SIGTERM)  # on it, the JVM removes its files
                process.wait(10)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _python_path() -> str:
    """Return a PYTHONPATH with which Spark's workers find the running package, installed or not."""
    parent = str(Path(cyproducer.__file__).resolve().parents[1])
    given = [part for part in os.environ.get("PYTHONPATH", "").split(os.pathsep) if part]
    installed = Path(parent) in {Path(sysconfig.get_paths()[name]).resolve() for name in ("purelib", "platlib")}
    return os.pathsep.join(given if installed else [parent, *given])


def _java_for_spark(args: argparse.Namespace, broker: Broker) -> Path | None:
    """Return the Java for Spark. Without it, print why there is no Spark part, and return None."""
    try:
        if args.no_spark:
            why = "of --no-spark"
        elif broker.kind == "mock":
            why = "there is no Java"
        elif find_spec("pyspark") is None:
            why = "PySpark is not installed (pip install 'cyproducer[spark]')"
        else:
            return find_java()
    except JavaMissingError as error:
        why = f"it needs Java: {error}"
    _say(f"The Spark part is skipped, because {why}.")
    return None


def _files_for_stream(tree: Input) -> dict[str, Path]:
    """Return files for the streaming query by their names there, selected evenly from the whole tree.

    They are small, because Spark divides large files among tasks, and have no byte order mark, which Spark removes.
    """
    usable = [
        file
        for file in tree.files
        if 0 < file.stat().st_size < STREAMED_BYTES_MAX and not file.read_bytes().startswith(b"\xef\xbb\xbf")
    ]
    chosen = usable[:: max(1, len(usable) // STREAMED_FILES)][:STREAMED_FILES]
    return {f"{number}.txt": file for number, file in enumerate(chosen)}


def _report(checks: list[TopicCheck], senders: int) -> list[str]:
    """Print the table, and return the differences."""
    differences = [text for check in checks for text in check.differences]
    if senders != 1:
        differences.append(f"{senders} senders were running, expected 1")
    _say(f"  {'topic':13}{'records':>12}{'MB':>9}{'differences':>13}")
    for check in checks:
        _say(f"  {check.name:13}{check.records:>12,}{check.bytes / 1e6:>9.1f}{check.count:>13,}")
    _say(f"  senders      {senders:>12}")
    for text in differences:
        _say(f"    {text}")
    return differences


def _keep(broker: Broker, topics: list[str]) -> None:
    _say("Kept topics: " + ", ".join(topics))
    if broker.kind != "given":
        _say(f"The broker at {broker.servers} keeps running; press Ctrl-C to stop it.")
        with contextlib.suppress(KeyboardInterrupt):
            signal.pause()


def _stop_senders() -> None:
    """Stop the senders of the run after they have delivered all records."""
    for sender in status():
        with contextlib.suppress(KafkaError):
            stop(sender["socket"], 15)


@contextlib.contextmanager
def _scratch() -> Iterator[Path]:
    """Create a directory for the run. Its path is short, because the address of a UNIX socket has at most 108 bytes."""
    usual = tempfile.gettempdir()
    path = Path(tempfile.mkdtemp(prefix="cyp-demo-", dir=usual if len(os.fsencode(usual)) < 40 else "/tmp"))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def _say(text: str) -> None:
    print(text, flush=True)


def _fail(text: str) -> int:
    print(f"demo: {text}", file=sys.stderr)
    return 1


def _terminated(number: int, _frame: object) -> None:
    raise SystemExit(128 + number)
