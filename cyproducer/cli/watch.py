"""Shows what the senders of this user do, with rates, until Ctrl-C: `cyproducer status --watch`."""

import shutil
import sys
import time
from collections.abc import Iterator
from typing import Any, NoReturn

from cyproducer.cli.tables import milliseconds, moment, part, size, table
from cyproducer.observe.status import status

__all__ = ["watch"]

_WIDTH, _HEIGHT = 80, 24  # of a terminal that does not tell
_CLEAR = "\033[H\033[2J"
#: A total that two looks at a sender can have: (socket, group, name of the metric, or application).
Key = tuple[str, str, str]


def watch(path: str | None, every_s: float) -> NoReturn:
    """Print the rates of the last interval, again and again. A terminal shows one screen; other outputs all of them.

    Raise SenderUnavailableError if there is no sender at `path`, or one does not answer.
    """
    before: tuple[float, dict[Key, float]] | None = None
    while True:
        senders, now = status(path), time.monotonic()
        rates = _Rates(senders, now, before)
        is_terminal = sys.stdout.isatty()
        width, height = shutil.get_terminal_size((_WIDTH, _HEIGHT)) if is_terminal else (_WIDTH, 0)
        lines = [line[:width] for line in _lines(senders, rates, width, every_s)]
        if is_terminal:
            more = len(lines) - height + 1
            lines = lines if more <= 0 else [*lines[: height - 2], f"... {more + 1} more lines"]
            print(_CLEAR + "\n".join(lines), flush=True)
        else:
            print("\n".join(lines), end="\n\n", flush=True)
        before = now, rates.totals
        time.sleep(max(0.0, every_s - (time.monotonic() - now)))


class _Rates:
    """How fast totals grow per second, by the look before this one. None: there was none, or it was lower then."""

    def __init__(
        self, senders: list[dict[str, Any]], now: float, before: tuple[float, dict[Key, float]] | None
    ) -> None:
        self.totals = dict(_totals(senders))
        self._seconds, self._before = (now - before[0], before[1]) if before is not None else (0.0, {})

    def of(self, *keys: Key) -> float | None:
        """Return the sum of the rates of these totals."""
        known = [key for key in keys if key in self._before]
        if not known or not self._seconds:
            return None
        return sum(max(0.0, self.totals[key] - self._before[key]) for key in known) / self._seconds


def _totals(senders: list[dict[str, Any]]) -> Iterator[tuple[Key, float]]:
    for sender in senders:
        for group, values in sender["metrics"].items():
            for name, value in values.items():
                if name.endswith("-total") and value is not None:
                    yield (sender["socket"], group, name), value
        records: dict[str, float] = {}
        for each in sender["front_ends"]:
            records[each["app"]] = records.get(each["app"], 0) + each["records_sent"]
        for app, count in records.items():
            yield (sender["socket"], "application", app), count


def _lines(senders: list[dict[str, Any]], rates: _Rates, width: int, every_s: float) -> Iterator[str]:
    title = f"cyproducer, {moment(time.time())}, every {every_s:g} s"
    yield title + ("Ctrl-C ends this".rjust(width - len(title)) if width - len(title) > 20 else "")
    if not senders:
        yield "no sender of this user is running"
    for sender in senders:
        yield ""
        yield from _of_sender(sender, rates, width)


def _of_sender(sender: dict[str, Any], rates: _Rates, width: int) -> Iterator[str]:
    def rate(group: str, name: str) -> float | None:
        return rates.of((sender["socket"], group, name))

    own = "producer-metrics"
    failed = sum(row["count"] for row in sender["ledger"])
    yield f"sender {sender['sender_pid']}, {sender['version']}, {sender['socket']}"
    yield (
        f"  {_number(rate(own, 'record-send-total'))} records/s, {_bytes(rate(own, 'outgoing-byte-total'))}/s, "
        f"{_number(rate(own, 'record-retry-total'))} retries/s, {failed} failed"
    )
    if sender["last_error"]:
        yield f"  last error: {sender['last_error']}"
    apps: dict[str, list[dict[str, Any]]] = {}
    for each in sender["front_ends"]:
        apps.setdefault(each["app"], []).append(each)
    rows = [
        [
            app,
            str(len(found)),
            _number(rate("application", app)),
            part(sum(each["buffer_in_use"] for each in found), sum(each["buffer_memory"] for each in found)),
            milliseconds(max((each["oldest_unacked_ms"] or 0 for each in found), default=None)),
        ]
        for app, found in sorted(apps.items())
    ]
    head = ["application", "processes", "records/s", "in use", "oldest"]
    yield from table(head, rows, "no process is attached", width, flexible=[0])
    rows = [
        [
            str(each["broker_id"]),
            f"{each['host']}:{each['port']}",
            each["state"],
            _number(rate(f"producer-node-metrics.node-{each['broker_id']}", "request-total")),
            str(each["in_flight"]),
            milliseconds(
                sender["metrics"].get(f"producer-node-metrics.node-{each['broker_id']}", {}).get("request-latency-avg")
            ),
        ]
        for each in sender["connections"]
    ]
    head = ["broker", "address", "state", "requests/s", "in flight", "latency"]
    yield from table(head, rows, "no connection is open", width, flexible=[1])
    topics = {group: group.removeprefix("producer-topic-metrics.") for group in sender["metrics"]}
    rows = [
        [name, _number(rate(group, "record-send-total")), f"{_bytes(rate(group, 'byte-total'))}/s",
         _number(sender["metrics"][group]["record-error-total"])]
        for group, name in sorted(topics.items())
        if group != name
    ]  # fmt: skip
    if rows:
        yield from table(["topic", "records/s", "bytes/s", "failed"], rows, "", width, flexible=[0])


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}" if value >= 10 or value == int(value) else f"{value:.1f}"


def _bytes(value: float | None) -> str:
    return "-" if value is None else size(value)
