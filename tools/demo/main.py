"""Publishes real data from many processes, from NumPy and from Spark, and checks the result: ``./demo``.

The demo sends the source text of the standard library to Kafka through one sender: its lines from four processes, facts
about its files as arrays, its identifiers from a Spark job and a streaming query. Then a consumer of another library
reads everything back.
"""

import argparse
import contextlib
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from devkafka.node import DownloadError, JavaMissingError, KafkaStartError, find_java

from cyproducer import KafkaProducer
from cyproducer.errors import KafkaError
from cyproducer.observe.status import stop
from demo.arrays import BulkSent, send_files, send_heads, send_texts
from demo.broker import (
    MOCK_LINES_MAX,
    Broker,
    BrokerError,
    broker_addresses,
    demo_topics,
    open_broker,
)
from demo.check import Check, IdentifiersCheck, LinesCheck, SequenceCheck, read_back
from demo.input import InputError, SourceTree, read_tree, standard_library
from demo.show import Display, size
from demo.spark import SparkError, SparkPart, files_for_stream, quoted, spark_missing
from demo.watch import Watch, last_totals
from demo.workers import WORKERS, LinesSent, WorkerError, run_workers

__all__ = ["add_arguments", "run"]

_NEEDED = {"numpy": "numpy", "pyarrow": "pyarrow", "confluent_kafka": "confluent-kafka", "psutil": "psutil"}
_SHOWN_DIFFERENCES = 20


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


@dataclass(slots=True)
class Sent:
    """The published records by topic, for the check and the table."""

    lines: LinesSent
    bulk: dict[str, BulkSent]
    spark: dict[str, dict[str, Any]]
    totals: dict[str, int]
    seconds: float


def run(args: argparse.Namespace) -> int:
    """Run the demo. Return 0 if every record came back as it was sent, 1 if something differs or failed."""
    missing = [package for module, package in _NEEDED.items() if find_spec(module) is None]
    if missing:
        return _fail(f"{', '.join(missing)} is missing; run: pip install 'cyproducer[demo]'")
    signal.signal(signal.SIGTERM, _terminated)
    display = Display()
    try:
        with contextlib.ExitStack() as stack:
            return _Demo(args, display, stack).run()
    except (
        BrokerError,
        InputError,
        JavaMissingError,
        DownloadError,
        KafkaError,
        KafkaStartError,
        SparkError,
        WorkerError,
    ) as error:
        display.end()
        return _fail(str(error))
    except KeyboardInterrupt:
        display.say("Interrupted. Everything that the demo started has been stopped.")
        return 130


def _fail(text: str) -> int:
    print(f"demo: {text}", file=sys.stderr)
    return 1


def _terminated(number: int, _frame: object) -> None:
    raise SystemExit(128 + number)


