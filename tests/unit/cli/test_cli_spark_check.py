"""Tests the arguments of `cyproducer spark-check`, without a session."""

import sys

from cyproducer.cli.main import main


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
