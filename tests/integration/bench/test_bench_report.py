"""Tests the benchmark's reports: they mark aborted measurements and name the run that each result comes from."""

import subprocess
from dataclasses import replace

import pytest

from bench import origin, plots, report, results, runner
from bench.brokers import Brokers
from bench.goals import Goal, judge
from bench.growth import COMPARISONS
from bench.loads import Load
from bench.processes import own_senders

LIMITS = {"cython_call_us": 0.02, "encode_us": 0.002, "crc32c_us": 0.003, "loopback_us": 0.006,
          "loopback_gb_per_s": 7.5, "lz4_us": 1.4, "lz4_rate": 700_000.0}  # fmt: skip
MACHINE = {"processor": "P", "cores": 2, "memory_mib": 1024, "kernel": "6", "python": "3.11", "kafka": "4",
           "packages": {"numpy": "2"}}  # fmt: skip


def made(name, figures, points=None, **more):
    """Return a result as `runner.run` makes it, with `figures` per contestant, of one round, at the first point."""
    samples = [
        {"contestant": who, "round": 0, "point": point, "figures": one}
        for point in points or COMPARISONS[name].points[:1]
        for who, one in figures.items()
    ]
    return {
        "name": name, "began": 1_800_000_000.0, "quick": False, "broker": "null", "rounds": 1, "machine": MACHINE,
        "limits": LIMITS, "took": 60.0, "samples": samples, "skipped": {}, "failed": None, **more,
    }  # fmt: skip


RESULTS = made("results", {"send_kept": {"rate": 9e6, "cpu_us": 0.1}, "confluent_callback": {"rate": 1e6, "cpu_us": 1}})


def test_aborted_measurement_reaches_no_goal():
    comparison = COMPARISONS["results"]
    assert [row[-1] for row in report.goal_rows(comparison, RESULTS)] == ["reached"] * 2
    for samples in (RESULTS["samples"], []):
        rows = report.goal_rows(comparison, {**RESULTS, "samples": samples, "failed": "LostError: a | b\nmore"})
        assert [row[-1] for row in rows] == ["aborted: LostError: a | b"] * 2
        assert report.overall(rows) == "aborted"
        assert r"LostError: a \| b |" in report.table([""], [[rows[0][-1]]])[-1]


def test_a_run_without_samples_replaces_no_samples(tmp_path):
    empty = {**RESULTS, "samples": [], "failed": "RuntimeError: no"}
    assert results.write(tmp_path, empty)
    assert results.write(tmp_path, RESULTS)
    assert not results.write(tmp_path, empty)
    assert results.read(tmp_path) == {"results": RESULTS}
    assert results.write(tmp_path, {**RESULTS, "rounds": 2})


def all_headlines(**more):
    """Return results for everything that the README shows."""
    wanted: dict[str, dict[str, dict[str, float]]] = {}
    for line in report.HEADLINES:
        for who in (line.ours, line.theirs):
            wanted.setdefault(line.comparison, {}).setdefault(who, {})[line.figure] = 1.0
    return [made(name, figures, COMPARISONS[name].points, **more) for name, figures in wanted.items()]


@pytest.mark.parametrize(
    ("change", "fit"),
    [
        (lambda found: None, True),
        (lambda found: found[0].update(quick=True), False),
        (lambda found: found[0].update(failed="LostError: no"), False),
        (lambda found: found.pop(), False),
    ],
    ids=["all", "quick", "aborted", "absent"],
)
def test_the_readme_has_figures_of_full_runs_only(tmp_path, change, fit):
    readme = tmp_path / "README.md"
    readme.write_text(f"before\n{report.BEGIN}\nold\n{report.END}\nafter\n")
    found = all_headlines()
    change(found)
    for one in found:
        results.write(tmp_path / "bench" / "results", one)
    report.write(tmp_path / "bench" / "results")
    text = readme.read_text()
    assert ("old" not in text) == fit
    assert ("python -m bench run memory" in text) == fit
    assert text.startswith("before\n") and text.endswith(f"{report.END}\nafter\n")


def test_results_of_several_runs_say_which_they_are_of(tmp_path):
    """A file without a commit counts as a run like any other."""
    first = RESULTS
    second = made("delivery", {"send_delivery": {"cpu_us": 0.2}}, began=1_800_090_000.0,
                  commit={"hash": "abc1234", "dirty": True}, limits={**LIMITS, "loopback_gb_per_s": 17.25},
                  machine={**MACHINE, "processor": "Q", "java": "17.0.1", "librdkafka": "2.16.1"})  # fmt: skip
    results.write(tmp_path / "results", first)
    text = report.write(tmp_path / "results").read_text()
    assert "Measured in the run of" not in text
    assert "2027-01-15, commit not known: 2 cores of P" in text
    assert "The comparisons below took 1 minutes;" in text
    results.write(tmp_path / "results", second)
    text = report.write(tmp_path / "results").read_text()
    assert "2027-01-16, commit abc1234 with changes, the run with the most comparisons of 2 runs: 2 cores of Q" in text
    assert "numpy 2, librdkafka 2.16.1, Java 17.0.1, Kafka 4." in text
    assert "The comparisons below took" not in text
    assert "Measured in the run of 2027-01-15 08:00 UTC, commit not known, P, loopback 7.5 GB/s." in text
    assert "Measured in the run of 2027-01-16 09:00 UTC, commit abc1234 with changes, Q, loopback 17.2 GB/s." in text


