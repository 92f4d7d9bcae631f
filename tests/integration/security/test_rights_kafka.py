"""Tests rights that are missing, withdrawn under load and given later, on a real Kafka.

Only the records and transactions that lack a right fail, and they fail at once. As soon as the right is given, the same
sender does the rest: nothing is restarted.
"""

import itertools
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from devkafka.node import Rule
from support.process import wait_until
from support.secure_kafka import SecureKafka
from support.secure_settings import SettingsFor
from support.streams import streams
from support.supervised import the_sender

from cyproducer import KafkaProducer, errors
from cyproducer.observe.status import status
from cyproducer.observe.transactions import TransactionQueryError, max_timeout
from cyproducer.producer.shared_transaction import sender_of

Make = Callable[..., KafkaProducer]
NUMBERS = itertools.count(1)


class User:
    """A user that only one test has, known by its certificate. `settings` are those of its producers."""

    def __init__(self, kafka: SecureKafka, settings_for: SettingsFor) -> None:
        self._access = kafka.cluster.access
        identity = kafka.keys.client(f"rights-{next(NUMBERS)}")
        self.principal = f"User:CN={identity.name}"
        self.settings = settings_for("MTLS", ssl_certfile=str(identity.keystore), sender_idle_timeout_ms=200)

    def give(self, resource: str, name: str, *operations: str) -> None:
        self._access.add(self._rules(resource, name, operations))

    def withdraw(self, resource: str, name: str, *operations: str) -> None:
        self._access.withdraw(self._rules(resource, name, operations))

    def _rules(self, resource: str, name: str, operations: tuple[str, ...]) -> list[Rule]:
        return [Rule(self.principal, operation, resource, name) for operation in operations]


@pytest.fixture
def user(secure_kafka: SecureKafka, settings_for: SettingsFor) -> User:
    return User(secure_kafka, settings_for)


def sender_pids() -> set[int]:
    return {each["sender_pid"] for each in status()}


def test_a_user_that_may_write_nothing(
    secure_kafka: SecureKafka, make_producer: Make, settings_for: SettingsFor, user: User
) -> None:
    """Kafka refuses a producer id. It gives one to a user that may write a topic, or has IDEMPOTENT_WRITE."""
    topic = secure_kafka.new_topic()
    user.give("TOPIC", topic, "READ")
    user.give("GROUP", "group", "READ")
    user.give("TRANSACTIONAL_ID", "reader", "WRITE", "DESCRIBE")
    # With such a delivery_timeout_ms, the error of a timeout would come too late.
    producer = make_producer(**user.settings, delivery_timeout_ms=600_000)
    refused = [producer.send(topic, b"refused") for _ in range(3)]
    assert {type(future.exception(60)) for future in refused} == {errors.ClusterAuthorizationFailedError}
    before = sender_pids()
    # This one is in the same sender, and does not need the right: a transaction has its own producer id.
    transactional = make_producer(**user.settings, transactional_id="reader")
    transactional.init_transactions()
    with transactional.transaction():
        transactional.send_offsets_to_transaction({(topic, 0): 0}, "group")
    alice = make_producer(**settings_for("SASL_SSL", "PLAIN"))
    alice.send(secure_kafka.topic_for("User:alice"), b"of another user").result(30)

    user.give("CLUSTER", "kafka-cluster", "IDEMPOTENT_WRITE")
    assert type(producer.send(topic, b"refused").exception(60)) is errors.TopicAuthorizationFailedError
    user.give("TOPIC", topic, "WRITE")
    assert producer.send(topic, b"allowed").result(60).offset == 0
    assert secure_kafka.read(topic, 1).value == [b"allowed"]
    assert before < sender_pids()  # that of alice is the other one


