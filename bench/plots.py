"""Draws the plots of the report as SVG files: lines over a varied field, else bars, and limits as dashed lines."""

import statistics
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.comparisons import Comparison
from bench.figures import FIGURES
from bench.goals import Sample, find

OURS = "#1f6feb"
OTHERS = ("#d1242f", "#bf8700", "#1a7f37", "#8957e5", "#bc4c00", "#57606a", "#0a3069")


def _colours(names: Sequence[str]) -> dict[str, str]:
    """Return the colours by contestant: blue for this package, a different colour for each other contestant."""
    others = iter(OTHERS * len(names))
    return {name: OURS if _is_ours(name) else next(others) for name in names}


def _is_ours(name: str) -> bool:
    return name.startswith("send") or name == "spark_cyproducer"


def draw(comparison: Comparison, made: Mapping[str, Any], target: Path) -> bool:
    """Write the plot of a comparison. Return False if there is nothing to draw."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    samples, figure = made["samples"], comparison.plot
    if figure is None or not any(figure in sample["figures"] for sample in samples):
        return False
    # Equal figures give an equal file, and text stays text in the SVG.
    with matplotlib.rc_context({"svg.hashsalt": comparison.name, "svg.fonttype": "none", "font.size": 9}):
        canvas, axes = pyplot.subplots(figsize=(7.2, 3.6), layout="constrained")
        try:
            numbers = comparison.vary is not None and all(isinstance(p, int) for p in comparison.points)
            if numbers and len(comparison.points) > 2:
                _lines(axes, comparison, samples, figure)
            else:
                _bars(axes, comparison, samples, figure)
            _limits(axes, comparison, made["limits"], figure)
            shown = FIGURES[figure]
            axes.set_title(textwrap.fill(comparison.title, 80))
            label = f"{shown.label} ({shown.unit})" if shown.unit else shown.label
            (axes.set_ylabel if numbers and len(comparison.points) > 2 else axes.set_xlabel)(label)
            if axes.get_legend_handles_labels()[0]:
                axes.legend(fontsize=8)
            canvas.savefig(target, format="svg", metadata={"Date": None, "Creator": None})
        finally:
            pyplot.close(canvas)
    return True


def _spread(samples: Sequence[Sample], name: str, figure: str, point: Any) -> tuple[float, float, float] | None:
    """Return the median and its distances to minimum and maximum, in the figure's unit."""
    values = [value * FIGURES[figure].factor for value in find(samples, name, figure, point).values()]
    if not values:
        return None
    median = statistics.median(values)
    return median, median - min(values), max(values) - median


def _lines(axes: Any, comparison: Comparison, samples: Sequence[Sample], figure: str) -> None:
    for name, colour in _colours(comparison.contestants).items():
        spreads = [(p, s) for p in comparison.points if (s := _spread(samples, name, figure, p)) is not None]
        if not spreads:
            continue
        errors = [[s[1] for _, s in spreads], [s[2] for _, s in spreads]]
        axes.errorbar(
            [p for p, _ in spreads], [s[0] for _, s in spreads], yerr=errors, label=name, color=colour,
            marker="o", markersize=4, capsize=2, linewidth=1.5,
        )  # fmt: skip
    axes.set_xscale("symlog" if 0 in comparison.points else "log")
    axes.set_yscale("log")
    axes.set_xticks(comparison.points, [f"{point:,}" for point in comparison.points])
    axes.minorticks_off()
    axes.set_xlabel(str(comparison.vary).replace("_", " "))
    axes.grid(True, alpha=0.3)


def _bars(axes: Any, comparison: Comparison, samples: Sequence[Sample], figure: str) -> None:
    colours = _colours(comparison.contestants)
    rows = []
    for point in comparison.points:
        for name in comparison.contestants:
            spread = _spread(samples, name, figure, point)
            if spread is not None:
                at = "" if point is None else f", {comparison.vary} {point}"
                rows.append((f"{name}{at}", spread, colours[name]))
    rows.reverse()
    axes.barh(
        [label for label, _, _ in rows],
        [spread[0] for _, spread, _ in rows],
        xerr=[[spread[1] for _, spread, _ in rows], [spread[2] for _, spread, _ in rows]],
        color=[colour for _, _, colour in rows],
        capsize=2,
    )
    values = [spread[0] for _, spread, _ in rows if spread[0] > 0]
    if values and max(values) > 20 * min(values):
        axes.set_xscale("log")
    axes.grid(True, axis="x", alpha=0.3)


def _limits(axes: Any, comparison: Comparison, limits: Mapping[str, float], figure: str) -> None:
    """Draw the limits that have the figure's unit: a line for each codec, for loopback, or for the sum of the costs."""
    known = {name: limits[name] for name in comparison.limits if name in limits}
    suffix = "_us" if figure.endswith("_us") else "_gb_per_s" if figure == "gb_per_s" else None
    known = {name: value for name, value in known.items() if suffix and name.endswith(suffix)}
    if not known:
        return
    upright = axes.get_xlabel() != ""
    line = axes.axhline if upright else axes.axvline
    if comparison.vary == "compression":
        for name, value in known.items():
            line(value, linestyle=":", color="#57606a", linewidth=1, label=f"{name.partition('_')[0]} alone")
    elif figure == "gb_per_s":
        line(known["loopback_gb_per_s"], linestyle="--", color="#57606a", label="loopback TCP")
    else:
        parts = " + ".join(name.removesuffix("_us").replace("_", " ") for name in known)
        line(sum(known.values()), linestyle="--", color="#57606a", label=f"physical: {parts}")
