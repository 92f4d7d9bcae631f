"""`cyproducer status`: the senders of this user, as a table or as JSON."""

import argparse
import json
import time
from typing import Any

from cyproducer.observe.status import status

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options."""
    parser.add_argument("--json", action="store_true", help="as JSON: a list with an object a sender")
    parser.add_argument("--socket", metavar="PATH", help="only the sender that listens here")


def run(args: argparse.Namespace) -> int:
    """Prints the status; no sender at all is no error."""
    found = status(args.socket)
    if args.json:
        print(json.dumps(found, indent=2))
    elif not found:
        print("no sender of this user is running")
    else:
        print("\n\n".join(_text(sender) for sender in found))
    return 0


def _text(sender: dict[str, Any]) -> str:
    supervisor = sender["supervisor_pid"]
    watched = "without a supervisor" if supervisor is None else f"supervisor {supervisor}"
    totals = sender["totals"]
    lines = [
        f"sender {sender['sender_pid']}  {sender['socket']}",
        f"  cluster    {sender['cluster_id'] or 'not known yet'} ({', '.join(sender['bootstrap_servers'])})",
        f"  since      {_moment(sender['started_at'])}, {watched}, restarted {sender['restarts']} times",
        f"  delivered  {totals['records']} records, {_size(totals['bytes'])}, {totals['batches']} batches in "
        f"{totals['requests']} requests; {totals['retries']} retries, {totals['errors']} errors",
    ]
    if sender["last_error"]:
        lines.append(f"  last error {sender['last_error']}")
    lines += _table(
        ["front-end", "pid", "uid", "application", "memory", "in use", "records", "oldest", "blocked"],
        [
            [
                str(f["attach_id"]),
                str(f["pid"]),
                str(f["uid"]),
                f["app"],
                _size(f["buffer_memory"]),
                _size(f["buffer_in_use"]),
                str(f["records_sent"]),
                _milliseconds(f["oldest_unacked_ms"]),
                _milliseconds(f["blocked_ms"]),
            ]
            for f in sender["front_ends"]
        ],
        "no front-end is attached",
    )
    lines += _table(
        ["broker", "address", "state", "in flight"],
        [
            [str(c["broker_id"]), f"{c['host']}:{c['port']}", c["state"], str(c["in_flight"])]
            for c in sender["connections"]
        ],
        "no connection is open",
    )
    if sender["ledger"]:
        lines += _table(
            ["failed", "application", "topic", "cause", "first", "last"],
            [
                [str(r["count"]), r["app"], r["topic"], r["cause"], _moment(r["first"]), _moment(r["last"])]
                for r in sender["ledger"]
            ],
            "",
        )
    return "\n".join(lines)


def _table(head: list[str], rows: list[list[str]], empty: str) -> list[str]:
    if not rows:
        return [f"  {empty}"]
    widths = [max(len(row[column]) for row in [head, *rows]) for column in range(len(head))]
    return [
        "  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in [head, *rows]
    ]


def _size(number: int) -> str:
    value = float(number)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024 or unit == "GiB":
            break
        value /= 1024
    return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"


def _milliseconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f} ms"


def _moment(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))
