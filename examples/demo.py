"""Sends real data through one sender: from four processes, from NumPy and Arrow, and in a transaction.

``python demo.py localhost:9092``. The data are the text files below a directory, by default the standard library of
this Python. They go to the topics demo.lines, demo.files, demo.texts and demo.directories. It needs nothing but
cyproducer and a broker. Without NumPy or pyarrow, it leaves out the topic that needs it.
"""

import argparse
import json
import multiprocessing
import os
import signal
import sys
import sysconfig
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from cyproducer import KafkaProducer, errors
from cyproducer.observe.status import status

WORKERS = 4
# A record must fit into a request (max_request_size, 1 MiB): files with longer lines are left out, texts are cut.
LINE_BYTES = 900_000
TEXT_BYTES = 500_000
SKIPPED_DIRECTORIES = {"site-packages", "dist-packages", "__pycache__", ".git"}
worker_producer: KafkaProducer  # in the workers only


class SourceFile(NamedTuple):
    """A text file. `name` is its path below the directory that is sent."""

    name: bytes
    path: Path

    @property
    def directory(self) -> bytes:
        return os.path.dirname(self.name) or b"."


class Sent(NamedTuple):
    """What one part of the demo has sent, when all of it was acknowledged."""

    what: str
    topic: str
    records: int
    size: int
    seconds: float


# ---------------------------------------------------------------- several processes


def start_worker(producer: KafkaProducer) -> None:
    """Keep the producer in a worker: the parent's own object after a fork, otherwise a copy of its settings."""
    global worker_producer
    worker_producer = producer
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which then ends the workers


def send_lines(topic: str, files: Iterable[SourceFile]) -> tuple[int, int]:
    """Send each line as a record, keyed by its file, and return the numbers of records and bytes.

    This runs in each worker. The workers share no queue and no lock, and none of them has a connection to a broker.
    """
    futures = []
    size = 0
    for file in files:
        for number, line in enumerate(file.path.read_bytes().splitlines(keepends=True), 1):
            futures.append(worker_producer.send(topic, line, key=file.name, headers=[("line", b"%d" % number)]))
            size += len(file.name) + len(line)
    for future in futures:
        future.result()  # returns the record's partition and offset, or raises the record's error
    return len(futures), size


def send_from_processes(producer: KafkaProducer, topic: str, files: list[SourceFile]) -> Sent:
    """Send the lines of all files from several processes, which use the producer of this one."""
    began = time.monotonic()
    shares = [files[number::WORKERS] for number in range(WORKERS)]
    with multiprocessing.Pool(WORKERS, start_worker, (producer,)) as pool:
        sent = pool.starmap(send_lines, [(topic, share) for share in shares])
        seconds = time.monotonic() - began
        show_sender()
    records, sizes = zip(*sent, strict=True)
    return Sent(f"lines, send() in {WORKERS} processes", topic, sum(records), sum(sizes), seconds)


def show_sender() -> None:
    """Print how many processes share each sender of this user."""
    for sender in status():
        print(
            f"sender {sender['sender_pid']}: attached processes: {len(sender['front_ends'])}, "
            f"connections to brokers: {len(sender['connections'])}, "
            f"records: {sender['totals']['records']:,}, requests: {sender['totals']['requests']:,}",
            flush=True,
        )


# ---------------------------------------------------------------- arrays


def send_numpy(producer: KafkaProducer, topic: str, files: list[SourceFile]) -> Sent:
    """Send a structured array: each element is a record with the size, lines and time of a file."""
    import numpy

    facts = numpy.zeros(len(files), dtype=[("size", "<i8"), ("lines", "<i4"), ("modified", "<i8")])
    for row, file in enumerate(files):
        data = file.path.read_bytes()
        facts[row] = (len(data), len(data.splitlines()), file.path.stat().st_mtime)
    keys = [file.name for file in files]
    began = time.monotonic()
    written = producer.send_array(topic, facts, keys=keys).result()  # one future for all rows
    seconds = time.monotonic() - began
    return Sent("facts, a NumPy array", topic, len(written.offset), facts.nbytes + sum(map(len, keys)), seconds)


def send_arrow(producer: KafkaProducer, topic: str, files: list[SourceFile]) -> Sent:
    """Send a table: each row is a record with the text of a file, keyed by its directory."""
    import pyarrow

    texts = [file.path.read_bytes()[:TEXT_BYTES] for file in files]
    keys = [file.directory for file in files]
    header = pyarrow.list_(pyarrow.struct([("key", pyarrow.string()), ("value", pyarrow.binary())]))
    names = [[{"key": "file", "value": file.name}] for file in files]
    table = pyarrow.table(
        {
            "value": pyarrow.array(texts, pyarrow.binary()),
            "key": pyarrow.array(keys, pyarrow.binary()),
            "headers": pyarrow.array(names, header),
        }
    )
    began = time.monotonic()
    written = producer.send_arrow(table, topic=topic).result()
    seconds = time.monotonic() - began
    size = sum(map(len, texts)) + sum(map(len, keys))
    return Sent("texts, an Arrow table", topic, len(written.offset), size, seconds)


