"""Checks tests/MATRIX.md: thirty-four faults, each with tests that exist, or a sentence why there is none."""

import ast
import functools
import re
from pathlib import Path

import pytest
from test_tidy import ROOT

MATRIX = ROOT / "tests" / "MATRIX.md"
ROWS = 34
HEADING = re.compile(r"^### (\d+)\. (\S.*)$", re.MULTILINE)
NAMED = re.compile(r"^- `(tests/[\w/]+\.py)::(\w+)`", re.MULTILINE)
REASON = re.compile(r"^Not here: \w.*", re.MULTILINE)


def rows(text: str) -> dict[int, str]:
    """Return the text under each numbered heading, by number. Raise ValueError for a number that occurs twice."""
    headings = list(HEADING.finditer(text))
    ends = [heading.start() for heading in headings[1:]] + [len(text)]
    found: dict[int, str] = {}
    for heading, end in zip(headings, ends, strict=True):
        if int(heading[1]) in found:
            raise ValueError(f"row {heading[1]} stands twice")
        found[int(heading[1])] = text[heading.end() : end]
    return found


@functools.cache
def functions_of(path: Path) -> set[str]:
    """Return the names of the test functions of a file, without running it; empty if there is no such file."""
    if not path.is_file():
        return set()
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    return {
        node.name
        for node in ast.parse(path.read_text()).body
        if isinstance(node, functions) and node.name.startswith("test_")
    }


def complaints(text: str) -> list[str]:
    """Return the defects of the matrix."""
    found = rows(text)
    wrong = [f"row {n} is missing" for n in range(1, ROWS + 1) if n not in found]
    wrong += [f"row {n} is none of them" for n in found if not 1 <= n <= ROWS]
    for number, body in found.items():
        named = NAMED.findall(body)
        if not named and not REASON.search(body):
            wrong.append(f'row {number} names no test, and no sentence begins with "Not here: "')
        if len(named) != sum(line.startswith("-") for line in body.splitlines()):
            wrong.append(f"row {number} has a line that does not name a test: - `tests/path.py::test_name`")
        wrong += [
            f"row {number}: {path} has no {name}" for path, name in named if name not in functions_of(ROOT / path)
        ]
    return wrong


def test_every_row_names_tests_that_exist_or_says_why_not():
    wrong = complaints(MATRIX.read_text())
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ("### 7. ", "### 77. ", "row 7 is missing"),
        ("test_model.py::test_no_order", "test_model.py::test_no_such", "has no test_no_such"),
        ("- `tests/unit/sender/test_election.py::", "- `tests/unit/no_election.py::", "no_election.py has no"),
        ("- `tests/unit/sender/test_election.py::", "- tests/unit/sender/test_election.py::", "does not name"),
    ],
)  # fmt: skip
def test_errors_of_the_matrix_are_found(old, new, complaint):
    text = MATRIX.read_text()
    assert old in text
    assert any(complaint in line for line in complaints(text.replace(old, new)))


def test_a_row_without_tests_needs_a_reason():
    text = "".join(f"### {n}. x\n\nNot here: for want of it.\n" for n in range(1, ROWS + 1))
    assert complaints(text) == []
    assert complaints(text.replace("Not here", "Nowhere", 1)) == [
        'row 1 names no test, and no sentence begins with "Not here: "'
    ]
    with pytest.raises(ValueError, match="row 1 stands twice"):
        rows(text + "### 1. y\n")
