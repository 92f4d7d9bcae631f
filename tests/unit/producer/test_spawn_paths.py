"""Tests which directories a spawned sender imports from: the package's own, and those of the libraries it may need."""

import sys
from pathlib import Path

import pytest

import cyproducer
from cyproducer.producer.attach import spawn

LIBRARIES = {name for name, _ in spawn._LIBRARIES}


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
    assert spawn._paths() == [str(Path(cyproducer.__file__).resolve().parents[1]), str(beside)]


def test_a_name_without_a_library_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [])
    monkeypatch.setitem(sys.modules, "opentelemetry", type(sys)("opentelemetry"))  # it has no specification
    for name in [name for name in sys.modules if name.partition(".")[0] in LIBRARIES - {"opentelemetry"}]:
        monkeypatch.delitem(sys.modules, name)
    assert spawn._paths() == [str(Path(cyproducer.__file__).resolve().parents[1])]
