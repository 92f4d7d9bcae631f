"""Tests what `./test changed`, `./test full` and the tier `smoke` choose, without running anything."""

import re
from pathlib import Path

import pytest
from test_tidy import ROOT
from tiers import changed, full
from tiers.packages import PACKAGES
from tiers.smoke import SMOKE

TESTS = ROOT / "tests"


def test_the_tests_of_each_package_exist():
    missing = [test for package in PACKAGES.values() for test in package.tests if not (TESTS / test).exists()]
    assert not missing


def test_the_tests_of_smoke_exist():
    for test in (test for tests in SMOKE.values() for test in tests):
        file, name = test.split("[")[0].split("::")
        assert f"def {name}(" in (TESTS / file).read_text(), test


def test_smoke_has_each_promise_and_each_guide():
    """Kerberos has an environment of its own, which needs a KDC."""
    promises = {f"P{number}" for number in range(1, 9)}
    guides = {path.stem.replace("_", " ") for path in (ROOT / "docs" / "guides").glob("*.md")} - {"index", "kerberos"}
    assert promises <= SMOKE.keys()
    assert {name for name in guides if not any(f"guides: {name}" in each.lower() for each in SMOKE)} == set()


def test_every_environment_of_full_exists():
    sections = set(re.findall(r"^\[testenv:(\w+)\]", (ROOT / "tox.ini").read_text(), re.MULTILINE))
    assert set(full.environments()) <= sections
    gate = {"build", "lint", "unit", "engine", "smoke", "changed"}
    assert sections == gate | set(full.environments())


@pytest.mark.parametrize(
    ("file", "tests"),
    [
        ("cyproducer/spark/write.py", {"spark", "integration/cli"}),
        ("cyproducer/sender/handover/a.py", {"unit/sender", "integration/sender"}),
        ("tests/unit/config/test_config.py", {"unit/config/test_config.py"}),
        ("tests/chaos/monkey.py", {"chaos"}),
        ("tests/support/consumer.py", {"alarms", "chaos"}),
        ("bench/__main__.py", {"integration/bench"}),
        ("docs/faq.md", {"style", "usage/test_docs_examples.py"}),
        ("LICENSE", {"style"}),
    ],
)
def test_a_changed_file_needs_these_tests(file, tests):
    assert tests <= set(changed.tests_of([file]))


def test_a_changed_layout_needs_nearly_everything():
    needed = changed.tests_of(["cyproducer/shm/layout.h"])
    assert {"unit/shm", "model", "simulation", "integration/engine"} <= set(needed)


def test_a_file_is_not_run_beside_its_folder():
    assert changed.tests_of(["tests/chaos/monkey.py", "tests/chaos/test_chaos.py"]) == ["chaos"]


def test_a_folder_with_an_environment_of_its_own_runs_there():
    assert changed.by_environment(["kerberos", "spark"]) == {"kerberos": ["kerberos"], "changed": ["spark"]}


def test_results_are_kept_for_a_commit(tmp_path: Path):
    full.Results(tmp_path, "one").add("model", full.Result(0, 12.0, "2026-01-01 10:00"))
    known = full.Results(tmp_path, "one").get("model")
    assert known is not None and known.line("model").split()[:3] == ["model", "passed", "12"]
    assert full.Results(tmp_path, "another").get("model") is None


def test_an_unknown_environment_is_refused(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(full, "_commit", lambda changes_allowed: "one")
    assert full.run(["nonsense"]) == 2
    assert "no environment of `full`: nonsense" in capsys.readouterr().out
