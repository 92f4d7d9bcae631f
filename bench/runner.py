"""Runs a comparison: its contestants in turn, for each round and each point."""

import contextlib
import sys
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from bench import calls, disturbance, idle, recovery, spark, start, tls_calls, work
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
#: The measurements that do not use the workers of a load: modules with their own processes for each measurement, and
#: modules with processes that are kept over the rounds.
_WITH_THEIR_OWN = {
    "start": start, "idle": idle, "recovery": recovery, "disturbance": disturbance, "tls_calls": tls_calls,
}  # fmt: skip
_ON_STAGES = {"calls": calls, "spark": spark}


@dataclass(frozen=True)
class Options:
    """The options of a run, which override the comparison. `settings`: by library."""

    rounds: int | None = None
    quick: bool = False
    share: float = 1.0
    only: tuple[str, ...] = ()
    settings: dict[str, dict[str, Any]] = field(default_factory=dict)

    def rounds_of(self, comparison: Comparison) -> int:
        """Return the number of rounds: the given number, else 1 in a quick run, else the comparison's."""
        return self.rounds or (1 if self.quick else comparison.rounds)

    def points_of(self, comparison: Comparison) -> tuple[Any, ...]:
        """Return the points, which are fewer in a quick run."""
        return (self.quick and comparison.quick_points) or comparison.points

    def contestants_of(self, comparison: Comparison) -> list[str]:
        """Return the contestants: those of `only`, else fewer in a quick run, else all."""
        names = self.only or (self.quick and comparison.quick_contestants) or comparison.contestants
        return [name for name in comparison.contestants if name in names]

    def load_of(self, comparison: Comparison, point: Any) -> Load:
        """Return the load at a point: with a share of the messages, and less time in a quick run."""
        load = comparison.load_at(point)
        share = self.share * (QUICK_SHARE if self.quick else 1.0)
        seconds = min(load.seconds, QUICK_SECONDS) if self.quick else load.seconds
        least_seconds = min(load.least_seconds, QUICK_LEAST_SECONDS) if self.quick else load.least_seconds
        return replace(
            load, messages=max(1, int(load.messages * share)), warmup=int(load.warmup * share), seconds=seconds,
            least_seconds=least_seconds, most_bytes=max(load.value_bytes, int(load.most_bytes * share)),
        )  # fmt: skip


def settings_for(comparison: Comparison, options: Options, name: str) -> dict[str, Any]:
    """Return the settings that a contestant gets in addition to its usual settings."""
    library = CONTESTANTS[name].library if name in CONTESTANTS else "cyproducer"
    return {**comparison.settings.get(library, {}), **options.settings.get(library, {})}


def given_to(comparison: Comparison, options: Options, name: str) -> dict[str, Any]:
    """Return all settings of a contestant's producer, at the first point."""
    module = {**_WITH_THEIR_OWN, **_ON_STAGES}.get(comparison.measure, work)
    load = options.load_of(comparison, options.points_of(comparison)[0])
    return module.given(load, name, settings_for(comparison, options, name))


@contextlib.contextmanager
def stage_of(comparison: Comparison, options: Options, brokers: Brokers) -> Iterator[Measure]:
    """Return the function that measures one contestant; the block keeps the processes that all rounds share."""
    kind = comparison.measure
    if kind in _ON_STAGES:
        load = options.load_of(comparison, comparison.points[0])
        broker = brokers.get(comparison.broker, load)
        own = settings_for(comparison, options, "send")
        with contextlib.ExitStack() as held:
            if kind == "spark":
                take = held.enter_context(spark.stage(broker, load, own, comparison.contestants))
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


def samples_of(comparison: Comparison, options: Options, brokers: Brokers, skipped: dict[str, str]) -> Iterator[Sample]:
    """Yield each measurement, in the order A B C A B C. A contestant that cannot run is noted in `skipped`."""
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
                        print(f"  {name}: warm-up of the brokers, not counted", file=sys.stderr, flush=True)
                        continue
                    yield {"contestant": name, "round": number, "point": point, "figures": figures}


def leave_out(name: str, error: NotSupportedError, skipped: dict[str, str]) -> None:
    """Note and print why a contestant does not take part."""
    skipped[name] = str(error)
    print(f"  {name} is left out: {error}", file=sys.stderr, flush=True)


def run(
    comparison: Comparison,
    options: Options,
    brokers: Brokers,
    limits: dict[str, float],
    commit: dict[str, Any] | None,
) -> dict[str, Any]:
    """Run a comparison and return its results for the JSON file; "failed" contains the error that aborted it."""
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
    except Exception as error:  # after any error, the other comparisons still run
        failed = f"{type(error).__name__}: {error}"
        print(f"  {comparison.name} was aborted: {failed}", file=sys.stderr, flush=True)
    finally:
        stop_senders()
        brokers.stop_null()
    took_part = {sample["contestant"]: None for sample in samples}
    made["given"] = {name: given_to(comparison, options, name) for name in took_part}
    made["machine"].update(foreign_versions(comparison, took_part))
    return {**made, "took": time.time() - began, "samples": samples, "skipped": skipped, "failed": failed}


def foreign_versions(comparison: Comparison, names: Collection[str]) -> dict[str, str]:
    """Return the versions of Java and librdkafka, if they were used."""
    libraries = {CONTESTANTS[name].library for name in names if name in CONTESTANTS}
    found = {}
    if names and ("java" in libraries or comparison.broker != "null"):
        found["java"] = java_version()
    if "confluent-kafka" in libraries:
        found["librdkafka"] = librdkafka_version()
    return found


def progress(comparison: Comparison, options: Options, sample: Sample) -> str:
    """Return a line about a measurement."""
    at = "" if comparison.vary is None else f" at {comparison.vary} {sample['point']}"
    named = [name for name in comparison.figures[:3] if name in sample["figures"]]
    shows = ", ".join(shown(name, sample["figures"][name]) for name in named)
    return f"  round {sample['round'] + 1}/{options.rounds_of(comparison)} {sample['contestant']}{at}: {shows}"
