"""Checks why a producer cannot work, or does not share a sender: `cyproducer doctor`."""

import argparse
import contextlib
import dataclasses
import json
import sys
import textwrap

from cyproducer.cli.options import add_settings, given_settings
from cyproducer.doctor.check import check_all
from cyproducer.doctor.finding import PROBLEM, Finding
from cyproducer.errors import KafkaConfigurationError
from cyproducer.version import VERSION

__all__ = ["add_arguments", "run"]

_COLUMNS = 80
_STATUS_COLUMNS = 9


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.epilog = (
        "It changes nothing: no topic is created and no record is sent. To ask the brokers, it starts a sender of its "
        "own, which ends with the command. The exit status is 1 if a line says problem."
    )
    parser.add_argument(
        "--bootstrap-servers",
        metavar="HOST:PORT,...",
        help="the brokers to check; without them and without bootstrap.servers in FILE, only this host is checked",
    )
    parser.add_argument("--topic", metavar="NAME", help="look for this topic, and for a leader of each partition")
    add_settings(parser, " of the producer", ", for example security.protocol=SSL")
    parser.add_argument("--json", action="store_true", help="print JSON when all checks are done")
    parser.add_argument(
        "--timeout",
        metavar="SECONDS",
        type=_seconds,
        default=10.0,
        help="for each look-up, connection and answer; default: 10",
    )


def run(args: argparse.Namespace) -> int:
    """Print what each check finds. Return 0 if there is no problem, 1 if there is one, 2 for wrong usage."""
    try:
        settings = given_settings(args.config, args.set)
    except KafkaConfigurationError as error:
        print(f"cyproducer doctor: {error}", file=sys.stderr)
        return 2
    if args.bootstrap_servers is not None:
        settings["bootstrap.servers"] = args.bootstrap_servers
    found: list[Finding] = []
    with contextlib.closing(check_all(settings, args.topic, args.timeout)) as findings:
        for finding in findings:
            found.append(finding)
            if not args.json:
                print(_shown(finding), flush=True)
    has_problem = any(finding.status == PROBLEM for finding in found)
    if args.json:
        rows = [dataclasses.asdict(finding) for finding in found]
        print(json.dumps({"version": VERSION, "ok": not has_problem, "findings": rows}, indent=2))
    return int(has_problem)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= 3600:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds up to 3600")
    return seconds


def _shown(finding: Finding) -> str:
    """Return the lines of a finding for a screen of 80 columns."""
    indent = " " * _STATUS_COLUMNS
    lines = _wrapped(f"{finding.check}: {finding.text}", f"{finding.status:{_STATUS_COLUMNS}}", indent)
    if finding.advice:
        lines += _wrapped(finding.advice, f"{indent}-> ", f"{indent}   ")
    return "\n".join(lines)


def _wrapped(text: str, first: str, others: str) -> list[str]:
    """Return lines of at most 80 columns. A longer word, such as a path, keeps its line."""
    return textwrap.wrap(
        text,
        _COLUMNS,
        initial_indent=first,
        subsequent_indent=others,
        break_long_words=False,
        break_on_hyphens=False,
    )
