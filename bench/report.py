"""Writes the report, RESULTS.md with its plots, from the result files of runs."""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from bench import plots, results
from bench.comparisons import Comparison
from bench.contestants import CONTESTANTS
from bench.figures import FIGURES, shown
from bench.goals import Verdict, find, judge
from bench.growth import COMPARISONS
from bench.limits import LABELS
from bench.origin import Run, largest, runs_of

ABORTED = "aborted"
BEGIN, END = "<!-- bench: figures -->", "<!-- bench: end of figures -->"
"""README.md contains a table of three figures between these lines."""
OTHER_VERSIONS = {"librdkafka": "librdkafka", "java": "Java", "kafka": "Kafka"}


class Headline(NamedTuple):
    """An important figure, with the same figure of the client that most users have."""

    what: str
    comparison: str
    figure: str
    ours: str
    theirs: str
    point: Any = None
    is_first: bool = False  # README shows it


HEADLINES = (
    Headline("`send()`, one process, null broker", "send", "rate", "send", "confluent", is_first=True),
    Headline("`send()`, CPU of all processes per message", "send", "cpu_us", "send", "confluent"),
    *(
        Headline(f"`send()`, one real broker on the same cores, partitions: {partitions}", "kafka-partitions", "rate",
                 "send", "confluent", partitions)
        for partitions in (1, 6, 48)
    ),
    Headline("`send_array()`", "arrays", "rate", "send_array", "confluent_batch"),
    Headline("16 workers x 500 msg/s, 3 brokers: the brokers' CPU per message", "workers-16", "broker_us",
             "send", "confluent", is_first=True),
    Headline("latency to the acknowledgement, p50", "latency", "p50_us", "send_kept", "confluent_callback", 0),
    Headline("memory that a process adds under load", "memory", "load_mb", "send_keyed", "confluent_keyed", 12,
             is_first=True),
)  # fmt: skip


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Return the lines of a table in Markdown. The first column is left-aligned."""
    lines = [[*head], ["---", *["---:"] * (len(head) - 1)], *map(list, rows)]
    return ["| " + " | ".join(cell.replace("|", r"\|") for cell in line) + " |" for line in lines]


def spread(values: Sequence[float], figure: str) -> str:
    """Return the median as text, with the range if there is more than one value."""
    text = shown(figure, statistics.median(values), False)
    if len(values) > 1:
        text += f" ({shown(figure, min(values), False)}-{shown(figure, max(values), False)})"
    return text


def headlines(found: Mapping[str, Mapping[str, Any]], lines: Iterable[Headline]) -> tuple[list[str], bool]:
    """Return a table of important figures, and whether it is complete: none is missing or from a quick run."""
    rows, fit = [], True
    for line in lines:
        made = found.get(line.comparison, {"samples": [], "quick": False, "failed": None})
        values = [find(made["samples"], name, line.figure, line.point).values() for name in (line.ours, line.theirs)]
        cells = [shown(line.figure, statistics.median(v)) if v else "not measured" for v in values]
        if made["failed"]:
            cells = [ABORTED] * len(cells)
        fit = fit and all(values) and not made["quick"] and not made["failed"]
        rows.append([line.what, *cells, f"`python -m bench run {line.comparison}`"])
    return table(["", "cyproducer", "confluent-kafka", "measured by"], rows), fit


def goal_rows(comparison: Comparison, made: Mapping[str, Any] | None) -> list[list[str]]:
    """Return a row for each goal of a comparison. An aborted comparison reaches no goal, whatever it has measured."""
    rows = []
    for goal in comparison.goals:
        if made is None:
            verdict = Verdict(goal, [], None, "not measured")
        else:
            verdict = judge(goal, made["samples"], made["limits"], made["skipped"])
        word = verdict.word
        if made is not None and made["failed"]:
            word = f"{ABORTED}: {made['failed'].splitlines()[0][:120]}"
        at = "" if goal.point is None else f" at {goal.point:,}" if isinstance(goal.point, int) else f" {goal.point}"
        rows.append([f"{goal.contestant}{at}: {FIGURES[goal.figure].label}", goal.wanted, verdict.found, word])
    return rows


def overall(goals: Sequence[Sequence[str]]) -> str:
    """Return the result of several goals: reached if all are, else how many are missed or not measured."""
    words = [row[-1].strip("*") for row in goals]
    if any(word.startswith(ABORTED) for word in words):
        return ABORTED
    counts = [
        f"{words.count(word)} {label}" for word, label in (("missed", "missed"), ("-", "not measured")) if word in words
    ]
    return ", ".join(counts) or "reached"


def reached(found: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return a table of all goals, below the comparison that they belong to."""
    rows = []
    for name, comparison in COMPARISONS.items():
        if comparison.goals:
            goals = goal_rows(comparison, found.get(name))
            rows.append([f"**{comparison.title}** (`{name}`)", "", "", f"**{overall(goals)}**"])
            rows += goals
    return table(["figure", "goal", "measured: median (range)", ""], rows)


def limits_table(found: Mapping[str, Mapping[str, Any]], runs: Sequence[Run]) -> list[str]:
    """Return a table of the limits of the largest run. Each comparison is judged by the limits of its own run."""
    limits = found[largest(runs).names[-1]]["limits"]
    rows = []
    for name, label in LABELS.items():
        if name in limits:
            unit = "GB/s" if name.endswith("gb_per_s") else "1/s" if name.endswith("rate") else "us"
            rows.append([label, f"{limits[name]:,.4g} {unit}"])
    return table(["", "measured" if len(runs) == 1 else "measured in the run with the most comparisons"], rows)


