"""Runs real Kafka nodes with TLS, SASL and an authorizer, and a token endpoint, for tests of security.

from support.secure_kafka import secure_kafka_fixture

secure_kafka = secure_kafka_fixture()
"""

import contextlib
import itertools
import os
import secrets
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Literal

import jwt
import pytest
from devkafka.jars import kafka_jars
from devkafka.keys import Identity, Keys
from devkafka.maven import find_java
from devkafka.node import SMALL_JVM, KafkaCluster, Rule
from devkafka.security import LISTENERS, Kerberos, Security

from support.consumer import ReadRecords, read_topic
from support.node_settings import FEW_THREADS
from support.token_endpoint import TokenEndpoint

__all__ = ["SecureKafka", "running_secure_kafka", "secure_kafka_fixture"]

SOURCE = Path(__file__).parent / "java" / "PlaintextAdmin.java"
ADMIN = "User:admin"
USERS = ("alice", "bob")
TOPIC_NUMBERS = itertools.count(1)
# Quotes and other special characters, which the formats of Kafka's settings must carry. No colon or comma: librdkafka
# and basic authentication would be confused by them.
SPECIAL = "\"\\'é; ="


class SecureKafka:
    """Kafka nodes with secure listeners, their keys, the passwords of the users alice and bob, and a token endpoint.

    The principal of the listener PLAINTEXT is User:admin, the only super user. So User:ANONYMOUS, a client of the
    listener SSL without a certificate, has only the rights that a test grants to it.
    """

    def __init__(self, cluster: KafkaCluster, keys: Keys, tokens: TokenEndpoint, users: dict[str, str]) -> None:
        self.cluster = cluster
        self.keys = keys
        self.tokens = tokens
        self.users = users

    def bootstrap(self, listener: str) -> str:
        """Return the addresses of a listener of all nodes: PLAINTEXT, SSL, MTLS, SASL_PLAINTEXT or SASL_SSL."""
        return self.cluster.address_of(listener)

    def new_topic(self, partitions: int = 1, replication: int = 1) -> str:
        return self.cluster.create_topic(f"secure{os.getpid()}-{next(TOPIC_NUMBERS)}", partitions, replication)

    def topic_for(self, *principals: str, partitions: int = 1, replication: int = 1) -> str:
        """Return a new topic, which the principals may write and read."""
        topic = self.new_topic(partitions, replication)
        self.grant(topic, *principals)
        return topic

    def grant(self, topic: str, *principals: str) -> None:
        """Allow the principals to write and read a topic, with any group. Both rights include DESCRIBE."""
        self.cluster.access.add(
            [
                Rule(principal, operation, resource, name)
                for principal in principals
                for operation, resource, name in (
                    ("WRITE", "TOPIC", topic),
                    ("READ", "TOPIC", topic),
                    ("READ", "GROUP", "*"),
                )
            ]
        )

    def read(self, topic: str, count: int) -> ReadRecords:
        """Read a topic over PLAINTEXT, see `read_topic`."""
        return read_topic(self.cluster.bootstrap_servers, topic, count)

    def token_with(self, **claims: Any) -> str:
        """Return a signed token of the endpoint in which these claims are added or have other values."""
        usual = self.tokens.token()
        changed = jwt.decode(usual, options={"verify_signature": False}) | claims
        header = jwt.get_unverified_header(usual)
        return jwt.encode(changed, self.tokens._key, algorithm=header["alg"], headers={"kid": header["kid"]})

    def rdkafka(
        self,
        listener: str,
        mechanism: str | None = None,
        user: str = "alice",
        *,
        password: str | None = None,
        token: str | None = None,
        identity: Identity | None = None,
        ca: Path | None = None,
        **settings: Any,
    ) -> dict[str, Any]:
        """Return settings of a confluent-kafka client.

        mechanism   of SASL
        user        of PLAIN and SCRAM
        password    of PLAIN and SCRAM; None: the correct one of alice or bob
        token       of OAUTHBEARER; None: the client gets one from the token endpoint
        identity    certificate of the client
        ca          certificate of the CA that the client trusts; None: that of the broker
        settings    other settings by their names
        """
        protocol = LISTENERS[listener]
        found: dict[str, Any] = {
            "bootstrap.servers": self.bootstrap(listener),
            "security.protocol": protocol,
            "broker.address.family": "v4",  # the nodes listen on 127.0.0.1
            "log_level": 0,
        }
        if protocol.endswith("SSL"):
            found["ssl.ca.location"] = str(ca or self.keys.ca)
        if identity is not None:
            found |= {"ssl.certificate.location": str(identity.certificate), "ssl.key.location": str(identity.key)}
            if identity.password is not None:
                found["ssl.key.password"] = identity.password
        if mechanism is not None:
            found["sasl.mechanism"] = mechanism
        if mechanism == "OAUTHBEARER":
            found |= self._oauth(token)
        elif mechanism is not None:
            found |= {"sasl.username": user, "sasl.password": self.users[user] if password is None else password}
        return found | settings

    def _oauth(self, token: str | None) -> dict[str, Any]:
        if token is not None:
            return {"oauth_cb": lambda _: (token, 2**40)}  # it expires later than the token
        return {
            "sasl.oauthbearer.method": "oidc",
            "sasl.oauthbearer.client.id": self.tokens.client_id,
            "sasl.oauthbearer.client.secret": self.tokens.client_secret,
            "sasl.oauthbearer.token.endpoint.url": self.tokens.url,
        }


