"""Tests the choice of the broker for a request that any broker can answer."""

from dataclasses import dataclass

import pytest

from cyproducer.cluster.metadata import ClusterMetadata
from cyproducer.protocol.versions import ApiKey
from cyproducer.sender.brokers.broker import NOTHING_DUE_MS, Link
from cyproducer.sender.brokers.node_choice import BUSY_WAIT_MS, LOOKUP_WAIT_MS, NodeChoice

NOW_MS = 1_000_000
DRAWS = 200


@dataclass
class Connection:
    """The state of a connection, as the loop knows it."""

    state: str = "ready"
    in_flight: int = 0
    free: bool = True
    throttled_ms: int = 0


class Loop:
    """The methods of the loop that the choice uses."""

    def __init__(self, connections: dict[int, Connection]) -> None:
        self.connections = connections

    def connection_state(self, index: int) -> tuple[str, int]:
        return self.connections[index].state, self.connections[index].in_flight

    def throttled_ms(self, index: int) -> int:
        return self.connections[index].throttled_ms

    def takes_requests(self, index: int) -> bool:
        return self.connections[index].free


class Cluster:
    """Brokers 1, 2, ... with these connections, all of them in the metadata."""

    def __init__(self, *connections: Connection) -> None:
        self.metadata = ClusterMetadata([("bootstrap", 9092)])
        self.metadata.brokers = dict.fromkeys(range(1, len(connections) + 1), ("host", 9092, None))
        self.links = {number: Link(number, number, "host", 9092) for number in self.metadata.brokers}
        for link, connection in zip(self.links.values(), connections, strict=True):
            if connection.state == "ready":
                link.versions = {ApiKey.METADATA: 12}
        self.choice = NodeChoice(self.metadata, self.links, Loop(dict(enumerate(connections, 1))))

    def ready(self) -> set[int | None]:
        return {link and link.broker_id for link, _ in (self.choice.ready(ApiKey.METADATA) for _ in range(DRAWS))}

    def to_connect(self) -> set[int | None]:
        return {link and link.broker_id for _, link in (self.choice.to_connect(NOW_MS) for _ in range(DRAWS))}


def closed() -> Connection:
    return Connection("closed")


def test_the_fewest_requests_in_flight_win():
    assert Cluster(Connection(in_flight=2), Connection(in_flight=1), Connection(in_flight=3)).ready() == {2}


def test_equally_loaded_brokers_are_drawn():
    assert Cluster(Connection(), Connection(), Connection(in_flight=1)).ready() == {1, 2}


def test_brokers_that_are_passed_over_are_not_chosen():
    cluster = Cluster(Connection(), Connection(in_flight=4), Connection(in_flight=5, free=False))
    chosen = {cluster.choice.ready(ApiKey.METADATA, without={1}) for _ in range(DRAWS)}
    assert chosen == {(cluster.links[2], cluster.links[3])}
    assert cluster.choice.ready(ApiKey.METADATA, without={1, 2, 3}) == (None, None)


def test_a_broker_that_has_left_the_metadata_is_not_chosen():
    cluster = Cluster(Connection(), Connection(in_flight=4))
    del cluster.metadata.brokers[1]
    assert cluster.ready() == {2}
    cluster = Cluster(closed(), closed())
    del cluster.metadata.brokers[1]
    assert cluster.to_connect() == {2}


@pytest.mark.parametrize("state", [Connection(throttled_ms=5), Connection("connecting"), Connection("negotiating")])
def test_brokers_that_take_nothing_now_are_not_chosen(state):
    assert Cluster(state, Connection(in_flight=4)).ready() == {2}
    assert Cluster(state).ready() == {None}


def test_a_broker_without_the_api_is_not_chosen():
    cluster = Cluster(Connection(), Connection(in_flight=4))
    assert not cluster.choice.knows(ApiKey.INIT_PRODUCER_ID)
    cluster.links[2].versions = {ApiKey.METADATA: 12, ApiKey.INIT_PRODUCER_ID: 4}
    assert cluster.choice.knows(ApiKey.INIT_PRODUCER_ID)
    free, _ = cluster.choice.ready(ApiKey.INIT_PRODUCER_ID)
    assert free is cluster.links[2]


def test_a_broker_without_room_is_the_second_choice():
    cluster = Cluster(Connection(in_flight=5, free=False), Connection(in_flight=7, free=False), closed())
    free, busy = cluster.choice.ready(ApiKey.METADATA)
    assert free is None
    assert busy is cluster.links[1]
    assert cluster.choice.any_other(NOW_MS)
    assert cluster.to_connect() == {3}
    cluster.links[3].retry_at_ms = NOW_MS + 1
    assert not cluster.choice.any_other(NOW_MS)
    due_ms, _ = cluster.choice.to_connect(NOW_MS)
    assert due_ms == BUSY_WAIT_MS


@pytest.mark.parametrize("state", ["connecting", "negotiating"])
def test_a_connection_that_is_being_made_is_waited_for(state):
    cluster = Cluster(Connection(state), closed())
    assert cluster.choice.any_other(NOW_MS)
    assert cluster.choice.to_connect(NOW_MS) == (NOTHING_DUE_MS, None)


def test_the_last_attempt_that_is_the_longest_ago_wins():
    cluster = Cluster(closed(), closed(), closed())
    assert cluster.to_connect() == {1, 2, 3}
    for number, attempted_ms in ((1, 300), (2, 100), (3, 200)):
        cluster.links[number].attempted_ms = attempted_ms
    assert cluster.to_connect() == {2}
    cluster.links[2].retry_at_ms = NOW_MS + 1
    assert cluster.to_connect() == {3}


def test_a_name_that_is_looked_up_is_waited_for_a_second():
    cluster = Cluster(closed(), closed())
    cluster.links[1].resolving, cluster.links[1].resolving_since_ms = True, NOW_MS - 400
    assert cluster.choice.any_other(NOW_MS)
    assert cluster.choice.to_connect(NOW_MS) == (LOOKUP_WAIT_MS - 400, None)
    cluster.links[1].resolving_since_ms = NOW_MS - LOOKUP_WAIT_MS
    assert cluster.to_connect() == {2}
    cluster.links[2].resolving, cluster.links[2].resolving_since_ms = True, NOW_MS - LOOKUP_WAIT_MS
    assert not cluster.choice.any_other(NOW_MS)
    assert cluster.to_connect() == {None}
