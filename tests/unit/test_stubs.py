"""Tests that the stubs of the compiled modules name what the modules have, with the same parameters (stubtest)."""

import os
import subprocess
import sys
from pathlib import Path

import cyproducer

ROOT = Path(__file__).resolve().parents[2]
#: A name of the list that is not needed is an error, too: so the list shows that the modules were compared.
ALLOWED = Path(__file__).with_name("stubtest_allowlist.txt")


def test_stubs_agree_with_the_modules(tmp_path: Path) -> None:
    built_in_place = Path(cyproducer.__file__).parents[1] == ROOT
    command = [sys.executable, "-m", "mypy.stubtest", "cyproducer", "--concise", "--ignore-disjoint-bases"]
    command += ["--ignore-missing-stub", "--allowlist", str(ALLOWED)]
    # Not the project's configuration: there, mypy looks for packages in the source first.
    config = tmp_path / "mypy.ini"
    config.write_text("[mypy]\nignore_missing_imports = true\n")
    command += ["--mypy-config-file", str(config)]
    done = subprocess.run(
        command,
        cwd=ROOT if built_in_place else tmp_path,
        env={**os.environ, "MYPY_CACHE_DIR": str(tmp_path / "cache")},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert (done.returncode, done.stdout) == (0, ""), done.stdout + done.stderr
