"""Lists, describes and aborts transactions of the cluster of a sender: `cyproducer txn`."""

import argparse
import json
import math
import sys
import time
from typing import Any

from cyproducer.cli.options import the_sender
from cyproducer.observe import transactions

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    listing = actions.add_parser("list", help="list the transactional ids that the cluster knows")
    listing.add_argument(
        "--state",
        metavar="NAME",
        action="append",
        default=[],
        help="only those in this state, for example Ongoing; can be repeated",
    )
    listing.add_argument(
        "--older-than", metavar="SECONDS", type=_seconds, help="only transactions that have been open for longer"
    )
    describing = actions.add_parser("describe", help="show the state and the partitions of transactional ids")
    describing.add_argument("ids", metavar="ID", nargs="+", help="a transactional id")
    aborting = actions.add_parser("abort", help="abort the open transaction of a transactional id, fence its producer")
    aborting.add_argument("id", metavar="ID", help="the transactional id")
    for action in (listing, describing, aborting):
        action.add_argument(
            "--socket", metavar="PATH", help="ask the sender that listens on this socket; needed if several senders run"
        )
        action.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> int:
    """Ask the sender and print the answer; return the exit status."""
    path = the_sender(args.socket)
    if path is None:
        return 2
    if args.action == "list":
        return _list(path, args)
    if args.action == "describe":
        found = transactions.describe(path, args.ids)
        print(json.dumps(found, indent=2) if args.json else "\n\n".join(map(_description, found)))
        return 0
    result = transactions.abort(path, args.id)
    print(json.dumps(result, indent=2) if args.json else result["text"])
    return 0


def _list(path: str, args: argparse.Namespace) -> int:
    found = transactions.list_all(path, args.state, args.older_than)
    rows = found["transactions"]
    if args.json:
        print(json.dumps(found, indent=2))
    elif not rows:
        filtered = args.state is not None or args.older_than is not None
        print("no transactional id matches the options" if filtered else "the cluster knows no transactional id")
    else:
        table = [("TRANSACTIONAL ID", "COORDINATOR", "PRODUCER ID", "STATE")]
        table += [
            (_shown(r["transactional_id"]), str(r["coordinator"]), str(r["producer_id"]), r["state"]) for r in rows
        ]
        widths = [max(map(len, column)) for column in zip(*table, strict=True)]
        for row in table:
            print("  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip())
    for broker, why in found["unanswered"].items():
        print(f"cyproducer txn: broker {broker} is not in this list: {why}", file=sys.stderr)
    return 1 if found["unanswered"] else 0


def _description(found: dict[str, Any]) -> str:
    lines = [
        _shown(found["transactional_id"]),
        f"  state        {found['state']}",
        f"  coordinator  broker {found['coordinator']}",
        f"  producer     id {found['producer_id']}, epoch {found['producer_epoch']}",
        f"  timeout      {found['timeout_ms'] / 1000:g} s",
    ]
    if found["started_at"] is not None:
        began = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(found["started_at"]))
        lines.append(f"  open since   {began}, for {max(0.0, time.time() - found['started_at']):.1f} s")
    if found["partitions"]:
        lines.append(f"  partitions   {', '.join(f'{topic}-{number}' for topic, number in found['partitions'])}")
    return "\n".join(lines)


def _shown(transactional_id: str) -> str:
    """Return an id for a terminal. It may have any characters, and any client of the cluster has chosen it."""
    return transactional_id if transactional_id.isprintable() else repr(transactional_id)


def _seconds(text: str) -> float:
    """Return a number of seconds. Raise argparse.ArgumentTypeError."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < 1e12:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds from 0 on")
    return value
