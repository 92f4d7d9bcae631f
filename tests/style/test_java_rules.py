"""Checks that the places and tests of docs/design/java-rules.md exist."""

import re

import pytest
from test_matrix import ROOT, functions_of

PAGE = ROOT / "docs/design/java-rules.md"
TESTS = {path.name: path for path in (ROOT / "tests").rglob("test_*.py")}
ROWS = [
    [cell.strip() for cell in line.strip("|").split(" | ")]
    for line in PAGE.read_text().splitlines()
    if line.startswith("| ") and not line.startswith("| Java |")
]


def test_the_page_has_rows():
    assert len(ROWS) > 150


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0].replace("`", ""))
def test_places_and_tests_exist(row):
    _, places, tests, differs = row
    for place in re.findall(r"`([^`]+)`", places):
        assert (ROOT / "cyproducer" / place).is_file(), place
    named = re.findall(r"`([^`]+)`", tests)
    assert named, "a rule without a test"
    for each in named:
        file, _, function = each.partition("::")
        assert file in TESTS, file
        assert function in functions_of(TESTS[file]), each
    assert differs.rstrip("| ") == "" or differs.rstrip("| ").endswith(".")
