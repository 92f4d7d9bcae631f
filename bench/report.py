"""Tables of what was measured, and the goals."""

import statistics
from collections.abc import Callable, Iterable, Sequence

from bench.contestants import PAIRS
from bench.measure import summary
from bench.runner import Measurement


def spread(values: Sequence[float], form: str = "{:.3f}") -> str:
    """``median (least-greatest)``."""
    s = summary(values)
    return f"{form.format(s['median'])} ({form.format(s['min'])}-{form.format(s['max'])})"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Columns, the first one left-aligned."""
    lines = [list(head), *map(list, rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
    return "\n".join(
        "  ".join(
            cell.ljust(w) if i == 0 else cell.rjust(w)
            for i, (cell, w) in enumerate(zip(line, widths, strict=True))
        )
        for line in lines
    )


def by_contestant(found: Sequence[Measurement]) -> dict[str, list[Measurement]]:
    """Measurements of each contestant in the order of the rounds."""
    grouped: dict[str, list[Measurement]] = {}
    for one in found:
        grouped.setdefault(one.contestant, []).append(one)
    return grouped


def results(found: Sequence[Measurement], unit: str = "messages") -> str:
    """The table of all contestants: median over the rounds, with the spread of what is compared."""

    def median(of: Sequence[Measurement], value: Callable[[Measurement], float]) -> str:
        return f"{statistics.median(map(value, of)):.3f}"

    rows = []
    for name, of in by_contestant(found).items():
        rows.append(
            [
                name,
                f"{of[0].messages:,}",
                spread([m.rate / 1e6 for m in of], "{:.2f}"),
                spread([m.cpu_us for m in of]),
                median(of, lambda m: m.front_end_cpu / 1000 / m.messages),
                median(of, lambda m: m.sender_cpu / 1000 / m.messages),
                median(of, lambda m: m.broker_cpu / 1000 / m.messages),
                median(of, lambda m: m.foreign_cpu / 1e9 / m.seconds),
            ]
        )
    head = [
        "contestant",
        unit,
        f"M {unit}/s",
        "CPU us each",
        "front-end",
        "sender",
        "broker",
        "foreign cores",
    ]
    return table(head, rows)


def ratios(
    found: Sequence[Measurement],
    pairs: Sequence[tuple[str, str, float | None]] = PAIRS,
    by_rate: bool = False,
) -> list[dict[str, object]]:
    """Each pair round by round: ours / theirs in CPU per message and in rate, and whether the goal is met.

    A goal is the most of the CPU, or, ``by_rate``, the least of the rate.
    """
    grouped = by_contestant(found)
    made: list[dict[str, object]] = []
    for ours, theirs, goal in pairs:
        couples = list(zip(grouped.get(ours, []), grouped.get(theirs, []), strict=False))
        if not couples:
            continue
        cpu = summary([a.cpu_us / b.cpu_us for a, b in couples])
        rate = summary([a.rate / b.rate for a, b in couples])
        met = None
        if goal is not None:
            met = rate["median"] >= goal if by_rate else cpu["median"] <= goal
        made.append(
            {
                "ours": ours,
                "theirs": theirs,
                "cpu": cpu,
                "rate": rate,
                "goal": goal,
                "by_rate": by_rate,
                "met": met,
            }
        )
    return made


def ratio_table(made: Sequence[dict[str, object]]) -> str:
    """The ratios as text."""
    rows = []
    for one in made:
        goal = ""
        if one["goal"] is not None:
            sign, what = (">=", "rate") if one["by_rate"] else ("<=", "CPU")
            goal = f"{what} {sign} {one['goal']}: {'met' if one['met'] else 'MISSED'}"
        cells = []
        for key in ("cpu", "rate"):
            s = one[key]
            assert isinstance(s, dict)
            cells.append(f"{s['median']:.3f} ({s['min']:.3f}-{s['max']:.3f})")
        rows.append([f"{one['ours']} / {one['theirs']}", *cells, goal])
    return table(["ratio", "CPU per message", "rate", "goal"], rows)
