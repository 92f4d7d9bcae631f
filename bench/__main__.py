"""Runs the command line of the benchmarks: `python -m bench list | run [NAME ...] | report`."""

import argparse
import signal
import sys
import time
from pathlib import Path

try:
    from bench import asked, limits, report, results, runner
    from bench.brokers import Brokers
    from bench.growth import COMPARISONS
    from bench.origin import commit_of
    from bench.processes import own_senders
except ModuleNotFoundError as error:
    raise SystemExit(f"{error.name} is missing: pip install -e .[bench]") from None

DESCRIPTION = """\
Compare cyproducer with confluent-kafka, kafka-python, aiokafka, Kafka's Java producer and Spark's sinks.
A comparison runs its contestants one after the other, round by round. It uses a real Kafka, or a native broker ("null")
that checks records and drops them, so that the client is the limit. It measures all processes of a client, and checks
that the records have arrived. Without names, `run` runs all comparisons (about half an hour on 2 cores)."""


def parser() -> argparse.ArgumentParser:
    """Return the parser of the options."""
    p = argparse.ArgumentParser(
        prog="python -m bench", description=DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    p.add_argument("--results", metavar="DIR", type=Path, default=results.DIRECTORY, help="default: %(default)s")
    commands = p.add_subparsers(dest="command", required=True, metavar="list|run|report")
    commands.add_parser("list", help="print the comparisons and their contestants")
    commands.add_parser("report", help="write RESULTS.md and its plots from the existing results")
    run = commands.add_parser("run", help="measure, write the results and the report")
    run.add_argument(
        "names", nargs="*", metavar="NAME", help="comparisons, or patterns such as 'growth-*'; default: all"
    )
    run.add_argument("--quick", action="store_true", help="run one round with a fifth of the messages")
    run.add_argument("--rounds", type=int, help="the number of rounds; default: that of each comparison")
    run.add_argument(
        "--share", type=float, default=1.0, metavar="X", help="multiply the messages of each comparison by X"
    )
    run.add_argument("--only", metavar="LIST", default="", help="run only these contestants, separated by commas")
    run.add_argument(
        "--set", metavar="LIBRARY:NAME=VALUE,...", action="append", default=[],
        help="settings for the contestants of a library, for example cyproducer:batch_size=16384",
    )  # fmt: skip
    run.add_argument("--no-report", action="store_true", help="do not write RESULTS.md")
    return p


def run(args: argparse.Namespace) -> int:
    """Run the comparisons. Return 1 if one was aborted; only print missed goals. Raise RefusedError if refused."""
    names = asked.chosen(args.names)
    options, commit, failed = asked.options_of(args, names), commit_of(), False
    names = [name for name in names if options.contestants_of(COMPARISONS[name])]
    asked.look_for_place(args.results)
    if not args.no_report:
        asked.look_for_plotting()
    asked.look_for_keys(names)
    asked.look_for_programs(names)
    began = time.monotonic()
    with own_senders(), Brokers() as brokers:
        print("physical limits", file=sys.stderr, flush=True)
        physical = limits.measure(limits.QUICK_MS if args.quick else limits.FULL_MS)
        for number, name in enumerate(names, 1):
            comparison = COMPARISONS[name]
            minutes = (time.monotonic() - began) / 60
            print(f"[{number}/{len(names)}, {minutes:.1f} min] {name}: {comparison.title}", file=sys.stderr, flush=True)
            if comparison.broker == "null":
                brokers.stop_kafka()
            made = runner.run(comparison, options, brokers, physical, commit)
            if not results.write(args.results, made):
                print(f"  nothing was measured; the older results of {name} are kept", file=sys.stderr, flush=True)
            failed = failed or bool(made["failed"])
            for what, wanted, found, word in report.goal_rows(comparison, made):
                print(f"{name}: {what}: {found}, goal {wanted}: {word.strip('*')}", flush=True)
    if not args.no_report:
        print(f"written: {report.write(args.results)}", file=sys.stderr)
    return int(failed)


def main() -> int:
    """Run the command in the arguments and return the exit status."""
    args = parser().parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        if args.command == "run":
            return run(args)
        if args.command == "report":
            asked.look_for_plotting()
            print(report.write(args.results))
        else:
            for name, comparison in COMPARISONS.items():
                print(f"{name:18} {comparison.title} [{comparison.broker}]")
                print(f"{'':18} {', '.join(comparison.contestants)}")
    except KeyboardInterrupt:
        print("interrupted; the results of finished comparisons are kept", file=sys.stderr)
        return 130
    except asked.RefusedError as error:
        print(error, file=sys.stderr)
        return 2
    except FileNotFoundError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
