"""Tests the import of a copy of the source that was not built, which Python finds first if it runs there."""

import shutil
import subprocess
import sys
from pathlib import Path

import cyproducer


def test_the_error_says_what_to_do(tmp_path: Path) -> None:
    source = Path(cyproducer.__file__).parent
    shutil.copytree(source, tmp_path / "cyproducer", ignore=shutil.ignore_patterns("*.so", "*.c", "__pycache__"))
    done = subprocess.run(
        [sys.executable, "-c", "from cyproducer import KafkaProducer"],
        cwd=tmp_path,
        env={},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 1
    error = done.stderr.splitlines()[-1]
    assert error.startswith(f"ImportError: {tmp_path}/cyproducer has no compiled modules")
    assert "in another directory" in error
    assert "pip install -e ." in error
