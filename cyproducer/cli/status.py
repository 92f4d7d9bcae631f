"""Shows the senders of this user and the failures of ended ones, once or again and again: `cyproducer status`."""

import argparse
import json
import os
import shutil
import sys
from typing import Any

from cyproducer.cli.tables import milliseconds, moment, part, size, table, wrapped
from cyproducer.cli.watch import watch
from cyproducer.observe.status import ended_with_failures, status

__all__ = ["add_arguments", "run"]

_WIDTH_MIN = 60


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("--socket", metavar="PATH", help="show only the sender that listens on this socket")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print JSON: a list with one object per sender")
    form.add_argument(
        "--watch",
        metavar="SECONDS",
        type=_interval,
        nargs="?",
        const=2.0,
        help="show rates, again and again until Ctrl-C; default: every 2 seconds",
    )


def run(args: argparse.Namespace) -> int:
    """Print the status and return 0, also if there is no sender."""
    if args.watch is not None:
        watch(args.socket, args.watch)
    found = status(args.socket)
    ended = ended_with_failures() if args.socket is None else []
    if args.json:
        running = [{"running": True, **sender} for sender in found]
        print(json.dumps([*running, *({"running": False, **sender} for sender in ended)], indent=2))
        return 0
    if not found:
        print("no sender of this user is running")
    width = _width()
    texts = [_text(sender, width) for sender in found] + [_text_of_ended(sender, width) for sender in ended]
    if texts:
        print("\n\n".join(texts))
    return 0


def _interval(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0.1 <= seconds <= 3600:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds from 0.1 to 3600")
    return seconds


def _width() -> int | None:
    """Return the width of the terminal in characters; None if the output is not a terminal: print whole lines."""
    if os.environ.get("COLUMNS") or sys.stdout.isatty():
        return max(_WIDTH_MIN, shutil.get_terminal_size().columns)
    return None


def _text(sender: dict[str, Any], width: int | None) -> str:
    supervisor = sender["supervisor_pid"]
    watched = "without a supervisor" if supervisor is None else f"supervisor {supervisor}"
    totals = sender["totals"]
    # The totals of a killed sender are lost.
    since = f" since {moment(sender['totals_since'])}" if sender["restarts"] else ""
    lines = [
        f"sender {sender['sender_pid']}, cyproducer {sender['version']}",
        f"  socket     {sender['socket']}",
        f"  log        {sender['log'] or 'standard error'}",
        *wrapped("cluster", [sender["cluster_id"] or "not known yet", *sender["bootstrap_servers"]], width),
        f"  since      {moment(sender['started_at'])}, {watched}, restarted {sender['restarts']} times",
        *wrapped(
            "delivered",
            [
                f"{totals['records']} records{since}",
                size(totals["bytes"]),
                f"{totals['batches']} batches in {totals['requests']} requests",
                f"{totals['retries']} retries",
                f"{totals['errors']} errors",
            ],
            width,
        ),
    ]
    if sender["last_error"]:
        lines += wrapped("last error", sender["last_error"].split(", "), width)
    lines += table(
        ["pid", "uid", "application", "in use", "records", "oldest", "blocked"],
        [
            [
                str(f["pid"]),
                str(f["uid"]),
                f["app"],
                part(f["buffer_in_use"], f["buffer_memory"]),
                str(f["records_sent"]),
                milliseconds(f["oldest_unacked_ms"]),
                milliseconds(f["blocked_ms"]),
            ]
            for f in sender["front_ends"]
        ],
        "no front-end is attached",
        width,
        flexible=[2],
    )
    transactions = sender.get("transactions", [])  # a sender may be older
    if transactions:
        lines += _transactions(transactions, width)
    lines += table(
        ["broker", "address", "state", "in flight"],
        [
            [str(c["broker_id"]), f"{c['host']}:{c['port']}", c["state"], str(c["in_flight"])]
            for c in sender["connections"]
        ],
        "no connection is open",
        width,
        flexible=[1],
    )
    return "\n".join([*lines, *_failures(sender["ledger"], width)])


def _transactions(rows: list[dict[str, Any]], width: int | None) -> list[str]:
    return table(
        ["transactional id", "application", "phase", "for", "failed"],
        [
            [
                row["transactional_id"],
                f"{row['participants']} processes" if row["app"] is None else row["app"],
                row["phase"],
                milliseconds(row["phase_ms"]),
                row["failed"] or "-",
            ]
            for row in rows
        ],
        "",
        width,
        flexible=[0, 1, 4],
    )


def _text_of_ended(sender: dict[str, Any], width: int | None) -> str:
    return "\n".join(
        [
            f"ended: sender {sender['pid']}, cyproducer {sender['version']}",
            f"  socket     {sender['socket']}",
            f"  log        {sender['log'] or 'standard error'}",
            *wrapped("servers", sender["bootstrap_servers"] or [], width),
            *_failures(sender["ledger"], width),
        ]
    )


def _failures(rows: list[dict[str, Any]], width: int | None) -> list[str]:
    if not rows:
        return []
    return table(
        ["failed", "application", "topic", "cause", "last"],
        [[str(r["count"]), r["app"], r["topic"], r["cause"], moment(r["last"])] for r in rows],
        "",
        width,
        flexible=[1, 2, 3],
    )
