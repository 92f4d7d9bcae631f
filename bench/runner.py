"""Runs a comparison: its contestants in turn, round by round, and point by point."""

import contextlib
import sys
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from bench import calls, idle, recovery, spark, start, work
from bench.brokers import Brokers
from bench.comparisons import Comparison
from bench.contestants import CONTESTANTS, NotSupportedError
from bench.figures import shown
from bench.goals import Sample
from bench.loads import Load
from bench.measure import java_version, librdkafka_version, machine
from bench.processes import stop_senders

QUICK_SHARE = 0.2
QUICK_SECONDS = 1.0
QUICK_LEAST_SECONDS = 0.1
Measure = Callable[[Load, str], work.Figures]
#: What is measured otherwise than by a load's workers: by itself, and on a stage that is kept over the rounds.
_WITH_THEIR_OWN = {"start": start, "idle": idle, "recovery": recovery}
_ON_STAGES = {"calls": calls, "spark": spark}


@dataclass(frozen=True)
class Options:
    """How a run differs from what the comparison says. `settings`: by library."""

    rounds: int | None = None
    quick: bool = False
    share: float = 1.0
    only: tuple[str, ...] = ()
    settings: dict[str, dict[str, Any]] = field(default_factory=dict)

    def rounds_of(self, comparison: Comparison) -> int:
        """As said, one if it is to be quick, or the comparison's."""
        return self.rounds or (1 if self.quick else comparison.rounds)

    def points_of(self, comparison: Comparison) -> tuple[Any, ...]:
        """Fewer in a quick run."""
        return (self.quick and comparison.quick_points) or comparison.points

    def contestants_of(self, comparison: Comparison) -> list[str]:
        """All, or those of `only`, or fewer in a quick run."""
        names = self.only or (self.quick and comparison.quick_contestants) or comparison.contestants
        return [name for name in comparison.contestants if name in names]

    def load_of(self, comparison: Comparison, point: Any) -> Load:
        """A share of the messages, and less time, in a quick run."""
        load = comparison.load_at(point)
        share = self.share * (QUICK_SHARE if self.quick else 1.0)
        seconds = min(load.seconds, QUICK_SECONDS) if self.quick else load.seconds
        least_seconds = min(load.least_seconds, QUICK_LEAST_SECONDS) if self.quick else load.least_seconds
        return replace(
            load, messages=max(1, int(load.messages * share)), warmup=int(load.warmup * share), seconds=seconds,
            least_seconds=least_seconds, most_bytes=max(load.value_bytes, int(load.most_bytes * share)),
        )  # fmt: skip


def settings_for(comparison: Comparison, options: Options, name: str) -> dict[str, Any]:
    """The settings that a contestant gets besides those that all have."""
    library = CONTESTANTS[name].library if name in CONTESTANTS else "cyproducer"
    return {**comparison.settings.get(library, {}), **options.settings.get(library, {})}


def given_to(comparison: Comparison, options: Options, name: str) -> dict[str, Any]:
    """What a contestant's producer is told, at the first point."""
    module = {**_WITH_THEIR_OWN, **_ON_STAGES}.get(comparison.measure, work)
    load = options.load_of(comparison, options.points_of(comparison)[0])
    return module.given(load, name, settings_for(comparison, options, name))


@contextlib.contextmanager
def stage_of(comparison: Comparison, options: Options, brokers: Brokers) -> Iterator[Measure]:
    """What takes one contestant's measurement, with what it keeps over the rounds."""
    kind = comparison.measure
    if kind in _ON_STAGES:
        load = options.load_of(comparison, comparison.points[0])
        broker = brokers.get(comparison.broker, load)
        own = settings_for(comparison, options, "send")
        with contextlib.ExitStack() as held:
            if kind == "spark":
                take = held.enter_context(spark.stage(broker, load, own))
            else:
                topics = held.enter_context(work.topics_on(broker, load))
                take = held.enter_context(calls.stage(broker, topics, load, own))
            yield lambda load, name: take(name)
        return

    def measure(load: Load, name: str) -> work.Figures:
        broker = brokers.get(comparison.broker, load)
        settings = settings_for(comparison, options, name)
        with work.topics_on(broker, load) as topics:
            if kind in _WITH_THEIR_OWN:
                return _WITH_THEIR_OWN[kind].measure(broker, topics, load, name, settings)
            return work.measure(broker, topics, load, name, kind, settings)

    yield measure


