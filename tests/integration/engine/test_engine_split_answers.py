"""Tests answers that come in two pieces: the engine waits for the rest, wherever the answer was split."""

import math

import pytest
from kfake.codes import API_VERSIONS, METADATA, PRODUCE
from kfake.scripted_broker import ScriptedBroker
from support.fault_rig import Rig
from support.front_end import run_until


class HoldingBroker(ScriptedBroker):
    """A broker that holds back the rest of one answer until the test lets it go.

    hold(): the next answer to the API is split after so many bytes. `held`: its first piece was sent.
    """

    def __init__(self) -> None:
        super().__init__(partitions=1, nodes=1)
        self.api = self.at = -1
        self.held = False
        self.size = 0  # of the answer, with its length
        self._asked_api = -1
        self._connection = None

    def _handle(self, connection, frame):
        self._asked_api = int.from_bytes(frame[:2], "big")
        return super()._handle(connection, frame)

    def _put(self, connection, data, delay=0.0):
        if data is None or self._asked_api != self.api:
            super()._put(connection, data, delay)
            return
        super()._put(connection, data[: self.at])
        connection.output.append((math.inf, data[self.at :]))
        self.api, self.size, self._connection = -1, len(data), connection

    def _write(self, connection):
        super()._write(connection)
        if connection is self._connection and len(connection.output) == 1:
            self.held = True

    def hold(self, api: int, at: int) -> None:
        with self.lock:
            self.api, self.at, self.held = api, at, False

    def let_go(self) -> None:
        with self.lock:
            (_, rest) = self._connection.output.popleft()
            self._connection.output.append((0.0, rest))
            self._connection = None


def at_each_byte(rig, broker, api, ask, is_done) -> int:
    """Ask again and again, with the answer split one byte later each time. Return the number of positions."""
    at = 1
    while True:
        broker.hold(api, at)
        ask()
        run_until(rig.engine, lambda: broker.held)
        for _ in range(2):
            rig.engine.run(1)
        assert not is_done(), f"an answer was taken after {at} of {broker.size} bytes"
        broker.let_go()
        run_until(rig.engine, is_done)
        at += 1
        if at == broker.size:
            return at - 1


@pytest.fixture
def broker():
    with HoldingBroker() as broker:
        yield broker
    assert broker.complaints == []


@pytest.fixture
def rig(broker):
    with Rig(broker, request_timeout_ms=60_000, metadata_max_age_ms=600_000) as rig:
        rig.begin(slots=1024)
        yield rig


def test_an_answer_to_a_batch(rig, broker):
    connections, requests = broker.accepted, broker.produce_requests

    def is_done():
        rig.listen()
        return len(rig.heard[0]) == len(rig.sent[0])

    positions = at_each_byte(rig, broker, PRODUCE, lambda: rig.send(0, 0), is_done)
    assert positions > 40
    rig.finish()
    assert rig.errors(0) == [0] * (positions + 1)
    assert broker.accepted == connections
    assert broker.produce_requests == requests + positions


def test_an_answer_with_metadata(rig, broker):
    """Each one has a newer epoch of the leader."""
    connections, requests = broker.accepted, broker.metadata_requests
    metadata = rig.engine._cluster

    def ask():
        broker.partitions[0].leader_epoch += 1
        metadata.request_update()

    def is_done():
        return metadata.topics["t"].partitions[0].leader_epoch == broker.partitions[0].leader_epoch

    positions = at_each_byte(rig, broker, METADATA, ask, is_done)
    assert positions > 80
    assert broker.accepted == connections
    assert broker.metadata_requests == requests + positions


def test_an_answer_with_the_versions(rig, broker):
    """Each one is the first answer of another connection."""
    connections = broker.accepted
    link = rig.engine._connections.get(1)

    def ask():
        broker.drop_connections()
        run_until(rig.engine, lambda: not link.takes_requests)
        rig.send(0, 0)

    def is_done():
        rig.listen()
        return link.takes_requests and len(rig.heard[0]) == len(rig.sent[0])

    positions = at_each_byte(rig, broker, API_VERSIONS, ask, is_done)
    assert positions > 50
    rig.finish()
    assert broker.accepted == connections + positions
