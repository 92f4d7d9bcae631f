"""``python -m bench``: all contestants in turn on a broker; ``python -m bench micro``: what a call costs."""

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bench import micro, report, runner, spark_sinks
from bench.brokers import broker
from bench.contestants import CONTESTANTS
from bench.measure import machine

DESCRIPTION = """\
Sends the same records by cyproducer's send(), send() with results and send_array(), and by confluent-kafka's
produce() without and with callback and produce_batch(), in turn, round by round, on one broker; then by the
Spark sinks "cyproducer" and "kafka". Prints messages per second and CPU us per message of all processes of
the client (front-ends, sender, supervisor), median and range over the rounds, and checks that all arrived.
On a real broker, which shares the machine, compare the CPU; with --broker null the client is the limit.
`python -m bench micro` measures the call send() alone."""


def pairs(text: str) -> dict[str, Any]:
    """``name=value,name=value`` as settings; a number is a number."""
    made: dict[str, Any] = {}
    for item in filter(None, text.split(",")):
        name, equals, value = item.partition("=")
        if not equals:
            raise argparse.ArgumentTypeError(f"{item!r} is not name=value")
        made[name] = int(value) if value.isdecimal() else value
    return made


def parser() -> argparse.ArgumentParser:
    """The options."""
    p = argparse.ArgumentParser(
        prog="python -m bench", description=DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    p.add_argument("what", nargs="?", choices=["compare", "micro"], default="compare")
    p.add_argument(
        "--broker",
        choices=["kafka", "null"],
        default="kafka",
        help="a real Kafka (default), or the null broker",
    )
    p.add_argument(
        "--bootstrap-servers", metavar="LIST", help="a Kafka that runs already, instead of one of our own"
    )
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument(
        "--messages",
        type=int,
        default=1_000_000,
        help="a round and contestant (send_array: four times as many)",
    )
    p.add_argument(
        "--warmup", type=int, default=100_000, help="messages before the clock starts, in every round"
    )
    p.add_argument("--processes", type=int, default=1, help="front-ends at once, which share the messages")
    p.add_argument("--value-bytes", type=int, default=100)
    p.add_argument("--partitions", type=int, default=12)
    p.add_argument(
        "--only",
        metavar="LIST",
        default=",".join(CONTESTANTS),
        help="contestants, separated by commas: %(default)s",
    )
    p.add_argument(
        "--cyproducer", metavar="SETTINGS", type=pairs, default={}, help="name=value,... for KafkaProducer"
    )
    p.add_argument(
        "--confluent",
        metavar="SETTINGS",
        type=pairs,
        default={},
        help="name=value,... for confluent_kafka.Producer",
    )
    p.add_argument("--no-spark", action="store_true", help="without the Spark sinks")
    p.add_argument("--spark-rows", type=int, default=1_000_000)
    p.add_argument(
        "--json", metavar="FILE", type=Path, help="everything, with machine, versions and settings"
    )
    return p


def compare(args: argparse.Namespace) -> dict[str, Any]:
    """The contestants, and the Spark sinks; returns what goes to the JSON file."""
    names = [name for name in args.only.split(",") if name]
    if unknown := set(names) - set(CONTESTANTS):
        raise SystemExit(f"unknown contestants: {', '.join(sorted(unknown))}")
    order = runner.Order(
        names,
        args.rounds,
        args.messages,
        args.warmup,
        args.processes,
        args.value_bytes,
        args.partitions,
        args.cyproducer,
        args.confluent,
    )
    made: dict[str, Any] = {"machine": machine(), "broker": args.broker, "settings": asdict(order)}
    with broker(args.broker, args.bootstrap_servers, args.partitions) as node, runner.own_senders():
        found = []
        for one in runner.run(node, order):
            found.append(one)
            print(
                f"round {one.round + 1} {one.contestant}: {one.rate / 1e6:.2f} M/s, {one.cpu_us:.3f} us each",
                file=sys.stderr,
                flush=True,
            )
        made["measurements"] = [one.record() for one in found]
        if found:
            made["ratios"] = report.ratios(found)
            print(report.results(found), "", report.ratio_table(made["ratios"]), "", sep="\n", flush=True)
        if not args.no_spark and args.broker == "kafka":
            rows = spark_sinks.run(node, args.rounds, args.spark_rows, args.value_bytes, args.partitions)
            made["spark"] = [one.record() for one in rows]
            made["spark_ratios"] = report.ratios(rows, spark_sinks.PAIRS, by_rate=True)
            print(report.results(rows, "rows"), "", report.ratio_table(made["spark_ratios"]), sep="\n")
    return made


def main() -> int:
    """Exit status 1 if a record was lost; goals are printed, not judged."""
    args = parser().parse_args()
    try:
        made = micro.run(args) if args.what == "micro" else compare(args)
    except runner.LostError as error:
        print(f"records were lost: {error}", file=sys.stderr)
        return 1
    if args.json is not None:
        args.json.write_text(json.dumps(made, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
