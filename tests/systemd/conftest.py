"""Defines a systemd of its own for each test in this directory."""

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from systemd_host import UNIT, UNITS, Systemd, cgroup2


@pytest.fixture
def boot() -> Iterator[Callable[..., Systemd]]:
    """Start systemd with the options of CYPRODUCER_OPTIONS and lines for a drop-in of the service."""
    if os.geteuid() or not Path("/lib/systemd/systemd").exists() or shutil.which("nsenter") is None:
        pytest.fail("these tests need root and systemd (Debian: apt-get install systemd util-linux)", pytrace=False)
    work = Path(tempfile.mkdtemp(prefix="cyproducer-systemd-", dir="/var/tmp"))
    started = []

    def start(options: str, *lines: str) -> Systemd:
        shutil.copytree(UNITS, work / "units", ignore=shutil.ignore_patterns("*.env"))
        (work / "sender.env").write_text(f'CYPRODUCER_OPTIONS="{options}"\n')
        started.append(Systemd(work, cgroup2() / work.name))
        (systemd,) = started
        systemd.add_drop_in(UNIT, f"StandardError=append:{work}/service.log", *lines)
        return systemd

    yield start
    for systemd in started:
        systemd.end()
    shutil.rmtree(work)