def test_a_transactional_id_without_a_right(secure_kafka: SecureKafka, make_producer: Make, user: User) -> None:
    """init_transactions() raises at once. The other producers of the sender go on, also a transaction that is open."""
    topic = secure_kafka.topic_for(user.principal)
    allowed, refused = f"{topic}-allowed", f"{topic}-refused"
    user.give("TRANSACTIONAL_ID", allowed, "WRITE", "DESCRIBE")
    idempotent = make_producer(**user.settings)
    other = make_producer(**user.settings, transactional_id=allowed)
    other.init_transactions()
    other.begin_transaction()
    before = sender_pids()

    def others_go_on() -> None:
        idempotent.send(topic, b"idempotent").result(30)
        other.send(topic, b"other").result(30)

    without = make_producer(**user.settings, transactional_id=refused)
    with pytest.raises(errors.TransactionalIdAuthorizationFailedError, match="close this producer"):
        without.init_transactions()
    others_go_on()
    user.give("TRANSACTIONAL_ID", refused, "DESCRIBE")
    with_one = make_producer(**user.settings, transactional_id=refused)
    for _ in range(2):
        with pytest.raises(errors.TransactionalIdAuthorizationFailedError, match="can be called again"):
            with_one.init_transactions()
    others_go_on()
    user.give("TRANSACTIONAL_ID", refused, "WRITE")
    for producer in (with_one, make_producer(**user.settings, transactional_id=refused)):
        producer.init_transactions()
        with producer.transaction():
            producer.send(topic, b"allowed")
    others_go_on()
    other.commit_transaction()
    assert sender_pids() == before
    assert sorted(secure_kafka.read(topic, 8).value) == [b"allowed"] * 2 + [b"idempotent"] * 3 + [b"other"] * 3


def test_the_longest_time_of_a_transaction_without_a_right(make_producer: Make, user: User) -> None:
    user.give("TRANSACTIONAL_ID", "longest", "WRITE", "DESCRIBE")
    producer = make_producer(**user.settings, transactional_id="longest")
    producer.init_transactions()
    address = sender_of(producer).address
    with pytest.raises(TransactionQueryError, match="no right to DESCRIBE_CONFIGS of the cluster"):
        max_timeout(address, "longest")
    user.give("CLUSTER", "kafka-cluster", "DESCRIBE_CONFIGS")
    assert max_timeout(address, "longest") == 900_000


@pytest.mark.parametrize(
    ("resource", "error"),
    [("GROUP", errors.GroupAuthorizationFailedError), ("TOPIC", errors.TopicAuthorizationFailedError)],
)
def test_offsets_without_a_right(
    secure_kafka: SecureKafka, make_producer: Make, user: User, resource: str, error: type[errors.KafkaError]
) -> None:
    """The transaction can only be aborted. The next one succeeds after the right is given."""
    topic, source = secure_kafka.topic_for(user.principal), secure_kafka.topic_for(user.principal)
    user.withdraw("GROUP", "*", "READ")
    user.withdraw("TOPIC", source, "READ")
    rights = {"GROUP": ("GROUP", "group", "READ"), "TOPIC": ("TOPIC", source, "READ")}
    missing = rights.pop(resource)
    user.give(*rights.popitem()[1])
    user.give("TRANSACTIONAL_ID", topic, "WRITE", "DESCRIBE")
    producer = make_producer(**user.settings, transactional_id=topic)
    producer.init_transactions()
    producer.begin_transaction()
    producer.send(topic, b"aborted").result(30)
    with pytest.raises(error, match=r"call abort_transaction\(\)"):
        producer.send_offsets_to_transaction({(source, 0): 1}, "group")
    producer.abort_transaction()
    user.give(*missing)
    with producer.transaction():
        producer.send(topic, b"committed")
        producer.send_offsets_to_transaction({(source, 0): 1}, "group")
    assert secure_kafka.read(topic, 1).value == [b"committed"]