def samples_of(
    comparison: Comparison, options: Options, brokers: Brokers, skipped: dict[str, str]
) -> Iterator[Sample]:
    """A B C A B C; each measurement as it is made. Who cannot is put into `skipped`, and not asked again."""
    warm = 0 if options.quick else comparison.warm_rounds
    with contextlib.ExitStack() as held:
        try:
            measure = held.enter_context(stage_of(comparison, options, brokers))
        except NotSupportedError as error:
            for name in options.contestants_of(comparison):
                leave_out(name, error, skipped)
            return
        for number in range(-warm, options.rounds_of(comparison)):
            for point in options.points_of(comparison):
                load = options.load_of(comparison, point)
                none: work.Figures = {}
                for name in options.contestants_of(comparison):
                    if name in skipped:
                        continue
                    try:
                        figures = measure(load, name)
                    except NotSupportedError as error:
                        leave_out(name, error, skipped)
                        continue
                    if comparison.measure == "paced":
                        none = figures.copy() if name == "none" else none
                        for what in none.keys() & {"cpu_us", "broker_us"}:
                            figures[f"net_{what}"] = max(0.0, figures[what] - none[what])
                    if number < 0:
                        print(f"  {name}: not counted, the brokers compile", file=sys.stderr, flush=True)
                        continue
                    yield {"contestant": name, "round": number, "point": point, "figures": figures}


def leave_out(name: str, error: NotSupportedError, skipped: dict[str, str]) -> None:
    """Note why a contestant does not take part."""
    skipped[name] = str(error)
    print(f"  {name} is left out: {error}", file=sys.stderr, flush=True)


def run(
    comparison: Comparison,
    options: Options,
    brokers: Brokers,
    limits: dict[str, float],
    commit: dict[str, Any] | None,
) -> dict[str, Any]:
    """Everything about a comparison, for its JSON file; what broke it off stands in "failed"."""
    began = time.time()
    made: dict[str, Any] = {
        "name": comparison.name,
        "began": began,
        "quick": options.quick,
        "broker": comparison.broker,
        "rounds": options.rounds_of(comparison),
        "load": asdict(options.load_of(comparison, comparison.points[0])),
        "vary": comparison.vary,
        "settings": options.settings,
        "machine": machine(),
        "limits": limits,
        "commit": commit,
    }
    samples: list[Sample] = []
    skipped: dict[str, str] = {}
    failed = None
    try:
        for sample in samples_of(comparison, options, brokers, skipped):
            samples.append(sample)
            print(progress(comparison, options, sample), file=sys.stderr, flush=True)
    except Exception as error:  # whatever it was: the other comparisons go on
        failed = f"{type(error).__name__}: {error}"
        print(f"  {comparison.name} was broken off: {failed}", file=sys.stderr, flush=True)
    finally:
        stop_senders()
        brokers.stop_null()
    took_part = {sample["contestant"]: None for sample in samples}
    made["given"] = {name: given_to(comparison, options, name) for name in took_part}
    made["machine"].update(foreign_versions(comparison, took_part))
    return {**made, "took": time.time() - began, "samples": samples, "skipped": skipped, "failed": failed}


def foreign_versions(comparison: Comparison, names: Collection[str]) -> dict[str, str]:
    """The versions of Java and librdkafka, of those that were at work."""
    libraries = {CONTESTANTS[name].library for name in names if name in CONTESTANTS}
    found = {}
    if names and ("java" in libraries or comparison.broker != "null"):
        found["java"] = java_version()
    if "confluent-kafka" in libraries:
        found["librdkafka"] = librdkafka_version()
    return found


def progress(comparison: Comparison, options: Options, sample: Sample) -> str:
    """A measurement as a line."""
    at = "" if comparison.vary is None else f" at {comparison.vary} {sample['point']}"
    named = [name for name in comparison.figures[:3] if name in sample["figures"]]
    shows = ", ".join(shown(name, sample["figures"][name]) for name in named)
    return f"  round {sample['round'] + 1}/{options.rounds_of(comparison)} {sample['contestant']}{at}: {shows}"
