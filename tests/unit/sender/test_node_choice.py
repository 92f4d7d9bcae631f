"""Tests the choice of the broker for a request that any broker can answer."""

import logging
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest

from cyproducer.config.settings import Settings
from cyproducer.protocol.kafka_messages import ApiKey
from cyproducer.sender.cluster.cluster_metadata import ClusterMetadata
from cyproducer.sender.cluster.connection import Connection, State
from cyproducer.sender.cluster.connections import BUSY_WAIT_MS, LOOKUP_WAIT_MS, Connections
from cyproducer.sender.cluster.finalized_features import FinalizedFeatures
from cyproducer.sender.cluster.report import Report
from cyproducer.sender.system.tasks import NOTHING_DUE_MS, Tasks

NOW_MS = 1_000_000
DRAWS = 200


@dataclass
class Node:
    """The state of a connection, as the loop knows it."""

    state: str = "ready"
    in_flight: int = 0
    free: bool = True
    throttled_ms: int = 0


class Loop:
    """The methods of the loop that the choice uses. The index of a node is the id of its broker."""

    def __init__(self, nodes: dict[int, Node]) -> None:
        self.nodes = nodes

    def add_node(self, broker_id: int) -> int:
        return broker_id

    def connection_state(self, index: int) -> tuple[str, int]:
        return self.nodes[index].state, self.nodes[index].in_flight

    def throttled_ms(self, index: int) -> int:
        return self.nodes[index].throttled_ms

    def can_send_request(self, index: int) -> bool:
        return self.nodes[index].free


class Cluster:
    """Brokers 1, 2, ... with these connections, all of them in the metadata."""

    def __init__(self, *nodes: Node) -> None:
        self.metadata = ClusterMetadata([("bootstrap", 9092)])
        self.metadata.brokers = dict.fromkeys(range(1, len(nodes) + 1), ("host", 9092, None))
        loop: Any = Loop(dict(enumerate(nodes, 1)))
        settings = Settings.parse(bootstrap_servers="bootstrap:9092").sender_settings()
        setup: Any = SimpleNamespace(settings=settings, log=logging.getLogger("cyproducer.sender"))
        tasks = Tasks(NOW_MS, setup.log)
        self.choice = Connections(
            loop,
            SimpleNamespace(),  # type: ignore[arg-type]
            tasks,
            setup,
            self.metadata,
            FinalizedFeatures(),
            Report(self.metadata),
        )
        self.choice.update()
        for number, node in enumerate(nodes, 1):
            states = {"closed": State.CLOSED, "connecting": State.CONNECTING, "negotiating": State.VERSIONS}
            self.of(number)._state = states.get(node.state, State.READY)
            if node.state == "ready":
                self.of(number)._versions = {ApiKey.METADATA: 12}

    def of(self, number: int) -> Connection:
        connection = self.choice.get(number)
        assert connection is not None
        return connection

    def ready(self) -> set[int | None]:
        found = (self.choice.ready(ApiKey.METADATA)[0] for _ in range(DRAWS))
        return {each and each.broker.id for each in found}

    def to_connect(self) -> set[int | None]:
        return {each and each.broker.id for _, each in (self.choice.to_connect() for _ in range(DRAWS))}


def closed() -> Node:
    return Node("closed")


def test_the_fewest_requests_in_flight_win():
    assert Cluster(Node(in_flight=2), Node(in_flight=1), Node(in_flight=3)).ready() == {2}


def test_equally_loaded_brokers_are_drawn():
    assert Cluster(Node(), Node(), Node(in_flight=1)).ready() == {1, 2}


def test_brokers_that_are_passed_over_are_not_chosen():
    cluster = Cluster(Node(), Node(in_flight=4), Node(in_flight=5, free=False))
    chosen = {cluster.choice.ready(ApiKey.METADATA, without={1}) for _ in range(DRAWS)}
    assert chosen == {(cluster.of(2), cluster.of(3))}
    assert cluster.choice.ready(ApiKey.METADATA, without={1, 2, 3}) == (None, None)