def test_a_topic_right_that_ends_in_a_transaction(secure_kafka: SecureKafka, make_producer: Make, user: User) -> None:
    topic = secure_kafka.topic_for(user.principal)
    user.give("TRANSACTIONAL_ID", topic, "WRITE", "DESCRIBE")
    producer = make_producer(**user.settings, transactional_id=topic)
    producer.init_transactions()
    producer.begin_transaction()
    producer.send(topic, b"aborted").result(30)
    user.withdraw("TOPIC", topic, "WRITE")
    producer.send(topic, b"refused")
    with pytest.raises(errors.TopicAuthorizationFailedError, match=r"call abort_transaction\(\)"):
        producer.commit_transaction()
    producer.abort_transaction()
    user.give("TOPIC", topic, "WRITE")
    with producer.transaction():
        producer.send(topic, b"committed")
    assert secure_kafka.read(topic, 1).value == [b"committed"]


class Numbers:
    """Sends numbers to a topic in a thread until the end of the block. `failed[n]` tells the outcome of number n."""

    def __init__(self, producer: KafkaProducer, topic: str) -> None:
        self._producer, self._topic = producer, topic
        self._outcomes: list[Any] = []  # futures, and the errors of send()
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._send)

    def __enter__(self) -> "Numbers":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        self._thread.join()

    def _send(self) -> None:
        while not self._ends.is_set():
            try:
                self._outcomes.append(self._producer.send(self._topic, b"%d" % len(self._outcomes)))
            except errors.KafkaError as error:
                self._outcomes.append(error)
            time.sleep(0.001)

    def error(self, number: int) -> BaseException | None:
        outcome = self._outcomes[number]
        return outcome if isinstance(outcome, errors.KafkaError) else outcome.exception(60)

    def await_next(self, succeeds: bool) -> None:
        """Wait until a record that is sent from now on has this outcome."""

        def come() -> bool:
            seen = len(self._outcomes)
            return seen > first and (self.error(seen - 1) is None) == succeeds

        first = len(self._outcomes)
        wait_until(come, 30, f"a record with succeeds={succeeds}")

    def check(self, kafka: SecureKafka) -> list[type]:
        """Check that the topic has the records that have succeeded, and no other. Return the kinds of outcomes."""
        found = [self.error(number) for number in range(len(self._outcomes))]
        written = [number for number, error in enumerate(found) if error is None]
        assert [self._outcomes[number].result(1).offset for number in written] == list(range(len(written)))
        assert kafka.read(self._topic, len(written)).value == [b"%d" % number for number in written]
        return [kind for kind, _ in itertools.groupby(map(type, found))]


def test_a_topic_right_that_is_withdrawn_under_load(
    secure_kafka: SecureKafka, make_producer: Make, user: User, tmp_path: Path
) -> None:
    """Only the records for this topic fail, at once, until the right is given back. Their neighbours do not notice."""
    topic, other = secure_kafka.topic_for(user.principal), secure_kafka.topic_for(user.principal, partitions=2)
    producer = make_producer(**user.settings, linger_ms=1, delivery_timeout_ms=600_000)
    with (
        streams(tmp_path, other, ["send", "array"], **user.settings) as neighbours,
        Numbers(producer, topic) as numbers,
    ):
        neighbours.more()
        before = sender_pids()
        for operations in (("WRITE",), ("WRITE", "READ")):  # READ includes DESCRIBE
            neighbours.more()
            numbers.await_next(succeeds=True)
            user.withdraw("TOPIC", topic, *operations)
            numbers.await_next(succeeds=False)
            neighbours.more()
            user.give("TOPIC", topic, *operations)
        numbers.await_next(succeeds=True)
        assert sender_pids() == before
        assert len(the_sender()["front_ends"]) == 3
        assert {row["topic"] for row in the_sender()["ledger"]} == {topic}
        neighbours.finish()
    neighbours.check(secure_kafka.cluster.bootstrap_servers, other)
    kinds = numbers.check(secure_kafka)
    assert kinds == [type(None), errors.TopicAuthorizationFailedError] * 2 + [type(None)]
