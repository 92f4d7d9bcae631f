"""Tests that every mutant and every mistake of the simulation fits the source: a change that moves code moves it."""

import pytest
from mutants.mutant import Mutant, chosen_by
from mutants.table import MUTANTS
from simulation.mutants import MUTANTS as MISTAKES
from simulation.mutants import Mutant as Mistake
from support.source import ROOT, file_with, texts


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.id)
def test_a_mutant_changes_one_place_of_the_source(mutant: Mutant) -> None:
    text = texts()[mutant.file]
    assert mutant.changed(text) != text


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.name)
def test_a_mistake_of_the_simulation_changes_one_place_of_the_source(mistake: Mistake) -> None:
    assert mistake.old in texts()[file_with(mistake.old)]
    assert mistake.new != mistake.old


def test_ids_differ() -> None:
    ids = [mutant.id for mutant in MUTANTS]
    assert len(set(ids)) == len(ids)


def test_promises_are_those_of_the_design() -> None:
    promises = [f"P{number}" for number in range(1, 9)]
    assert [mutant.id for mutant in MUTANTS if mutant.promise not in promises] == []


def test_the_named_tests_exist() -> None:
    """A parametrized test may be named with its parameters."""
    for mutant in MUTANTS:
        assert mutant.tests, mutant.id
        for test in mutant.tests:
            path, _, name = test.partition("::")
            assert (ROOT / "tests" / path).is_file(), f"{mutant.id}: {path}"
            function = name.partition("[")[0].rpartition("::")[2]
            text = (ROOT / "tests" / path).read_text()
            assert not name or f"def {function}(" in text, f"{mutant.id}: {test}"


def test_a_commit_always_chooses_the_same_mutants() -> None:
    chosen = chosen_by("0123abc", MUTANTS, 3)
    assert chosen == chosen_by("0123abc", MUTANTS[::-1], 3)
    assert len({mutant.id for commit in range(50) for mutant in chosen_by(str(commit), MUTANTS, 3)}) > 20