def test_a_broker_that_has_left_the_metadata_is_not_chosen():
    cluster = Cluster(Node(), Node(in_flight=4))
    del cluster.metadata.brokers[1]
    assert cluster.ready() == {2}
    cluster = Cluster(closed(), closed())
    del cluster.metadata.brokers[1]
    assert cluster.to_connect() == {2}


@pytest.mark.parametrize("state", [Node(throttled_ms=5), Node("connecting"), Node("negotiating")])
def test_brokers_that_take_nothing_now_are_not_chosen(state):
    assert Cluster(state, Node(in_flight=4)).ready() == {2}
    assert Cluster(state).ready() == {None}


def test_a_broker_without_the_api_is_not_chosen():
    cluster = Cluster(Node(), Node(in_flight=4))
    assert not cluster.choice.knows(ApiKey.INIT_PRODUCER_ID)
    cluster.of(2)._versions = {ApiKey.METADATA: 12, ApiKey.INIT_PRODUCER_ID: 4}
    assert cluster.choice.knows(ApiKey.INIT_PRODUCER_ID)
    free, _ = cluster.choice.ready(ApiKey.INIT_PRODUCER_ID)
    assert free is cluster.of(2)


def test_a_broker_without_room_is_the_second_choice():
    cluster = Cluster(Node(in_flight=5, free=False), Node(in_flight=7, free=False), closed())
    free, busy = cluster.choice.ready(ApiKey.METADATA)
    assert free is None
    assert busy is cluster.of(1)
    assert cluster.choice.any_other()
    assert cluster.to_connect() == {3}
    cluster.of(3).broker.retry_at_ms = NOW_MS + 1
    assert not cluster.choice.any_other()
    due_ms, _ = cluster.choice.to_connect()
    assert due_ms == BUSY_WAIT_MS


@pytest.mark.parametrize("state", ["connecting", "negotiating"])
def test_a_connection_that_is_being_made_is_waited_for(state):
    cluster = Cluster(Node(state), closed())
    assert cluster.choice.any_other()
    assert cluster.choice.to_connect() == (NOTHING_DUE_MS, None)


def test_the_last_attempt_that_is_the_longest_ago_wins():
    cluster = Cluster(closed(), closed(), closed())
    assert cluster.to_connect() == {1, 2, 3}
    for number, attempted_ms in ((1, 300), (2, 100), (3, 200)):
        cluster.of(number).broker.attempted_ms = attempted_ms
    assert cluster.to_connect() == {2}
    cluster.of(2).broker.retry_at_ms = NOW_MS + 1
    assert cluster.to_connect() == {3}


def test_a_name_that_is_looked_up_is_waited_for_a_second():
    cluster = Cluster(closed(), closed())
    look_up(cluster.of(1), NOW_MS - 400)
    assert cluster.choice.any_other()
    assert cluster.choice.to_connect() == (LOOKUP_WAIT_MS - 400, None)
    cluster.of(1)._resolving_since_ms = NOW_MS - LOOKUP_WAIT_MS
    assert cluster.to_connect() == {2}
    look_up(cluster.of(2), NOW_MS - LOOKUP_WAIT_MS)
    assert not cluster.choice.any_other()
    assert cluster.to_connect() == {None}


def look_up(connection: Connection, since_ms: int) -> None:
    connection._state, connection._resolving_since_ms = State.RESOLVING, since_ms


@pytest.mark.parametrize(("unreachable", "all_of_them"), [((True, True), True), ((True, False), False), ((), False)])
def test_whether_no_known_broker_is_reachable(unreachable: tuple[bool, ...], all_of_them: bool) -> None:
    cluster = Cluster(*(closed() for _ in unreachable))
    for number, value in enumerate(unreachable, 1):
        cluster.of(number).broker.unreachable = value
    assert cluster.choice.all_unreachable == all_of_them
    assert not cluster.choice.is_refused
    for number in range(1, len(unreachable) + 1):
        cluster.of(number).broker.auth_failed = True
    assert cluster.choice.is_refused == all_of_them