def test_recorded_results_can_be_read():
    """The recorded results of the source tree are readable, whichever version wrote them."""
    found = results.read(results.DIRECTORY)
    assert set(found) <= set(COMPARISONS)
    runs = origin.runs_of(found)
    assert sorted(name for run in runs for name in run.names) == sorted(found)
    assert report.about(found, runs)
    assert len(report.reached(found)) > len(found)


def test_the_commit_is_that_of_the_code(tmp_path):
    def git(*arguments):
        names = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
        return subprocess.run(["git", "-C", tmp_path, *names, *arguments], check=True, capture_output=True, text=True)

    assert origin.commit_of(tmp_path) is None
    git("init", "-q")
    assert origin.commit_of(tmp_path) is None
    (tmp_path / "code").write_text("1")
    git("add", "code")
    git("commit", "-q", "-m", "one")
    hash_ = git("rev-parse", "--short", "HEAD").stdout.strip()
    assert origin.commit_of(tmp_path) == {"hash": hash_, "dirty": False}
    # A benchmark run writes this file itself.
    (tmp_path / "bench" / "results").mkdir(parents=True)
    (tmp_path / "bench" / "results" / "send.json").write_text("{}")
    (tmp_path / "README.md").write_text("")
    assert origin.commit_of(tmp_path) == {"hash": hash_, "dirty": False}
    (tmp_path / "code").write_text("2")
    assert origin.commit_of(tmp_path) == {"hash": hash_, "dirty": True}
    assert origin.commit_of(tmp_path / "bench") is None


@pytest.mark.parametrize(("only", "net"), [((), True), (("send",), False)], ids=["with none", "without none"])
def test_net_figures_need_the_subtracted_measurement(only, net):
    comparison = replace(
        COMPARISONS["workers-16"], broker="null", rounds=1, warm_rounds=0, contestants=("none", "send"),
        load=Load(rate=200, seconds=0.2, partitions=3),
    )  # fmt: skip
    options = runner.Options(only=only)
    with own_senders(), Brokers() as brokers:
        found = {s["contestant"]: s["figures"] for s in runner.samples_of(comparison, options, brokers, {})}
    assert list(found) == [name for name in comparison.contestants if name in (only or comparison.contestants)]
    for what in ("cpu_us", "broker_us"):
        assert (f"net_{what}" in found["send"]) is net
    if net:
        assert found["send"]["net_cpu_us"] == found["send"]["cpu_us"] - found["none"]["cpu_us"]


def test_a_part_of_a_cost_is_judged():
    """The report gives the share of the CPU time that the codec takes, for any number of compressing processes."""
    comparison = COMPARISONS["compression"]
    (part,) = [goal for goal in comparison.goals if goal.part and goal.point == "lz4"]
    assert part.wanted == ">= 0.7 of it is lz4_us"
    for cpu_us, reached in ((1.9, True), (2.1, False)):
        found = made("compression", {"send": {"cpu_us": cpu_us}})["samples"]
        verdict = judge(part, found, LIMITS, {})
        assert verdict.values == pytest.approx([1.4 / cpu_us])
        assert verdict.reached is reached
    assert Goal("send", "rate", least=1.0, limit="lz4_rate", point="lz4") in comparison.goals


def test_growth_is_judged_by_enough_rounds():
    for comparison in COMPARISONS.values():
        if comparison.growth and comparison.goals:
            assert comparison.rounds >= (3 if comparison.measure == "idle" else 5), comparison.name
    many, workers = COMPARISONS["processes-64"].load, COMPARISONS["growth-workers"].load_at(64)
    assert many.share(many.warmup, 1000) == workers.share(workers.warmup, 1000) == 20_000


def test_limit_is_drawn_only_over_its_own_sizes(tmp_path):
    figures = {"cpu_us": 1.0}
    for name, drawn in (("growth-sizes", False), ("growth-partitions", True)):
        comparison = COMPARISONS[name]
        found = made(name, {comparison.contestants[0]: figures})
        assert plots.draw(comparison, found, tmp_path / "plot.svg")
        assert ("physical" in (tmp_path / "plot.svg").read_text()) == drawn


def test_the_report_shows_a_contestants_settings():
    options = runner.Options(settings={"cyproducer": {"batch_size": 1}, "java": {"batch.size": 2}})
    told = {name: runner.given_to(COMPARISONS["send"], options, name) for name in COMPARISONS["send"].contestants}
    assert told["send"]["batch_size"] == 1
    assert told["java"]["batch.size"] == 2
    assert {one.get("linger_ms", one.get("linger.ms")) for one in told.values()} == {replace(Load()).linger_ms}
    for name in ("start", "idle", "recovery", "calls", "spark", "compression"):
        comparison = COMPARISONS[name if name != "idle" else "growth-idle"]
        assert runner.given_to(comparison, options, comparison.contestants[-1]) is not None