class _Demo:
    """One run of the demo. `stack` ends everything that the run starts, in reverse order."""

    def __init__(self, args: argparse.Namespace, display: Display, stack: contextlib.ExitStack) -> None:
        self.args = args
        self.display = display
        self.stack = stack
        self.now_ms = int(time.time() * 1000)
        self.spark: SparkPart | None = None

    def run(self) -> int:
        """Start Spark and the broker, publish, read back and compare; return the exit status."""
        begun = time.monotonic()
        self.scratch = self.stack.enter_context(_scratch())
        # With a separate runtime directory the demo has its own sender, which it may stop.
        runtime = self.scratch / "run"
        runtime.mkdir(mode=0o700)
        os.environ["CYPRODUCER_RUNTIME_DIR"] = str(runtime)
        self._start_spark()
        broker = self.stack.enter_context(open_broker(self.args.bootstrap_servers, self.args.port, self.display.say))
        self.display.say(f"Broker: {broker.description}.")
        if broker.kind == "mock":
            self.display.say("The Spark part is skipped, because there is no Java.")
        tree = self._read_input(broker)
        topics = self.stack.enter_context(demo_topics(broker, self.args.keep))
        sent = self._publish(broker, tree, topics)
        differences = self._check(broker, tree, topics, sent)
        self.display.say(f"Done in {time.monotonic() - begun:.0f} s.")
        if self.args.keep:
            self._keep(broker, topics)
        return 1 if differences else 0

    def _start_spark(self) -> None:
        """Start Spark first, because its start takes longest. If that is not possible, print why."""
        if self.args.no_spark:
            self.display.say("The Spark part is skipped because of --no-spark.")
            return
        try:
            java = find_java()
        except JavaMissingError as error:
            if self.args.bootstrap_servers is not None:
                self.display.say(f"The Spark part is skipped, because it needs Java: {error}")
            return
        if why := spark_missing():
            self.display.say(f"The Spark part is skipped: {why}.")
            return
        directory = self.scratch / "spark"
        directory.mkdir()
        self.spark = SparkPart(directory, java)
        self.stack.callback(self.spark.stop)
        self.spark.start()

    def _read_input(self, broker: Broker) -> SourceTree:
        given = self.args.input
        root, suffix = (standard_library(), ".py") if given is None else (given, "")
        limit = MOCK_LINES_MAX if broker.kind == "mock" else None
        tree = read_tree(root, self.now_ms, suffix, limit)
        self.display.say(
            f"Input: {tree.lines:,} lines in {len(tree.files):,} files ({size(tree.bytes)}) of {tree.root}"
        )
        for why, count in tree.left_out.items():
            self.display.say(f"  left out: {count} files ({why})")
        return tree

    def _publish(self, broker: Broker, tree: SourceTree, topics: dict[str, str]) -> Sent:
        """Send everything, while a `Watch` observes connections and senders from outside."""
        own = set(broker.pids)
        if broker.kind == "mock":
            own.add(os.getpid())  # the mock cluster and its clients are threads of this process
        addresses = broker_addresses(broker)
        producer = KafkaProducer(bootstrap_servers=broker.servers)
        began = time.monotonic()
        with contextlib.ExitStack() as stack:
            watch = stack.enter_context(Watch(addresses, frozenset(own)))
            stack.callback(_end_senders, watch)
            stack.callback(_close, producer)
            workers = stack.enter_context(run_workers(producer, topics["lines"], tree.files))
            self.display.say(f"Sending: lines from {WORKERS} processes, arrays from this one ...")
            bulk = {
                "files": send_files(producer, topics["files"], tree),
                "heads": send_heads(producer, topics["heads"], tree),
                "texts": send_texts(producer, topics["texts"], tree),
            }
            lines = workers.finish(lambda: self.display.progress(f"{workers.sent():,} of {tree.lines:,} lines sent"))
            spark: dict[str, dict[str, Any]] = {}
            if self.spark is not None:
                part = self.spark
                self.display.say("Sending: a batch job and a streaming query of Spark ...")
                part.run_jobs(tree, topics, broker.servers, self.now_ms)
                spark = part.finish(lambda: self.display.progress(f"Spark: {part.stage}"))
            watch.sample()
            totals = last_totals()
            seconds = time.monotonic() - began
        self.watch = watch
        return Sent(lines, bulk, spark, totals, seconds)

    def _check(self, broker: Broker, tree: SourceTree, topics: dict[str, str], sent: Sent) -> list[str]:
        """Read everything back, compare it, print the table, and return the differences."""
        self.display.say("Reading everything back with confluent-kafka's consumer ...")
        checks: dict[str, Check] = {"lines": LinesCheck("lines", tree.files, sent.lines.placed)}
        for name, bulk in sent.bulk.items():
            checks[name] = SequenceCheck(name, bulk.rows)
        if sent.spark:
            modified = sent.spark["stream"]["modified"]
            streamed = files_for_stream(tree)
            checks["identifiers"] = IdentifiersCheck(
                "identifiers", "batch", tree.files, {file.key: file.timestamp for file in tree.files}
            )
            checks["stream"] = IdentifiersCheck(
                "stream",
                "stream",
                streamed,
                {file.key: min(modified[quoted(file.name)], self.now_ms) for file in streamed},
            )
        read_back(
            broker.servers,
            {topics[name]: check for name, check in checks.items()},
            lambda count: self.display.progress(f"{count:,} records read back"),
        )
        differences = [text for check in checks.values() for text in check.differences]
        differences += self.watch.problems()
        self._table(checks, sent, differences)
        return differences

    def _table(self, checks: dict[str, Check], sent: Sent, differences: list[str]) -> None:
        seconds = {name: bulk.seconds for name, bulk in sent.bulk.items()}
        seconds["lines"] = sent.lines.ended - sent.lines.began
        if sent.spark:
            seconds["identifiers"] = sent.spark["batch"]["seconds"]
            seconds["stream"] = sent.spark["stream"]["seconds"]
        what = {
            "lines": f"lines: send() in {WORKERS} processes",
            "files": "files: NumPy structured array",
            "heads": "heads: text as (data, offsets)",
            "texts": "texts: Arrow table",
            "identifiers": "identifiers: PySpark batch job",
            "stream": "stream: Structured Streaming",
        }
        rows = [
            [what[name], f"{check.records:,}", size(check.bytes), f"{seconds[name]:.2f}", str(len(check.differences))]
            for name, check in checks.items()
        ]
        records = sum(check.records for check in checks.values())
        rows.append(
            [
                "all",
                f"{records:,}",
                size(sum(check.bytes for check in checks.values())),
                f"{sent.seconds:.2f}",
                str(len(differences)),
            ]
        )
        self.display.table(["topic", "records", "bytes", "seconds", "differences"], rows)
        requests = sent.totals.get("requests", 0)
        per_request = f"{sent.totals.get('records', 0) / requests:.0f}" if requests else "unknown"
        watch = self.watch
        self.display.say(f"  records per request            {per_request}")
        self.display.say(f"  connections at the broker      {watch.connections_per_broker}")
        self.display.say(f"  senders                        {len(watch.senders)}")
        self.display.say(f"  differences                    {len(differences)}")
        for text in differences[:_SHOWN_DIFFERENCES]:
            self.display.say(f"    {text}")
        if len(differences) > _SHOWN_DIFFERENCES:
            self.display.say(f"    and {len(differences) - _SHOWN_DIFFERENCES} more")

    def _keep(self, broker: Broker, topics: dict[str, str]) -> None:
        self.display.say("Kept topics: " + ", ".join(topics.values()))
        if broker.kind != "given":
            self.display.say(f"The broker at {broker.servers} keeps running; press Ctrl-C to stop it.")
            with contextlib.suppress(KeyboardInterrupt):
                signal.pause()


@contextlib.contextmanager
def _scratch() -> Iterator[Path]:
    """Create a directory for the run. Its path is short, because the address of a UNIX socket has at most 108 bytes."""
    usual = tempfile.gettempdir()
    path = Path(tempfile.mkdtemp(prefix="cyp-demo-", dir=usual if len(os.fsencode(usual)) < 40 else "/tmp"))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def _close(producer: KafkaProducer) -> None:
    """Detach from the sender. After an interrupt the sender still delivers the records in progress."""
    producer.close(10)


def _end_senders(watch: Watch) -> None:
    """Stop the senders of the run after they have delivered all records."""
    with contextlib.suppress(KafkaError):
        watch.sample()
    for socket in watch.sockets:
        with contextlib.suppress(KafkaError):
            stop(socket, 15)
