"""Tests that no file uses a word that is retired; DESIGN.md has the words for each concept."""

import re
from pathlib import Path

import pytest
from test_tidy import ROOT, everything, label

#: Retired words -> what to write instead.
RETIRED = {
    "heir, heirs": "fragment; successor",
    "custody": "handover",
    "estate, estates, legacy, bequeath": "unsent batches; handover",
    "penalty, sentenced, offender, offenders": "isolation; isolated front-end",
    "accused, convict, convicted, banish, banished": "isolate, isolated",
    "condemn, condemned, condemns": "violation",
    "adopt, adopts, adopted, adopting": "take over; recover",
    "kin": "peer process",
    "whereabouts": "process identity",
    "surroundings": "process environment",
    "vitals": "liveness",
    "liar, liars": "front-end that breaks the protocol",
    "whoever, nobody's, somebody's": "name the process or the thread",
}
INSTEAD = {word: instead for words, instead in RETIRED.items() for word in words.split(", ")}
PATTERN = re.compile(r"(?<![A-Za-z])(" + "|".join(map(re.escape, INSTEAD)) + r")(?![A-Za-z])", re.IGNORECASE)


def test_no_retired_word_is_used():
    texts = [*everything(), *sorted((ROOT / "docs").rglob("*.md")), *ROOT.glob("*.md")]
    found = [
        f"{label(path)}:{number}: {word[0]!r}, write instead: {INSTEAD[word[0].lower()]}"
        for path in sorted(set(texts) - {Path(__file__).resolve(), ROOT / "CHANGELOG.md"})
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if (word := PATTERN.search(line))
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("text", ["the heir", "cyp_entry_heir(", "Custody", "_offenders", "Whoever asks"])
def test_a_retired_word_is_found(text):
    assert PATTERN.search(text)


@pytest.mark.parametrize("text", ["their", "making", "made", "heirloom", "akin to"])
def test_other_words_are_not(text):
    assert not PATTERN.search(text)
