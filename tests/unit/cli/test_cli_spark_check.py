"""Tests the arguments of `cyproducer spark-check`, without a session."""

import sys

import pytest

from cyproducer.cli.main import main
from cyproducer.spark.check import silent_hosts, why_unusable
from cyproducer.spark.check_deployment import archives, interpreters, memory
from cyproducer.spark.finding import Finding


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


@pytest.mark.parametrize(
    ("environment", "look_up"),
    [
        ({}, "python3 of the PATH"),
        ({"PYSPARK_DRIVER_PYTHON": "", "PYSPARK_PYTHON": "a"}, "a (PYSPARK_PYTHON)"),
        ({"PYSPARK_DRIVER_PYTHON": "b", "PYSPARK_PYTHON": "a"}, "b (PYSPARK_DRIVER_PYTHON)"),
    ],
)
def test_which_interpreter_runs_what(environment, look_up):
    assert interpreters(environment, "t").text == (
        f"Spark looks for data sources with {look_up} on the host of the driver, and runs tasks with t on the executors"
    )


ENV, A, TWO = "env.tar.gz is unpacked as ./env", "a.zip is unpacked as ./a", ["a.zip#a, b.zip#b"]


@pytest.mark.parametrize(
    ("texts", "interpreter", "level", "text"),
    [
        (["", ""], "/usr/bin/python3", "ok", "none; tasks run with /usr/bin/python3 of the hosts"),
        (["", ""], "", "ok", "none in the settings; the lines of the hosts show"),
        (["hdfs:///x/env.tar.gz#env"], "./env/bin/python", "ok", f"{ENV}; tasks run with ./env/bin/python"),
        (["", "env.tar.gz"], "env.tar.gz/bin/python", "ok", f"{ENV}.tar.gz; tasks run with"),
        (TWO, "python3", "ok", f"{A}, b.zip is unpacked as ./b; tasks do not run"),
        (["a.zip#a"], "", "ok", f"{A}; the lines of the hosts show"),
        (["a.zip#a"], "/env/bin/python", "ok", f"{A}; tasks do not run"),
        (["a.zip#a"], "../env/bin/python", "ok", f"{A}; tasks do not run"),
        ([""], "./env.pex", "ok", "none; tasks run with ./env.pex of the hosts"),
        ([""], "./env/bin/python", "warning", "tasks run with ./env/bin/python, and no archive is unpacked as env"),
        (["a.zip#a"], "env/bin/python", "warning", "tasks run with env/bin/python, and no archive is unpacked as env"),
    ],
)
def test_archives(texts, interpreter, level, text):
    found = archives(texts, interpreter)
    assert (found.level, found.where) == (level, "archives")
    assert found.text.startswith(text)


def test_memory_that_is_needed_outside_of_the_heap():
    text = memory("4", "4g").text
    assert text.startswith("spark.executor.pyspark.memory=4g divided by 4 cores limits the address space of a Python")
    assert "up to 32 MiB of buffers" in text
    assert memory("", "").text.startswith("Spark does not limit the address space of a Python worker.")
