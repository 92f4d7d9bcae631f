"""Tests the arguments of `cyproducer spark-check`, without a session."""

import sys

import pytest

from cyproducer.cli.main import main
from cyproducer.spark.check import Finding, silent_hosts, why_unusable


def test_a_wrong_setting_is_wrong_usage(capsys):
    assert main(["spark-check", "--conf", "speculation=true"]) == 2
    assert capsys.readouterr().err == "cyproducer spark-check: --conf speculation=true: write spark.NAME=VALUE\n"


def test_without_pyspark_it_says_what_to_install(capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyspark", None)
    monkeypatch.setitem(sys.modules, "pyspark.sql", None)
    assert main(["spark-check", "--master", "local[1]"]) == 1
    error = capsys.readouterr().err
    assert error.startswith("cyproducer spark-check: PySpark cannot be imported (")
    assert "Install cyproducer with its extra `spark`, and with `spark-connect` for --remote" in error


def test_an_executor_is_known_by_any_name_of_its_host():
    seen = [{"node-5", "10.0.0.5"}, {"node-6", "node-6.example"}]
    assert silent_hosts({"10.0.0.5", "node-6.example"}, seen) == []
    (found,) = silent_hosts({"10.0.0.5", "10.0.0.7"}, seen)
    assert (found.level, found.where) == ("warning", "host 10.0.0.7")


@pytest.mark.parametrize(
    ("pyarrow", "numpy", "text"),
    [("18.0.0", "1.26", ""), ("", "1.26", "no PyArrow"), ("20.0", "", "no NumPy"), ("17.0.0", "2.0", "too old")],
)
def test_versions_of_packages(pyarrow, numpy, text):
    assert (text in why_unusable(pyarrow, numpy)) if text else not why_unusable(pyarrow, numpy)


def test_a_finding_is_one_line():
    assert str(Finding("ok", "driver", "text")) == "ok       driver: text"
