"""Tests the two commands of a fresh machine, `./demo` and `./test`: README names them, and each explains its use."""

import argparse
import os
import subprocess
from pathlib import Path

import pytest
from demo.main import add_arguments
from test_tidy import ROOT

SCRIPTS = ("demo", "test")


def run(path: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(path), *arguments], cwd="/", env=os.environ | environment, capture_output=True, text=True, timeout=60
    )


@pytest.mark.parametrize("name", SCRIPTS)
def test_readme_names_the_command(name):
    assert f"./{name}" in (ROOT / "README.md").read_text()


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_source_distribution_has_the_script(name):
    lines = (ROOT / "MANIFEST.in").read_text().splitlines()
    assert [line for line in lines if line.startswith("include ") and name in line.split()]


@pytest.mark.parametrize("name", [*SCRIPTS, ".ci/run"])
def test_help_needs_nothing(name):
    done = run(ROOT / name, "--help", PYTHON="/nonexistent")
    assert done.returncode == 0
    assert done.stdout.startswith("usage: ./")
    assert not done.stderr


@pytest.mark.parametrize("name", [*SCRIPTS, ".ci/run"])
def test_a_missing_interpreter_is_named(name):
    done = run(ROOT / name, PYTHON="/nonexistent")
    assert done.returncode == 1
    assert "/nonexistent is missing" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_the_help_of_the_demo_names_every_option():
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    text = run(ROOT / "demo", "--help").stdout
    assert [option for action in parser._actions for option in action.option_strings if option not in text] == []
