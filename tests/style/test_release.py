"""Tests that the places which name the versions of Python for a release agree."""

import re
import sys
import tomllib

import pytest
from test_tidy import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
WORKFLOW = (ROOT / ".github" / "workflows" / "release.yml").read_text()


def test_each_python_of_the_classifiers_gets_wheels_and_a_trial():
    classified = re.findall(r"Python :: (3\.\d+)", " ".join(PROJECT["project"]["classifiers"]))
    built = PROJECT["tool"]["cibuildwheel"]["build"]
    assert built == " ".join(f"cp{version.replace('.', '')}-*" for version in classified)
    (tried,) = re.findall(r"python: \[(.*)\]", WORKFLOW)
    assert tried == ", ".join(f'"{version}"' for version in classified)
    assert PROJECT["project"]["requires-python"] == f">={classified[0]}"


def test_the_address_of_the_repository_is_in_one_place():
    """CONTRIBUTING.md says that it is filled in there only."""
    urls = PROJECT["project"]["urls"]
    assert all(url.startswith(urls["Repository"]) for url in urls.values())
    texts = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), ROOT / "CITATION.cff", ROOT / "setup.py"]
    assert [path.name for path in texts if urls["Repository"] in path.read_text()] == []


@pytest.mark.parametrize(
    ("platform", "suffix"),
    [("manylinux_2_28_x86_64", "x86_64-linux-gnu"), ("musllinux_1_2_aarch64", "aarch64-linux-musl")],
)
def test_modules_for_another_system_have_its_name(platform, suffix, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "tools")
    import wheels

    variables = wheels.environment(platform, tmp_path)
    version = f"{sys.version_info.major}{sys.version_info.minor}"
    assert variables["SETUPTOOLS_EXT_SUFFIX"] == f".cpython-{version}-{suffix}.so"
    assert variables["_PYTHON_HOST_PLATFORM"] == f"linux-{suffix.partition('-')[0]}"
    assert variables["CC"].startswith(sys.executable)
