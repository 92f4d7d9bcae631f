"""Changes the users, the rules of the authorizer and the certificates of a KafkaCluster while it runs."""

import importlib
import secrets
import socket
import ssl
import uuid
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from cyproducer.devkafka.security import LISTENERS, SCRAM_ITERATIONS, SCRAM_MECHANISMS, Security

if TYPE_CHECKING:
    from cyproducer.devkafka.node import KafkaCluster, KafkaNode

__all__ = ["Access", "Rule"]

TIMEOUT = 30.0
CLUSTER = "kafka-cluster"  # the only name of the resource CLUSTER


class Rule(NamedTuple):
    """A rule of the authorizer (an ACL).

    principal    for example ``User:alice``
    operation    a name of Kafka's AclOperation, for example WRITE
    resource     TOPIC, GROUP, TRANSACTIONAL_ID or CLUSTER
    name         of the resource, ``*`` for all of them; for CLUSTER the default
    prefixed     the rule is for all resources whose names begin with ``name``
    permission   ALLOW or DENY
    """

    principal: str
    operation: str
    resource: str
    name: str = CLUSTER
    prefixed: bool = False
    permission: str = "ALLOW"


class Access:
    """The administration of a cluster with ``security``, over the listener PLAINTEXT with confluent-kafka.

    After each call, all running nodes have applied the change; connections that exist keep their user and their
    certificates. The calls raise confluent_kafka.KafkaException if Kafka refuses them, RuntimeError if a certificate
    is not loaded, and ImportError if confluent-kafka is not installed.
    """

    def __init__(self, cluster: "KafkaCluster", security: Security) -> None:
        self._cluster = cluster
        self._security = security

    def set_scram_password(self, user: str, password: str) -> None:
        """Set the password of a user for both SCRAM mechanisms, and create the user if there is none."""
        kafka = _library()
        for mechanism in SCRAM_MECHANISMS:
            how = kafka.ScramCredentialInfo(kafka.ScramMechanism[mechanism.replace("-", "_")], SCRAM_ITERATIONS)
            change = kafka.UserScramCredentialUpsertion(user, how, password.encode())
            # Kafka takes one change of a user in a request.
            self._ask("alter_user_scram_credentials", [change])
        self._settle()

    def remove_scram_user(self, user: str) -> None:
        """Take a user's passwords for both SCRAM mechanisms away: both get a random one.

        A client sees no difference to a removed user. Nothing is removed because Kafka 4.3.1 can lose all SCRAM users
        at the next start of a node if one has been removed: ScramDelta.apply drops the whole map if the removal is the
        first change that it applies.
        """
        self.set_scram_password(user, secrets.token_urlsafe())

    def allow(
        self, principal: str, operation: str, resource: str, name: str = CLUSTER, *, prefixed: bool = False
    ) -> None:
        """Add a rule that allows an operation, see `Rule`."""
        self.add([Rule(principal, operation, resource, name, prefixed)])

    def deny(
        self, principal: str, operation: str, resource: str, name: str = CLUSTER, *, prefixed: bool = False
    ) -> None:
        """Add a rule that denies an operation, see `Rule`. It has priority over rules that allow the operation."""
        self.add([Rule(principal, operation, resource, name, prefixed, "DENY")])

    def add(self, rules: Sequence[Rule]) -> None:
        """Add several rules."""
        self._ask("create_acls", _as_kafka("AclBinding", rules))
        self._settle()

    def withdraw(self, rules: Sequence[Rule]) -> None:
        """Remove several rules. The other rules of their principals stay."""
        self._ask("delete_acls", _as_kafka("AclBindingFilter", rules))
        self._settle()

    def remove(self, principal: str) -> None:
        """Remove all rules of a principal."""
        kafka = _library()
        rules = kafka.AclBindingFilter(
            kafka.ResourceType.ANY,
            None,
            kafka.ResourcePatternType.ANY,
            principal,
            None,
            kafka.AclOperation.ANY,
            kafka.AclPermissionType.ANY,
        )
        self._ask("delete_acls", [rules])
        self._settle()

    def reload_certificates(self, number: int | None = None) -> None:
        """Make one node or all running nodes load the broker's certificate and the certificate of the CA again.

        The files are those of `Security.keys`, whose `reissue_broker` changes them.
        """
        kafka = _library()
        nodes = self._running() if number is None else [self._cluster.node(number)]
        # Kafka loads a changed file if its setting is altered, also to the value that it has.
        entries = [
            kafka.ConfigEntry(name, value, incremental_operation=kafka.AlterConfigOpType.SET)
            for name, value in self._security.stores().items()
        ]
        for node in nodes:
            resource = kafka.ConfigResource(kafka.ResourceType.BROKER, str(node.number), incremental_configs=entries)
            self._ask("incremental_alter_configs", [resource])
        # Each network thread of a listener has its own copy, so one answer with the new certificate would prove little.
        self._settle()
        for node in nodes:
            self._check_certificate(node)

    def _running(self) -> "list[KafkaNode]":
        return [node for node in self._cluster.nodes if node.pid is not None and not node.paused]

    def _ask(self, request: str, things: list[Any]) -> None:
        """Send a request of the admin client, and wait until the controller has done it."""
        admin = _library().AdminClient({"bootstrap.servers": self._cluster.bootstrap_servers, "log_level": 0})
        for future in getattr(admin, request)(things, request_timeout=TIMEOUT).values():
            future.result(TIMEOUT)

    def _settle(self) -> None:
        """Wait until all running nodes have applied what the controller has decided up to now.

        A node applies changes of the metadata in their order, one group after the other, and shows the topics of a
        group before it applies its rules and passwords. So a node that shows the second of two topics, which was
        created after the node had shown the first, has applied all that was before the first.
        """
        names = [self._cluster.create_topic(f"applied-{uuid.uuid4()}") for _ in range(2)]
        self._ask("delete_topics", names)

    def _check_certificate(self, node: "KafkaNode") -> None:
        """Raise RuntimeError if a TLS listener of a node does not present the broker's certificate."""
        wanted = ssl.PEM_cert_to_DER_cert(self._security.keys.broker.certificate.read_text())
        for listener, protocol in LISTENERS.items():
            host, _, port = self._cluster.address_of(listener, node.number).rpartition(":")
            if protocol.endswith("SSL") and _certificate_of(host, int(port)) != wanted:
                raise RuntimeError(
                    f"listener {listener} of node {node.number} does not present the certificate in "
                    f"{self._security.keys.broker.keystore}. Its log ends with:\n{node.log_tail()}"
                )


def _library() -> Any:
    """Return confluent-kafka's module of admin requests: an optional dependency, which does not export its names."""
    return importlib.import_module("confluent_kafka.admin")


def _as_kafka(kind: str, rules: Sequence[Rule]) -> list[Any]:
    """Return objects of confluent-kafka for rules. Their kind is AclBinding, or AclBindingFilter, which finds them."""
    kafka = _library()
    return [
        getattr(kafka, kind)(
            # confluent-kafka has the cluster's number under the name of a resource of other requests.
            kafka.ResourceType["BROKER" if rule.resource == "CLUSTER" else rule.resource],
            rule.name,
            kafka.ResourcePatternType["PREFIXED" if rule.prefixed else "LITERAL"],
            rule.principal,
            "*",
            kafka.AclOperation[rule.operation],
            kafka.AclPermissionType[rule.permission],
        )
        for rule in rules
    ]


def _certificate_of(host: str, port: int) -> bytes | None:
    """Return the certificate that a server presents."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False  # the certificate is compared, so it needs no verification
    context.verify_mode = ssl.CERT_NONE
    with socket.create_connection((host, port), TIMEOUT) as plain, context.wrap_socket(plain) as secure:
        return secure.getpeercert(binary_form=True)
