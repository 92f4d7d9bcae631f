"""Injects faults into three real brokers under steady load, and prints what happened to every record.

Four front-ends send to 24 partitions (replication 3, min.insync.replicas 2) while one fault after the other is
injected. For each fault it prints: records acknowledged, failed (by error), unknown; the longest time in which a
partition had no acknowledgement; the seconds until throughput was back after the cluster was well; the 99th
percentile of the latency from send() to the outcome, and the same before the fault.

A foreign consumer reads the topic, and Kafka's DumpLogSegments some partitions. The exit status is 1 if a record is
lost, doubled, out of order, without outcome, or failed where it should not.
"""

import argparse
import contextlib
import os
import shutil
import signal
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from confluent_kafka import KafkaException
from devkafka.jars import KAFKA_VERSION
from support.process import kill_senders

from faults.cluster import FaultyCluster, faulty_cluster
from faults.rows import ROWS
from faults.run import BACK_WITHIN_S, Outcome, alarms, play


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.faults", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="*", choices=list(ROWS), default=[], metavar="NAME", help="only these faults")
    parser.add_argument("--list", action="store_true", help="list the faults, and end")
    parser.add_argument("--rounds", type=int, default=1, help="how often all of them are run (default 1)")
    parser.add_argument("--rate", type=float, default=120, help="records a second of each front-end (default 120)")
    parser.add_argument("--keep", metavar="DIR", help="for journals and logs; default: temporary, removed if clean")
    return parser.parse_args()


def _progress(text: str) -> None:
    if sys.stderr.isatty():
        print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)
    elif text:
        print(text, file=sys.stderr, flush=True)


@dataclass
class Results:
    """The outcomes of the rows, and the names of those that broke off."""

    outcomes: list[Outcome] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)

    def play(self, name: str, cluster: FaultyCluster, directory: Path, rate: float) -> None:
        """Run a row and print its figures. A row that breaks off does not end the others."""
        try:
            outcome = play(name, cluster, directory, rate, _progress)
        except (AssertionError, RuntimeError, OSError, KafkaException) as error:
            _progress("")
            print(f"{name:18} broke off: {error}", flush=True)
            self.broken.append(name)
            kill_senders(os.environ["CYPRODUCER_RUNTIME_DIR"])
            cluster.kafka.restore()
            return
        _progress("")
        print(outcome.text(), flush=True)
        self.outcomes.append(outcome)


def _rows(chosen: argparse.Namespace, directory: Path) -> Results:
    """Run the rows, those of one version of Kafka on one cluster."""
    names = [name for name in ROWS if not chosen.only or name in chosen.only]
    results = Results()
    for version in sorted({ROWS[name].version for name in names}, key=lambda version: version != KAFKA_VERSION):
        _progress(f"starting three brokers of Kafka {version}")
        with faulty_cluster(version) as cluster:
            # The first seconds of a JVM are its slowest.
            play("undisturbed", cluster, directory / "warm-up", chosen.rate, _progress)
            for number in range(chosen.rounds):
                for name in names:
                    if ROWS[name].version == version:
                        results.play(name, cluster, directory / f"{name}-{number}", chosen.rate)
    return results


def main() -> int:
    """Return 0 if no record of any row has a wrong outcome."""
    chosen = arguments()
    if chosen.list:
        for name, row in ROWS.items():
            print(f"{name:20} {row.text}")
        return 0
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    directory = Path(chosen.keep or tempfile.mkdtemp(prefix="cyp-faults-"))
    runtime = Path(tempfile.mkdtemp(prefix="cyp-", dir="/tmp"))
    os.environ["CYPRODUCER_RUNTIME_DIR"] = str(runtime)
    remove = False
    try:
        results = _rows(chosen, directory)
        wrong = sorted({outcome.name for outcome in results.outcomes if not outcome.clean} | set(results.broken))
        slow = sorted({outcome.name for outcome in results.outcomes if not outcome.back_s <= BACK_WITHIN_S})
        noted = alarms(runtime)
        remove = not wrong and not noted
        print("".join(f"the sender's log: {line}\n" for line in noted), end="")
        print(f"throughput was not back within {BACK_WITHIN_S:g} s: {', '.join(slow) or 'in no row'}")
        print(f"defects: {', '.join(wrong) or 'in no row'}")
        return 0 if remove else 1
    except KeyboardInterrupt:
        _progress("")
        print("interrupted", file=sys.stderr)
        remove = True
        return 130
    finally:
        kill_senders(runtime)
        for log in runtime.glob("*.log*"):
            with contextlib.suppress(OSError):
                shutil.copy(log, directory)
        shutil.rmtree(runtime, ignore_errors=True)
        if remove and not chosen.keep:
            shutil.rmtree(directory, ignore_errors=True)
        else:
            print(f"journals and logs are in {directory}", file=sys.stderr)