def figures_table(comparison: Comparison, made: Mapping[str, Any]) -> list[str]:
    """Return a table of each contestant's figures: median and range over the rounds."""
    samples = made["samples"]
    names = [f for f in comparison.figures if any(f in s["figures"] for s in samples)]
    points = sorted({s["point"] for s in samples}, key=comparison.points.index)
    rows = []
    for point in points:
        for name in comparison.contestants:
            values = [list(find(samples, name, figure, point).values()) for figure in names]
            if any(values):
                at = [] if comparison.vary is None else [f"{point:,}" if isinstance(point, int) else str(point)]
                rows.append([name, *at, *(spread(v, f) if v else "" for v, f in zip(values, names, strict=True))])
    heads = [f"{FIGURES[f].label}, {FIGURES[f].unit}".removesuffix(", ") for f in names]
    vary = [] if comparison.vary is None else [comparison.vary.replace("_", " ")]
    return table(["", *vary, *heads], rows)


def section(comparison: Comparison, made: Mapping[str, Any], directory: Path, run: Run | None) -> list[str]:
    """Return the lines of a comparison with its plot and table; `run` is its run if there are several runs."""
    lines = [f"### {comparison.title}", ""]
    quick = ", a quick run" if made["quick"] else ""
    of = "" if run is None else f" Measured in the run of {run.label}."
    rounds = f"{made['rounds']} rounds, broker {made['broker']}{quick}."
    lines += [f"`python -m bench run {comparison.name}`: {rounds}{of}", ""]
    lines += [f"- {name} was left out: {why}" for name, why in made["skipped"].items()]
    if made["failed"]:
        lines.append(f"- It was aborted: {made['failed']}")
    if made["skipped"] or made["failed"]:
        lines.append("")
    plot = directory / f"{comparison.name}.svg"
    if plots.draw(comparison, made, plot):
        lines += [f"![{comparison.title}]({directory.name}/{plot.name})", ""]
    if made["samples"]:
        lines += [*figures_table(comparison, made), ""]
    return lines


def about(found: Mapping[str, Mapping[str, Any]], runs: Sequence[Run]) -> list[str]:
    """Return lines about machine and versions of the largest run, and about the number of runs."""
    most = largest(runs)
    machine: dict[str, Any] = {}
    for name in most.names:
        machine |= found[name]["machine"]
    versions = [f"{name} {version}" for name, version in machine["packages"].items()]
    versions += [f"{label} {machine[name]}" for name, label in OTHER_VERSIONS.items() if name in machine]
    took = sum(one["took"] for one in found.values()) / 60
    if len(runs) == 1:
        when, below = f"{most.day}, {most.code}", f"The comparisons below took {took:.0f} minutes"
    else:
        when = f"{most.day}, {most.code}, the run with the most comparisons of {len(runs)} runs"
        below = f"Each comparison below names its run; all together took {took:.0f} minutes"
    return [
        f"{when}: {machine['cores']} cores of {machine['processor']}, {machine['memory_mib'] / 1024:.0f} GiB, Linux "
        f"{machine['kernel']}, Python {machine['python']}, {', '.join(versions)}. {below}; "
        "`python -m bench run` runs all of them and writes this file.",
        "",
        *(["**Some results are from quick runs with one round each: their figures are not reliable.**", ""]
          if any(one["quick"] for one in found.values()) else []),
    ]  # fmt: skip


def contestants_list() -> list[str]:
    """Return a list of the contestants with their descriptions."""
    return [
        f"- `{name}`: {(kind.__doc__ or '').splitlines()[0]} ({kind.library})" for name, kind in CONTESTANTS.items()
    ]


def write(directory: Path) -> Path:
    """Write RESULTS.md next to the directory of results, and the plots into that directory; return its path.

    Also replace the table in README.md one directory higher, if README.md has the marks for it and all its figures are
    from complete runs. Raise FileNotFoundError if there are no results.
    """
    known = {name: made for name, made in results.read(directory).items() if name in COMPARISONS}
    if not known:
        raise FileNotFoundError(f"no results in {directory}: python -m bench run")
    runs = runs_of(known)
    of = {name: run for run in runs for name in run.names} if len(runs) > 1 else {}
    matter, _ = headlines(known, HEADLINES)
    lines = ["# Results", "", *about(known, runs)]
    lines += ["## The most important figures", "", *matter, ""]
    lines += ["## Goals", "", "Ratios are computed for each round. CPU is that of all processes of a client, without "]
    lines[-1] += "the broker. `cores used by other processes` shows how quiet the machine was."
    lines += ["", *reached(known), "", "## Physical limits", "", *limits_table(known, runs), ""]
    for title, growth in (("Comparisons", False), ("How cost grows", True)):
        lines += [f"## {title}", ""]
        for name, comparison in COMPARISONS.items():
            if name in known and comparison.growth == growth:
                lines += section(comparison, known[name], directory, of.get(name))
    lines += ["## The contestants", "", *contestants_list()]
    target = directory.parent / "RESULTS.md"
    target.write_text("\n".join(lines) + "\n")
    first, fit = headlines(known, [line for line in HEADLINES if line.is_first])
    if fit:
        renew(directory.parent.parent / "README.md", first)
    return target


def renew(readme: Path, lines: Sequence[str]) -> None:
    """Write the table between the two marks of the README, if it has them."""
    text = readme.read_text() if readme.is_file() else ""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if begin and end:
        readme.write_text("\n".join([before + begin, *lines, end + after]))
