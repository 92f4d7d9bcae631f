"""Fixtures of the tests of engines on a scripted broker, and of those around the sender's processes."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.engine_host import Nursery
from support.fault_rig import Rig
from support.scripted_broker import ScriptedBroker
from support.supervised import NOWHERE, Foreground

from cyproducer.config import Settings
from cyproducer.producer import attach
from cyproducer.producer.attach import Attachment


@pytest.fixture
def broker() -> Iterator[ScriptedBroker]:
    with ScriptedBroker() as broker:
        yield broker


@pytest.fixture
def rig(broker: ScriptedBroker) -> Iterator[Rig]:
    """An engine on `broker`."""
    rig = Rig(broker)
    yield rig
    rig.close()


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    """Engines in processes of their own, to be killed."""
    nursery = Nursery()
    yield nursery
    nursery.close()


@pytest.fixture
def connect() -> Iterator[Callable[..., Attachment]]:
    made = []

    def connect(**given: Any) -> Attachment:
        if "sender" not in given:
            given = {"bootstrap_servers": NOWHERE, "sender_idle_timeout_ms": 200, **given}
        made.append(attach.connect(Settings.parse(**given), time.monotonic() + 30))
        return made[-1]

    yield connect
    for attachment in made:
        attachment.close()


@pytest.fixture
def foreground(runtime_dir: Path, tmp_path: Path) -> Iterator[Callable[..., Foreground]]:
    made: list[Foreground] = []

    def start(servers: str = NOWHERE, patch: str = "", name: str = "named", **options: Any) -> Foreground:
        log = tmp_path / f"log-{len(made)}"
        made.append(Foreground(runtime_dir / f"{name}.sock", servers, log, patch, **options))
        return made[-1]

    yield start
    for each in made:
        each.end()
