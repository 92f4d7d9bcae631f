"""Judges goals: bounds on a figure, or on its ratio to another contestant's figure or to a physical limit."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from bench.figures import shown

Sample = Mapping[str, Any]
"""One measurement: contestant, round, point (value of the varied field, or None) and figures."""


@dataclass(frozen=True)
class Goal:
    """The goal that `figure` of `contestant` is at least `least` or at most `most`.

    against      the bound is a multiple of the same figure of this contestant
    limit        the bound is a multiple of this physical limit
    part         True: the bound applies to limit / figure, the part of the limit in the figure
    point        the point at which the goal is judged; None: the only point
    base         the bound is a multiple of the same contestant's figure at this point
    otherwise    another goal that is sufficient instead
    """

    contestant: str
    figure: str
    least: float | None = None
    most: float | None = None
    against: str | None = None
    limit: str | None = None
    part: bool = False
    point: Any = None
    base: Any = None
    otherwise: "Goal | None" = None

    @property
    def is_ratio(self) -> bool:
        """Whether the bound is a ratio."""
        return self.against is not None or self.limit is not None or self.base is not None

    @property
    def wanted(self) -> str:
        """The bound as text."""
        bound = self.least if self.least is not None else self.most
        assert bound is not None
        sign = ">=" if self.least is not None else "<="
        if not self.is_ratio:
            text = f"{sign} {shown(self.figure, bound)}"
        elif self.part:
            text = f"{sign} {bound:.3g} of it is {self.limit}"
        else:
            text = f"{sign} {bound:.3g} x {self.against or self.limit or f'at {self.base}'}"
        return text + (f", or {self.otherwise.wanted}" if self.otherwise else "")

    def meets(self, value: float) -> bool:
        """Return whether a value is within the bound."""
        return (self.least is None or value >= self.least) and (self.most is None or value <= self.most)


class Verdict(NamedTuple):
    """The result of a goal. `values` has one value per round. It is empty if nothing was measured; `why` says why."""

    goal: Goal
    values: list[float]
    reached: bool | None
    why: str = ""

    @property
    def found(self) -> str:
        """The median and range of the value that is compared with the bound."""
        if not self.values:
            return self.why or "not measured"
        median, low, high = statistics.median(self.values), min(self.values), max(self.values)
        if self.goal.is_ratio:
            return f"{median:.3g} ({low:.3g}-{high:.3g})"
        figure = self.goal.figure
        return f"{shown(figure, median)} ({shown(figure, low, False)}-{shown(figure, high, False)})"

    @property
    def word(self) -> str:
        """The result in one word: reached, missed, or a dash."""
        return {True: "reached", False: "**missed**", None: "-"}[self.reached]


def find(samples: Sequence[Sample], contestant: str, figure: str, point: Any) -> dict[int, float]:
    """Return a figure by round."""
    return {
        s["round"]: s["figures"][figure]
        for s in samples
        if s["contestant"] == contestant and s["point"] == point and figure in s["figures"]
    }


def judge(goal: Goal, samples: Sequence[Sample], limits: Mapping[str, float], skipped: Mapping[str, str]) -> Verdict:
    """Compare the values of each round and judge their median."""
    own = find(samples, goal.contestant, goal.figure, goal.point)
    base = dict.fromkeys(own, 1.0)
    if goal.against is not None:
        base = find(samples, goal.against, goal.figure, goal.point)
    elif goal.base is not None:
        base = find(samples, goal.contestant, goal.figure, goal.base)
    elif goal.limit is not None:
        base = dict.fromkeys(own, limits[goal.limit]) if goal.limit in limits else {}
    # Rounds without a base value, or with 0 as the base, cannot be judged. A cost of 0 of our own is a valid value.
    pairs = [(own[number], base[number]) for number in sorted(own) if base.get(number)]
    values = [theirs / ours if goal.part else ours / theirs for ours, theirs in pairs]
    if not values:
        missing = [name for name in (goal.contestant, goal.against or "") if name in skipped]
        return Verdict(goal, [], None, skipped[missing[0]] if missing else "not measured")
    verdict = Verdict(goal, values, goal.meets(statistics.median(values)))
    if not verdict.reached and goal.otherwise is not None:
        other = judge(goal.otherwise, samples, limits, skipped)
        if other.reached:
            return verdict._replace(reached=True)
    return verdict
