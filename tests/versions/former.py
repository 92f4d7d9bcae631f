"""Builds the package of the commit before, beside the one that is tested. Both run with the same libraries."""

import fcntl
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PRODUCT = ("cyproducer", "pyspark_cyproducer", "setup.py", "pyproject.toml")
CACHE = ROOT / ".tox" / "versions"


def former_commit() -> str:
    """Return the commit before the last one that changed the product; $CYPRODUCER_FORMER names another one."""
    named = os.environ.get("CYPRODUCER_FORMER")
    if named:
        return _git("rev-parse", "--verify", f"{named}^{{commit}}")
    last = _git("rev-list", "-1", "HEAD", "--", *PRODUCT)
    return _git("rev-parse", "--verify", f"{last}^")


def former_package() -> Path:
    """Return a directory with the installed package of the former commit. Build it if it is not there: minutes."""
    commit = former_commit()
    target = CACHE / f"{commit[:12]}-{sys.implementation.cache_tag}"
    CACHE.mkdir(parents=True, exist_ok=True)
    with open(CACHE / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # pytest-xdist has several processes
        if not target.exists():
            _install(commit, target)
    return target


def _install(commit: str, target: Path) -> None:
    made = target.with_suffix(".new")
    source = target.with_suffix(".source")
    for path in (made, source):
        shutil.rmtree(path, ignore_errors=True)
    archive = subprocess.run(["git", "archive", commit], cwd=ROOT, check=True, stdout=subprocess.PIPE).stdout
    source.mkdir()
    subprocess.run(["tar", "--extract", "--directory", source], input=archive, check=True)
    options = ("--quiet", "--no-deps", "--no-build-isolation", "--target", made, source)
    environment = {**os.environ, "CFLAGS": "-O1", "CYPRODUCER_BUILD_JOBS": "2"}
    subprocess.run([sys.executable, "-m", "pip", "install", *options], check=True, env=environment)
    shutil.rmtree(source)
    made.rename(target)


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()
