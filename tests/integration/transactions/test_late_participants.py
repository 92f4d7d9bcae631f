"""Tests records of a participant that are late: they are sent after the owner, on another host, has aborted."""

import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import IsolationLevel, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec
from devkafka.node import KafkaCluster
from support.consumer import read_topic
from support.process import kill_senders, senders, wait_until

from cyproducer import KafkaProducer, errors
from cyproducer.observe import transactions
from cyproducer.producer.shared_transaction import participant, sender_of
from cyproducer.spark.atomic import CheckFailedError, Written, _check_log
from cyproducer.spark.owner import Owner

VERIFICATION = "transaction.partition.verification.enable"
NAME = "late"


class Hosts:
    """An owner on one host, and participants on another one: two directories for senders."""

    def __init__(self, cluster: KafkaCluster, places: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
        self.servers = cluster.bootstrap_servers
        self.topic = cluster.create_topic("t", 2, 1)
        self._places = places
        self._monkeypatch = monkeypatch
        self._settings = {
            "bootstrap_servers": [self.servers],
            "request_timeout_ms": 10_000,
            "delivery_timeout_ms": 20_000,
            "sender_idle_timeout_ms": 500,
        }
        self._open: list[Any] = []

    def owner(self) -> Owner:
        self._monkeypatch.setenv("CYPRODUCER_RUNTIME_DIR", str(self._places[0]))
        owner = Owner(NAME, self._settings, 60_000)
        owner.open()
        self._open.append(owner)
        return owner

    def participant(self, owner: Owner) -> KafkaProducer:
        self._monkeypatch.setenv("CYPRODUCER_RUNTIME_DIR", str(self._places[1]))
        made = participant(owner.participant_settings, owner.shared)
        made.partitions_for(self.topic)  # it is attached now
        self._open.append(made)
        return made

    def send(self, producer: KafkaProducer, value: bytes, partition: int = 0) -> None:
        producer.send(self.topic, value, partition=partition).result(30)

    def begun(self) -> tuple[Owner, KafkaProducer]:
        """Return an owner, and a participant that has sent a record in its transaction."""
        owner = self.owner()
        owner.begin("the first one")
        late = self.participant(owner)
        self.send(late, b"in time")
        return owner, late

    def waits(self, partition: int = 0) -> bool:
        """Return whether a reader of committed records cannot reach the end of a partition."""
        admin = AdminClient({"bootstrap.servers": self.servers, "log_level": 0})
        at = TopicPartition(self.topic, partition)
        ends = [
            admin.list_offsets({at: OffsetSpec.latest()}, isolation_level=level)[at].result(20).offset
            for level in (IsolationLevel.READ_COMMITTED, IsolationLevel.READ_UNCOMMITTED)
        ]
        return ends[0] < ends[1]

    def wait_for_end(self) -> None:
        """Wait until the end of the first transaction is in its partition. What comes before is a part of it."""
        wait_until(lambda: not self.waits(), 30, "the end of the transaction")

    def write_next(self, values: list[bytes]) -> None:
        """Write a record in another transaction of another owner. Check what is visible then."""
        owner = self.owner()
        owner.begin("the next one")
        self.send(self.participant(owner), b"next")
        owner.commit()
        assert read_topic(self.servers, self.topic, len(values)).value == values
        assert not self.waits(0)
        assert not self.waits(1)

    def close(self) -> None:
        for each in self._open:
            each.close()
        kill_senders(self._places[1])  # it stays until it knows that the last transaction is over
        wait_until(lambda: not senders(self._places[0]), 60, "the end of the owner's sender")


@pytest.fixture
def hosts(
    tmp_path: Path,
    short_tmp: Path,
    monkeypatch: pytest.MonkeyPatch,
    register_cluster: Callable[[KafkaCluster], AbstractContextManager[Any]],
) -> Iterator[Callable[..., Hosts]]:
    """Return ``hosts(version, verification=True)``, which starts a node with this transaction.version."""
    with ExitStack() as stack:

        def start(version: int, verification: bool = True) -> Hosts:
            cluster = KafkaCluster(
                1,
                tmp_path / "node",
                features={"transaction.version": version},
                properties=lambda node: {VERIFICATION: str(verification).lower()},
            )
            stack.enter_context(cluster)
            stack.enter_context(register_cluster(cluster))
            made = Hosts(cluster, [Path(tempfile.mkdtemp(dir=short_tmp)) for _ in range(2)], monkeypatch)
            stack.callback(made.close)
            return made

        yield start


@pytest.mark.parametrize("version", [pytest.param(1, marks=pytest.mark.long), 2])
def test_a_partition_of_the_transaction_takes_no_late_record(hosts: Callable[..., Hosts], version: int) -> None:
    two = hosts(version)
    owner, late = two.begun()
    owner.give_up()
    two.wait_for_end()
    with pytest.raises(errors.KafkaError):
        two.send(late, b"late")
    assert not two.waits()
    two.write_next([b"next"])


@pytest.mark.long
def test_another_partition_begins_a_transaction_that_the_next_owner_aborts(hosts: Callable[..., Hosts]) -> None:
    """Before KIP-890 the participant's sender adds the partition, and the epoch is that of the transaction before."""
    two = hosts(1)
    owner, late = two.begun()
    owner.producer.abort_transaction()
    two.wait_for_end()
    two.send(late, b"late", 1)
    assert two.waits(1)
    (found,) = transactions.describe(sender_of(owner.producer).address, [NAME])
    assert (found["state"], [list(each) for each in found["partitions"]]) == ("Ongoing", [[two.topic, 1]])
    two.write_next([b"next"])


def send_late(two: Hosts) -> None:
    """Send a record in a transaction that was aborted."""
    owner, late = two.begun()
    owner.give_up()
    two.wait_for_end()
    two.send(late, b"late")
    assert two.waits()


@pytest.mark.long
def test_without_verification_a_late_record_becomes_visible_with_the_next_commit(hosts: Callable[..., Hosts]) -> None:
    """A limit of brokers before Kafka 3.6, for which the log is checked before a commit."""
    two = hosts(1, False)
    send_late(two)
    two.write_next([b"late", b"next"])


def test_the_check_before_a_commit_finds_a_late_record_and_the_abort_removes_it(hosts: Callable[..., Hosts]) -> None:
    two = hosts(1, False)
    send_late(two)
    place = two.topic, 0
    for attempt in range(2):
        owner = two.owner()
        owner.begin("the next one")
        first = two.participant(owner).send(two.topic, b"next", partition=0).result(30).offset
        written = Written(1, 4, {place: 1}, {place: first})
        if attempt:
            _check_log(owner, written, [])
            owner.commit()
            break
        with pytest.raises(
            CheckFailedError, match=f"begins at offset {first - 1} .* first row .* {first}: a task .* late"
        ):
            _check_log(owner, written, [])
        owner.give_up()
        two.wait_for_end()
    assert read_topic(two.servers, two.topic, 1).value == [b"next"]
    assert not two.waits()