# ---------------------------------------------------------------- a transaction


def send_transaction(settings: dict[str, Any], topic: str, files: list[SourceFile]) -> Sent:
    """Send one record for each directory in a transaction. Readers of committed records see all of them, or none."""
    counts = Counter(file.directory for file in files)
    records = {
        directory: json.dumps({"directory": os.fsdecode(directory), "files": count}).encode()
        for directory, count in counts.items()
    }
    began = time.monotonic()
    with KafkaProducer(**settings, transactional_id=topic) as producer:
        producer.init_transactions()

        producer.begin_transaction()
        producer.send(topic, b"no reader of committed records sees this")
        producer.abort_transaction()

        with producer.transaction():  # commits at the end of the block; an exception aborts
            for directory, value in records.items():
                producer.send(topic, value, key=directory)
    seconds = time.monotonic() - began
    size = sum(len(key) + len(value) for key, value in records.items())
    return Sent("directories, a transaction", topic, len(records), size, seconds)


# ---------------------------------------------------------------- the program


def text_files(root: Path, suffix: str) -> Iterator[SourceFile]:
    """Yield the text files below a directory, in the order of their names."""
    for directory, directories, names in os.walk(root):
        directories[:] = sorted(set(directories) - SKIPPED_DIRECTORIES)
        for name in sorted(names):
            path = Path(directory, name)
            if not name.endswith(suffix) or path.is_symlink() or not path.is_file() or not os.access(path, os.R_OK):
                continue
            data = path.read_bytes()
            if b"\0" not in data and max(map(len, data.splitlines()), default=0) < LINE_BYTES:
                yield SourceFile(os.fsencode(path.relative_to(root)), path)


def print_table(parts: list[Sent]) -> None:
    """Print what was sent and how long it took until the last acknowledgement."""
    width = max(len(sent.topic) for sent in parts)
    print(f"{'':36}{'topic':{width}}{'records':>10}{'MB':>8}{'seconds':>9}")
    for sent in parts:
        numbers = f"{sent.records:>10,}{sent.size / 1e6:>8.1f}{sent.seconds:>9.2f}"
        print(f"{sent.what:36}{sent.topic:{width}}{numbers}")


def send_everything(settings: dict[str, Any], prefix: str, files: list[SourceFile], transaction: bool) -> list[Sent]:
    """Send all parts and return what each of them has sent. Raise the error of a record that has failed."""
    producer = KafkaProducer(**settings)  # connects to nothing; the workers use it, too
    parts = [send_from_processes(producer, f"{prefix}.lines", files)]
    if find_spec("numpy"):
        parts.append(send_numpy(producer, f"{prefix}.files", files))
    if find_spec("pyarrow"):
        parts.append(send_arrow(producer, f"{prefix}.texts", files))
    producer.close()
    if transaction:
        parts.append(send_transaction(settings, f"{prefix}.directories", files))
    return parts


def main() -> int:
    """Run the demo. Return 0 if everything was acknowledged."""
    parser = argparse.ArgumentParser(description="Send text files to Kafka in all the ways that cyproducer has.")
    parser.add_argument("bootstrap_servers", metavar="HOST:PORT,...", help="the brokers")
    parser.add_argument("--input", type=Path, metavar="DIRECTORY", help="default: Python's standard library")
    parser.add_argument("--topic", default="demo", help="what the names of the topics begin with; default: demo")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="a setting, as linger.ms=5")
    parser.add_argument("--no-transaction", action="store_true", help="leave the transaction out")
    given = parser.parse_args()
    # A minute, the default, is long to wait for the error if no broker answers.
    settings: dict[str, Any] = {"bootstrap.servers": given.bootstrap_servers, "max.block.ms": 15_000}
    settings |= {name: value for name, _, value in (text.partition("=") for text in given.set)}
    root, suffix = (given.input, "") if given.input else (Path(sysconfig.get_paths()["stdlib"]), ".py")
    files = list(text_files(root, suffix))
    if not files:
        print(f"demo.py: there is no text file below {root}; name another directory with --input", file=sys.stderr)
        return 1
    print(f"sending {len(files):,} files of {root} ...", flush=True)
    try:
        print_table(send_everything(settings, given.topic, files, not given.no_transaction))
    except errors.KafkaError as error:
        print(f"demo.py: {type(error).__name__}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
