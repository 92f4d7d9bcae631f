"""Tests that the error codes of native code are those of the table of Kafka's error codes."""

import re

from test_tidy import ROOT

from cyproducer.error_table import ERRORS

NATIVE = ROOT / "cyproducer" / "protocol" / "error_codes.pxd"
DECLARED = re.compile(r"^    ERROR_([A-Z0-9_]+) = (-?\d+)$", re.MULTILINE)


def test_native_codes_are_those_of_the_table():
    declared = {int(number): name for name, number in DECLARED.findall(NATIVE.read_text())}
    assert declared == {number: code.name for number, code in ERRORS.items()}


def test_no_other_native_file_declares_a_code():
    sources = [path for path in (ROOT / "cyproducer").rglob("*.p*") if path.suffix in (".pyx", ".pxd")]
    found = [str(path) for path in sources if path != NATIVE and DECLARED.search(path.read_text())]
    assert not found, f"cimport the codes from {NATIVE.name} instead of declaring them: {found}"


def codes_of(function: str) -> set[str]:
    """Return the codes that a function of response.pyx compares an error with."""
    text = (ROOT / "cyproducer" / "sender" / "engine" / "delivery" / "response.pyx").read_text()
    body = text.split(f"cdef inline bint {function}(int16_t error)")[1].split("\n\n\n")[0]
    return set(re.findall(r"== ERROR_([A-Z0-9_]+)", body))


def test_the_errors_after_which_a_batch_is_sent_again_are_those_of_the_table():
    """Kafka's RetriableException and InvalidMetadataException; the table has more codes than a Produce response."""
    by_name = {code.name: code for code in ERRORS.values()}
    stale = codes_of("_is_stale_metadata")
    again = codes_of("_is_retriable") | stale
    assert len(again) > len(stale) > 5
    assert {name for name in again if not by_name[name].retriable} == set()
    # The client's own code for a closed connection: the loop refreshes the metadata itself.
    assert {name for name in again if by_name[name].refresh_metadata} - stale == {"NETWORK_EXCEPTION"}
    assert {name for name in stale if not by_name[name].refresh_metadata} == set()
