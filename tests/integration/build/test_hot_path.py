"""Tests that the build fails when Cython hints that a call in native code is slow (a function without error contract).

The tests build a package of one module with the project's own ``setup.py``. The project itself gives no such hint, or
it would not have been built.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SETUP = Path(__file__).resolve().parents[3] / "setup.py"
SAMPLE = """cdef void leaf(int x) {contract}nogil:
    pass

cdef void hot() noexcept nogil:
    leaf(1)
"""


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """Make a directory with ``setup.py`` and an empty package ``cyproducer``."""
    shutil.copy(SETUP, tmp_path)
    (tmp_path / "cyproducer").mkdir()
    return tmp_path


def translate(package: Path, contract: str, **settings: str) -> subprocess.CompletedProcess[str]:
    """Run ``setup.py`` with the sample, which is a small module."""
    (package / "cyproducer" / "sample.pyx").write_text(SAMPLE.format(contract=contract))
    settings = {"CYPRODUCER_DEBUG": "", "CYPRODUCER_BUILD_JOBS": "", **settings}
    command = [sys.executable, "setup.py", "-q", "build_ext"]
    return subprocess.run(command, cwd=package, env=os.environ | settings, capture_output=True, text=True, timeout=250)


def test_a_hint_ends_the_build_each_time(package):
    for _ in range(2):
        run = translate(package, "")
        assert run.returncode == 1, run.stdout + run.stderr
        assert "performance hint: cyproducer/sample.pyx" in run.stderr
        assert "performance hints from Cython (above)" in run.stderr
    run = translate(package, "noexcept ")
    assert run.returncode == 0, run.stderr


def test_a_debug_build_has_hints_of_its_own(package):
    run = translate(package, "", CYPRODUCER_DEBUG="1")
    assert run.returncode == 0, run.stderr
    assert "performance hint" in run.stderr
