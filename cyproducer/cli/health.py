"""Tells whether the senders of this user work, by its exit status and a line for each: `cyproducer health`."""

import argparse
import json
from typing import Any

from cyproducer.observe.status import health

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument(
        "--socket", metavar="PATH", help="the sender that listens on this socket; status 1 if there is none"
    )
    parser.add_argument("--json", action="store_true", help="print JSON: a list with one object per sender")
    parser.add_argument("--timeout", metavar="SECONDS", type=float, default=5.0, help="for each answer; default: 5")


def run(args: argparse.Namespace) -> int:
    """Print the health and return 0 if all senders work, also if there is none, else 1."""
    found = health(args.socket, args.timeout)
    if args.json:
        print(json.dumps(found, indent=2))
    else:
        print("\n".join(map(_line, found)) or "no sender of this user is running")
    return int(not all(each["ok"] for each in found))


def _line(each: dict[str, Any]) -> str:
    line = f"{each['state']}: {each['socket']}"
    if "front_ends" in each:
        line += (
            f", processes: {each['front_ends']}, batches to deliver: {each['undelivered']}, "
            f"connected brokers: {each['brokers_connected']}"
        )
    return f"{line}; {each['last_error']}" if each["last_error"] else line
