"""Shows the senders of this user and the failures of ended ones, as tables or as JSON: `cyproducer status`."""

import argparse
import json
import os
import shutil
import sys
import time
from typing import Any

from cyproducer.observe.status import ended_with_failures, status

__all__ = ["add_arguments", "run"]

_UNITS = ("B", "KiB", "MiB", "GiB")
_WIDTH_MIN = 60
_COLUMN_MIN = 6


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("--json", action="store_true", help="print JSON: a list with one object per sender")
    parser.add_argument("--socket", metavar="PATH", help="show only the sender that listens on this socket")


def run(args: argparse.Namespace) -> int:
    """Print the status and return 0, also if there is no sender."""
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
    since = f" since {_moment(sender['totals_since'])}" if sender["restarts"] else ""
    lines = [
        f"sender {sender['sender_pid']}, cyproducer {sender['version']}",
        f"  socket     {sender['socket']}",
        f"  log        {sender['log'] or 'standard error'}",
        *_wrapped("cluster", [sender["cluster_id"] or "not known yet", *sender["bootstrap_servers"]], width),
        f"  since      {_moment(sender['started_at'])}, {watched}, restarted {sender['restarts']} times",
        *_wrapped(
            "delivered",
            [
                f"{totals['records']} records{since}",
                _size(totals["bytes"]),
                f"{totals['batches']} batches in {totals['requests']} requests",
                f"{totals['retries']} retries",
                f"{totals['errors']} errors",
            ],
            width,
        ),
    ]
    if sender["last_error"]:
        lines += _wrapped("last error", sender["last_error"].split(", "), width)
    lines += _table(
        ["pid", "uid", "application", "in use", "records", "oldest", "blocked"],
        [
            [
                str(f["pid"]),
                str(f["uid"]),
                f["app"],
                _part(f["buffer_in_use"], f["buffer_memory"]),
                str(f["records_sent"]),
                _milliseconds(f["oldest_unacked_ms"]),
                _milliseconds(f["blocked_ms"]),
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
    lines += _table(
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
    return _table(
        ["transactional id", "application", "phase", "for", "failed"],
        [
            [
                row["transactional_id"],
                f"{row['participants']} processes" if row["app"] is None else row["app"],
                row["phase"],
                _milliseconds(row["phase_ms"]),
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
            *_wrapped("servers", sender["bootstrap_servers"] or [], width),
            *_failures(sender["ledger"], width),
        ]
    )


def _failures(rows: list[dict[str, Any]], width: int | None) -> list[str]:
    if not rows:
        return []
    return _table(
        ["failed", "application", "topic", "cause", "last"],
        [[str(r["count"]), r["app"], r["topic"], r["cause"], _moment(r["last"])] for r in rows],
        "",
        width,
        flexible=[1, 2, 3],
    )


def _wrapped(name: str, parts: list[str], width: int | None) -> list[str]:
    """Return lines with the parts separated by commas; line breaks are only between parts."""
    lines = [f"  {name:<11}"]
    for number, part in enumerate(parts):
        text = part + ("," if number < len(parts) - 1 else "")
        if number and width is not None and len(lines[-1]) + 1 + len(text) > width:
            lines.append(" " * 13 + text)
        else:
            lines[-1] += (" " if number else "") + text
    return lines


def _table(head: list[str], rows: list[list[str]], empty: str, width: int | None, flexible: list[int]) -> list[str]:
    """Return the lines of a table; the widest flexible columns are shortened until a row fits into `width`."""
    if not rows:
        return [f"  {empty}"]
    widths = [max(len(row[column]) for row in [head, *rows]) for column in range(len(head))]
    while width is not None and sum(widths) + 2 * len(widths) > width:
        widest = max(flexible, key=lambda column: widths[column])
        if widths[widest] <= _COLUMN_MIN:
            break
        widths[widest] -= 1
    return [
        "  " + "  ".join(_cut(cell, size).ljust(size) for cell, size in zip(row, widths, strict=True)).rstrip()
        for row in [head, *rows]
    ]


def _cut(text: str, size: int) -> str:
    return text if len(text) <= size else text[: size - 2] + ".."


def _part(number: int, whole: int) -> str:
    """Return "number/whole", both in the unit of the whole."""
    text = _size(whole)
    unit = _UNITS.index(text.rpartition(" ")[2])
    return f"{number / 1024**unit:.1f}/{text}"


def _size(number: int) -> str:
    value = float(number)
    for unit in _UNITS:
        if value < 1024 or unit == _UNITS[-1]:
            break
        value /= 1024
    return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"


def _milliseconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f} ms"


def _moment(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))
