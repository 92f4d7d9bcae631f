"""Defines fixtures for tests of engines on a scripted broker, and for tests of the sender's processes."""

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
from devkafka.node import KafkaCluster
from kfake.scripted_broker import Fault, ScriptedBroker
from support.crashpoints import Trigger
from support.engine_host import Nursery
from support.fault_rig import Rig
from support.node_settings import FEW_THREADS
from support.process import wait_until
from support.supervised import NOWHERE, Foreground, the_sender
from support.violations import no_violation_in_an_engine  # noqa: F401

from cyproducer.config.settings import Settings
from cyproducer.producer.channel.attach import connect as attach
from cyproducer.producer.core.attachment import Attachment


@pytest.fixture
def broker(request: pytest.FixtureRequest) -> Iterator[ScriptedBroker]:
    """Yield a scripted broker. A module may have its settings as BROKER."""
    with ScriptedBroker(**getattr(request.module, "BROKER", {})) as broker:
        yield broker


@pytest.fixture
def lone_broker() -> Iterator[ScriptedBroker]:
    with ScriptedBroker(nodes=1) as broker:
        yield broker


@pytest.fixture
def rig(broker: ScriptedBroker) -> Iterator[Rig]:
    """Yield an engine on `broker`."""
    rig = Rig(broker)
    yield rig
    rig.close()


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    """Yield the process that forks engines. Tests can kill these."""
    nursery = Nursery()
    yield nursery
    nursery.close()


@pytest.fixture(scope="module")
def kafka_v1(
    tmp_path_factory: pytest.TempPathFactory,
    register_cluster: Callable[[KafkaCluster], AbstractContextManager[None]],
) -> Iterator[KafkaCluster]:
    """Yield a Kafka node whose transactions do not use KIP-890 (transaction.version 1)."""
    with (
        KafkaCluster(1, tmp_path_factory.mktemp("kafka-v1"), properties=FEW_THREADS) as cluster,
        register_cluster(cluster),
    ):
        servers = cluster.bootstrap_servers
        command = "org.apache.kafka.tools.FeatureCommand"
        cluster.tool(command, "--bootstrap-server", servers, "downgrade", "--feature", "transaction.version=1")
        yield cluster


@pytest.fixture
def trigger(tmp_path: Path) -> Iterator[Trigger]:
    """Arm crash points of the engines of `crashing_nursery`."""
    trigger = Trigger(tmp_path)
    yield trigger
    trigger.close()


@pytest.fixture
def crashing_nursery(trigger: Trigger) -> Iterator[Nursery]:
    """Yield the process that forks engines, which act on `trigger`."""
    nursery = Nursery(trigger.environment)
    yield nursery
    nursery.close()


@pytest.fixture
def connect() -> Iterator[Callable[..., Attachment]]:
    made = []

    def connect(**given: Any) -> Attachment:
        if "sender" not in given:
            given = {"bootstrap_servers": NOWHERE, "sender_idle_timeout_ms": 200, **given}
        made.append(attach(Settings.parse(**given), time.monotonic() + 30))
        return made[-1]

    yield connect
    for attachment in made:
        attachment.close()


@pytest.fixture
def busy(broker: ScriptedBroker, make_producer: Callable[..., Any]) -> Callable[..., Callable[[], None]]:
    """Return ``busy(**settings) -> answer``: the only sender has an undelivered batch until `answer()` is called.

    The batch belongs to a producer with these settings, on `broker`.
    """

    def keep_busy(**settings: Any) -> Callable[[], None]:
        producer = make_producer(**settings)
        producer.send(broker.topic, b"first", partition=0).result(30)
        with broker.lock:
            broker.faults.extend(Fault(hang="appended") for _ in range(10))  # the retries of successors count too
        future = producer.send(broker.topic, b"second", partition=0)
        wait_until(lambda: the_sender()["front_ends"][-1]["oldest_unacked_ms"], 30, "an undelivered batch")

        def answer() -> None:
            with broker.lock:
                broker.faults.clear()
            broker.drop_connections()
            future.result(30)

        return answer

    return keep_busy


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
