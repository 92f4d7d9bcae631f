"""Tests that no file uses the words that the glossary of docs/design/architecture.md has retired."""

import re
from pathlib import Path

import pytest
from test_tidy import ROOT, everything, label

GLOSSARY = ROOT / "docs" / "design" / "architecture.md"


def retired() -> list[str]:
    """Return the words in the first column of the last table of the glossary."""
    rows = GLOSSARY.read_text().split("| retired | write instead |\n|---|---|\n")[1].splitlines()
    return [word.strip() for row in rows for word in row.split("|")[1].split(",")]


def pattern_of(words: list[str]) -> re.Pattern[str]:
    return re.compile(r"(?<![A-Za-z])(" + "|".join(map(re.escape, words)) + r")(?![A-Za-z])", re.IGNORECASE)


def test_the_glossary_names_retired_words():
    assert {"heir", "custody", "penalty", "whoever"} <= set(retired())


def test_no_retired_word_is_used():
    pattern = pattern_of(retired())
    texts = [*everything(), *sorted((ROOT / "docs").rglob("*.md")), *ROOT.glob("*.md")]
    found = [
        f"{label(path)}:{number}: {word[0]!r} in {line.strip()[:100]}"
        for path in sorted(set(texts) - {GLOSSARY, Path(__file__).resolve(), ROOT / "CHANGELOG.md"})
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if (word := pattern.search(line))
    ]
    assert not found, f"see the glossary in {label(GLOSSARY)} for the word to use:\n" + "\n".join(found)


@pytest.mark.parametrize("text", ["the heir", "cyp_entry_heir(", "Custody", "_offenders", "Whoever asks"])
def test_a_retired_word_is_found(text):
    assert pattern_of(retired()).search(text)


@pytest.mark.parametrize("text", ["their", "making", "made", "heirloom", "akin to"])
def test_other_words_are_not(text):
    assert not pattern_of(retired()).search(text)
