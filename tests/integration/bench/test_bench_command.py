"""Tests `python -m bench`: what it measures, writes and refuses, and that an interrupt leaves nothing behind."""

import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from support.process import command_of, script_environment, users_of, wait_until

import bench
from bench.native import program

ROOT = Path(bench.__file__).parents[1]
COMMAND = [sys.executable, "-m", "bench", "--results"]
HIDDEN = "import runpy, sys; sys.modules[{!r}] = None; runpy.run_module('bench', run_name='__main__', alter_sys=True)"


def run_bench(results, *arguments, command=COMMAND, **changes):
    return subprocess.run(
        [*command, results, *arguments],
        cwd=ROOT, env=script_environment(changes), capture_output=True, text=True, timeout=250,
    )  # fmt: skip


def test_the_command_measures_in_turn_and_reports(tmp_path):
    run = run_bench(tmp_path / "results", "run", "results", "--quick", "--rounds", "2", "--share", "0.1")
    assert run.returncode == 0, run.stderr
    made = json.loads((tmp_path / "results" / "results.json").read_text())
    assert (made["failed"], made["skipped"]) == (None, {})
    order = [(s["round"], s["contestant"]) for s in made["samples"]]
    assert order == [(number, name) for number in range(2) for name in ("send_kept", "confluent_callback")]
    assert {s["figures"]["messages"] % 20_000 for s in made["samples"]} == {0}
    assert min(s["figures"]["messages"] for s in made["samples"]) >= 20_000
    assert min(s["figures"]["seconds"] for s in made["samples"]) >= 0.1
    assert made["machine"]["cores"] > 0
    assert made["limits"]["loopback_gb_per_s"] > 0
    assert made["given"]["send_kept"]["acks"] == "all"
    assert made["given"]["confluent_callback"]["linger.ms"] == 5
    assert made["machine"]["librdkafka"].count(".") == 2
    assert "java" not in made["machine"]
    assert made["commit"] is None or set(made["commit"]) == {"hash", "dirty"}
    text = (tmp_path / "RESULTS.md").read_text()
    assert "results/results.svg" in text
    assert (tmp_path / "results" / "results.svg").stat().st_size > 1000
    assert run.stdout.count(", goal ") == 2


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["absent"], "no comparison is called absent"),
        (["results", "--only", "send_kept,confluent_typo"],
         "no contestant is called confluent_typo; the contestants are send_kept, confluent_callback"),
        (["results", "--rounds", "0"], "--rounds 0: use at least 1"),
        (["results", "--rounds", "-1"], "--rounds -1: use at least 1"),
        (["results", "--share", "0"], "--share 0: use a number above 0"),
        (["results", "--share", "nan"], "--share nan: use a number above 0"),
        (["results", "--set", "cyproducer:foo"], "'foo' is not name=value"),
        (["results", "--set", "cyproducter:a=1"], "unknown library 'cyproducter'"),
    ],
)  # fmt: skip
def test_invalid_arguments_are_refused(tmp_path, arguments, complaint):
    refused(run_bench(tmp_path / "results", "run", *arguments), complaint)
    assert list(tmp_path.iterdir()) == []


def refused(run, complaint):
    """Check that the refusal is one line, printed before any measurement."""
    assert (run.returncode, run.stdout) == (2, "")
    assert complaint in run.stderr
    assert run.stderr.count("\n") == 1


def test_unwritable_output_directory_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    refused(run_bench(tmp_path / "file" / "results", "run", "results"), "the results cannot be written to")


def test_a_missing_compiler_is_named(tmp_path):
    run = run_bench(tmp_path / "results", "run", "results", CC="no-such-compiler", PATH=str(tmp_path),
                    XDG_CACHE_HOME=str(tmp_path / "cache"))  # fmt: skip
    refused(run, "needs a C compiler: install gcc, or set CC")


@pytest.mark.parametrize("arguments", [["run", "results"], ["report"]], ids=lambda value: value[0])
def test_missing_matplotlib_is_reported_at_the_start(tmp_path, arguments):
    command = [sys.executable, "-c", HIDDEN.format("matplotlib"), "--results"]
    refused(run_bench(tmp_path / "results", *arguments, command=command), "matplotlib is missing: pip install")


def test_without_java_only_its_contestant_is_left_out(tmp_path, monkeypatch):
    monkeypatch.setenv("CC", shutil.which("gcc") or shutil.which("cc") or "")
    for name in ("limits", "null_broker"):
        program(name)
    subprocess.run([sys.executable, "-c", "import bench.probe"], cwd=ROOT, check=True)  # compiled by that compiler
    run = run_bench(
        tmp_path / "results", "run", "send", "--quick", "--share", "0.05", "--only", "send,java", "--no-report",
        PATH=str(tmp_path), JAVA_HOME=None,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    assert "java is left out: Kafka needs a Java runtime" in run.stderr
    assert "Traceback" not in run.stderr
    made = json.loads((tmp_path / "results" / "send.json").read_text())
    assert {s["contestant"] for s in made["samples"]} == {"send"}
    assert list(made["skipped"]) == ["java"]
    assert list(made["given"]) == ["send"]


@pytest.mark.parametrize(
    ("arguments", "line", "sign", "connected"),
    [
        (["processes-4", "--rounds", "5"], "round 1/5 send", "bench.worker", False),
        (["send", "--only", "java", "--share", "100"], "[1/1", "org.apache.kafka.tools.ProducerPerformance", True),
    ],
    ids=["workers", "java"],
)
def test_ctrl_c_ends_everything(tmp_path, short_tmp, arguments, line, sign, connected):
    """The command has a TMPDIR of its own, which identifies all files and processes that it starts."""
    temporary = short_tmp / f"bench-{arguments[0]}"
    temporary.mkdir()
    with subprocess.Popen(
        [*COMMAND, tmp_path / "results", "run", *arguments, "--quick"],
        cwd=ROOT, env=script_environment({"TMPDIR": str(temporary)}), stderr=subprocess.PIPE, text=True,
    ) as run:  # fmt: skip
        while line not in run.stderr.readline():
            assert run.poll() is None

        def at_work():
            children = psutil.Process(run.pid).children(recursive=True)
            return any(sign in command_of(c) and (not connected or c.net_connections("tcp")) for c in children)

        wait_until(at_work, 60, sign)
        run.send_signal(signal.SIGINT)
        assert "interrupted" in run.stderr.read()
    assert run.returncode == 130
    wait_until(lambda: users_of(temporary) == [], what="the end of all that the command has started")
    assert list(temporary.iterdir()) == []
    assert not (tmp_path / "results").exists()
    shutil.rmtree(temporary)