@contextlib.contextmanager
def running_secure_kafka(
    directory: Path,
    nodes: int = 1,
    *,
    client_auth: Literal["none", "requested", "required"] = "requested",
    max_reauth_ms: int = 0,
    kerberos: Kerberos | None = None,
    properties: dict[str, object] | None = None,
    jvm_options: Sequence[str] = (),
) -> Iterator[SecureKafka]:
    """Run the nodes and the token endpoint. ``client_auth``, ``max_reauth_ms`` and ``kerberos`` are Security's."""
    keys = Keys(directory / "keys")
    users = {name: secrets.token_urlsafe(12) + SPECIAL for name in USERS}
    with TokenEndpoint(directory) as tokens:
        security = Security(
            keys,
            users,
            client_auth=client_auth,
            jwks_url=tokens.jwks_file.resolve().as_uri(),
            audience=tokens.audience,
            issuer=tokens.issuer,
            kerberos=kerberos,
            max_reauth_ms=max_reauth_ms,
            super_users=(ADMIN,),
        )
        ours: dict[str, object] = {
            "listener.name.plaintext.principal.builder.class": "PlaintextAdmin",
            "listener.name.controller.principal.builder.class": "PlaintextAdmin",
            # Each network thread loads changed certificates for itself, which takes time.
            **FEW_THREADS,
        }
        with KafkaCluster(
            nodes,
            directory / "kafka",
            properties=ours | (properties or {}),
            plugins=[_compiled(directory / "classes")],
            jvm_options=(*SMALL_JVM, *jvm_options),
            security=security,
        ) as cluster:
            yield SecureKafka(cluster, keys, tokens, users)
            cluster.stop(grace=0)


def secure_kafka_fixture(
    nodes: int = 1, scope: Literal["function", "module", "session"] = "module", **options: Any
) -> Any:
    """Return a pytest fixture that yields a SecureKafka. The options are those of `running_secure_kafka`.

    A test may kill or pause the nodes: they are restored for the next test.
    """

    @pytest.fixture(scope=scope)
    def secure_kafka(
        tmp_path_factory: pytest.TempPathFactory,
        register_cluster: Callable[[KafkaCluster], AbstractContextManager[None]],
    ) -> Iterator[SecureKafka]:
        """Yield Kafka nodes with TLS and SASL."""
        with running_secure_kafka(tmp_path_factory.mktemp("secure-kafka"), nodes, **options) as running:
            with register_cluster(running.cluster):
                yield running

    return secure_kafka


def _compiled(directory: Path) -> Path:
    """Compile the principal builder and return the directory of its class."""
    javac = find_java().with_name("javac")
    run = subprocess.run(
        [javac, "-cp", str(kafka_jars() / "*"), "-d", directory, SOURCE], capture_output=True, text=True, timeout=120
    )
    assert run.returncode == 0, run.stderr
    return directory
