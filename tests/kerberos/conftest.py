"""Defines a KDC, and Kafka nodes in its realm, for the tests in this directory."""

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from devkafka.node import KafkaCluster
from devkafka.security import Kerberos
from kdc import REALM, Kdc
from support.secure_kafka import SecureKafka, running_secure_kafka

SERVICE = "kafka/localhost"
SESSION_MS = 2500


@dataclass
class Realm:
    """A KDC and the Kafka node in its realm. The principal alice has a keytab."""

    kdc: Kdc
    kafka: SecureKafka
    keytab: Path

    def settings(self, listener: str = "SASL_PLAINTEXT", **more: Any) -> dict[str, Any]:
        """Return the settings of a KafkaProducer with the mechanism GSSAPI. `more` replaces some of them."""
        found: dict[str, Any] = {
            "bootstrap_servers": self.kafka.bootstrap(listener),
            "security_protocol": listener,
            "sasl_mechanism": "GSSAPI",
            "max_block_ms": 20_000,
        }
        if listener == "SASL_SSL":
            found["ssl_cafile"] = str(self.kafka.keys.ca)
        return found | more

    def with_keytab(self, listener: str = "SASL_PLAINTEXT", **more: Any) -> dict[str, Any]:
        """Return the settings of alice with her keytab."""
        principal = {"sasl_kerberos_principal": f"alice@{REALM}", "sasl_kerberos_keytab": str(self.keytab)}
        return self.settings(listener, **{**principal, **more})


@pytest.fixture(scope="session")
def running_realm(
    tmp_path_factory: pytest.TempPathFactory,
    register_cluster: Callable[[KafkaCluster | Kdc], AbstractContextManager[None]],
) -> Iterator[Realm]:
    """Yield a KDC with a Kafka node. A client's session is short."""
    directory = tmp_path_factory.mktemp("kerberos")
    with contextlib.ExitStack() as stack:
        kdc = stack.enter_context(contextlib.closing(Kdc(directory / "kdc")))
        kdc.start()
        stack.enter_context(register_cluster(kdc))
        for principal in (SERVICE, "alice"):
            kdc.add(principal)
        kerberos = Kerberos(f"{SERVICE}@{REALM}", kdc.keytab(SERVICE), kdc.config)
        with running_secure_kafka(directory, max_reauth_ms=SESSION_MS, kerberos=kerberos) as kafka:
            with register_cluster(kafka.cluster):
                yield Realm(kdc, kafka, kdc.keytab("alice"))


@pytest.fixture
def realm(running_realm: Realm, runtime_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Realm:
    """Return the KDC and its Kafka node. The environment of the test names the KDC, and no ticket.

    A test may stop, pause or change the KDC: it is restored for the next test.
    """
    kdc = running_realm.kdc
    monkeypatch.setenv("KRB5_CONFIG", str(kdc.config))
    monkeypatch.setenv("KRB5CCNAME", f"FILE:{kdc.directory}/no-ticket")
    return running_realm
