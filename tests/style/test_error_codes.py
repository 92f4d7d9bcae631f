"""Tests that native code has the error codes from one file, and the flags of Kafka's from the table."""

import re

import pytest
from test_tidy import ROOT

from cyproducer.error_table import ERRORS, error_of
from cyproducer.sender.engine.native import flags_of

NATIVE = ROOT / "cyproducer" / "protocol" / "error_codes.pxd"
DECLARED = re.compile(r"^    (?:ERROR|CODE)_([A-Z0-9_]+) = (-?\d+)$", re.MULTILINE)


def test_no_other_native_file_declares_a_code():
    sources = [path for path in (ROOT / "cyproducer").rglob("*.p*") if path.suffix in (".pyx", ".pxd")]
    found = [str(path) for path in sources if path != NATIVE and DECLARED.search(path.read_text())]
    assert not found, f"cimport the codes from {NATIVE.name} instead of declaring them: {found}"


@pytest.mark.parametrize("code", [*range(-3, 300), -(2**31), 2**31 - 1])
def test_native_code_judges_each_code_as_the_table_says(code):
    known = error_of(code)
    assert flags_of(code) == (known.retriable, known.refresh_metadata, known.may_be_appended, known.blames_records)


def test_codes_that_may_be_appended_are_sent_again():
    """Otherwise the batch would fail although it may be in the log."""
    assert {code for code, error in ERRORS.items() if error.may_be_appended and not error.retriable} == set()
    assert {code for code, error in ERRORS.items() if error.may_be_appended and error.blames_records} == set()
