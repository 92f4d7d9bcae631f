"""Tests which directories a spawned sender imports from: the package's own, and those of the libraries it may need."""

import sys
from pathlib import Path

import pytest

import cyproducer
from cyproducer.producer.channel import spawn

LIBRARIES = {name for name, _ in spawn._LIBRARIES}
PLAINTEXT = {"security_protocol": "PLAINTEXT", "sasl_mechanism": "GSSAPI"}


def test_libraries_are_found_without_being_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`opentelemetry` is a namespace package, of which each directory has other parts."""
    other, beside = tmp_path / "other", tmp_path / "beside"
    for path in (other / "opentelemetry" / "sdk", other / "google" / "cloud", beside / "opentelemetry" / "proto",
                 beside / "google" / "protobuf"):  # fmt: skip
        path.mkdir(parents=True)
        (path / "__init__.py").write_text("raise SystemExit('it was imported')")
    monkeypatch.setattr(sys, "path", [str(other), str(beside)])
    for name in [name for name in sys.modules if name.partition(".")[0] in LIBRARIES]:
        monkeypatch.delitem(sys.modules, name)
    assert spawn._paths(PLAINTEXT) == [str(Path(cyproducer.__file__).resolve().parents[1]), str(beside)]


def test_a_name_without_a_library_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [])
    monkeypatch.setitem(sys.modules, "opentelemetry", type(sys)("opentelemetry"))  # it has no specification
    for name in [name for name in sys.modules if name.partition(".")[0] in LIBRARIES - {"opentelemetry"}]:
        monkeypatch.delitem(sys.modules, name)
    assert spawn._paths(PLAINTEXT) == [str(Path(cyproducer.__file__).resolve().parents[1])]


@pytest.mark.parametrize(
    ("settings", "library"),
    [
        ({"security_protocol": "SSL", "ssl_keystore_location": "/store"}, "cryptography"),
        ({"security_protocol": "SSL", "ssl_truststore_location": "/store"}, "cryptography"),
        ({"security_protocol": "SASL_SSL"}, "gssapi"),
        ({"security_protocol": "SASL_SSL", "sasl_mechanism": "PLAIN"}, None),
        ({}, None),
    ],
)
def test_a_library_of_security_is_looked_for_only_if_it_is_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: dict[str, str], library: str | None
) -> None:
    for name in ("cryptography", "gssapi"):
        (tmp_path / name / name).mkdir(parents=True)
        (tmp_path / name / name / "__init__.py").touch()
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setattr(sys, "path", [str(tmp_path / name) for name in ("cryptography", "gssapi")])
    monkeypatch.setattr(spawn, "_LIBRARIES", ())
    found = [str(tmp_path / library)] if library else []
    assert spawn._paths(PLAINTEXT | settings)[1:] == found
