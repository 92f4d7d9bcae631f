"""Tests that a connection goes on when a real Kafka asks for new keys of TLS 1.3 (KeyUpdate), and that nothing doubles.

Java does so after 137 GB of a connection. Here it does after a few records of TLS.
"""

import contextlib
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from devkafka.node import KafkaCluster
from support.secure_kafka import SecureKafka, running_secure_kafka
from support.secure_settings import SettingsFor

from cyproducer import KafkaProducer
from cyproducer.observe.status import status

Make = Callable[..., KafkaProducer]
VALUE_BYTES = 800_000
COUNT = 60


@pytest.fixture(scope="module")
def secure_kafka(
    tmp_path_factory: pytest.TempPathFactory, register_cluster: Callable[[KafkaCluster], AbstractContextManager[None]]
) -> Iterator[SecureKafka]:
    """Yield a node that asks for new keys after each MiB that it has got."""
    directory = tmp_path_factory.mktemp("key-updates")
    limits = directory / "java.security"
    limits.write_text("jdk.tls.keyLimits=AES/GCM/NoPadding KeyUpdate 2^20, ChaCha20-Poly1305 KeyUpdate 2^20\n")
    options = [f"-Djava.security.properties={limits}"]
    with running_secure_kafka(directory, jvm_options=options) as running, register_cluster(running.cluster):
        yield running


@pytest.mark.parametrize("versions", [["TLSv1.3"], ["TLSv1.2"]])
def test_a_broker_that_asks_for_new_keys(
    secure_kafka: SecureKafka, make_producer: Make, settings_for: SettingsFor, runtime_dir: Path, versions: list[str]
) -> None:
    """Requests are large and several are on the way, so that the socket is full when the broker asks."""
    topic = secure_kafka.topic_for("User:ANONYMOUS")
    settings = settings_for("SSL", ssl_enabled_protocols=versions, max_request_size=4 << 20, buffer_memory=64 << 20)
    producer = make_producer(**settings, enable_idempotence=False)
    values = [b"%08d" % number + os.urandom(16) * (VALUE_BYTES // 16) for number in range(COUNT)]
    futures = [producer.send(topic, value) for value in values]
    offsets = [future.result(60).offset for future in futures]
    assert offsets == list(range(COUNT))
    assert [value[:8] for value in secure_kafka.read(topic, COUNT).value] == [value[:8] for value in values]
    assert status()[0]["totals"]["retries"] == 0
    with contextlib.suppress(StopIteration):
        log = next(runtime_dir.glob("*.log")).read_text()
        assert log.count("connected to broker") == 1 and "TLS failed" not in log
