"""A scripted broker with partitions that are slow to acknowledge, and a rig that sends to them."""

import random
import socket
import time
from collections import deque

from kfake.scripted_broker import Fault, ScriptedBroker

from support.fault_rig import Rig
from support.front_end import run_until

WARM_UP = 12  # answers: more than the sender needs to know how long a broker usually takes
FIRST, SLOW = 0, 1


class SlowBroker(ScriptedBroker):
    """Handles the requests of a connection one after another; a request takes as long as its slowest partition.

    `slow`: seconds by partition. `every`: seconds (from, to) of each request. `arrived`: (connection, partitions) of
    each Produce request; the connections to each node that have carried a batch count from 0.
    """

    def __init__(self, **settings) -> None:
        super().__init__(**settings)
        self.slow: dict[int, float] = {}
        self.every = (0.0, 0.0)
        self.arrived: deque[tuple[int, list[int]]] = deque(maxlen=64)
        self.refuses_more = False
        self.carriers: list = []
        self._delay = 0.0

    def _accept(self, listener: socket.socket, node: int) -> None:
        if not self.refuses_more:
            super()._accept(listener, node)
            return
        sock, _ = listener.accept()
        sock.close()

    def _produce(self, connection, request) -> bool:
        partitions = [item["index"] for topic in request.body["topic_data"] for item in topic["partition_data"]]
        if connection not in self.carriers:
            self.carriers.append(connection)
        beside = [carrier for carrier in self.carriers if carrier.node == connection.node]
        self.arrived.append((beside.index(connection), partitions))
        took = max(random.uniform(*self.every), *(self.slow.get(partition, 0.0) for partition in partitions))
        self._delay = max(connection.silent_until - time.monotonic(), 0.0) + took if took else 0.0
        return super()._produce(connection, request)

    def take_fault(self, node: int) -> Fault:
        fault = super().take_fault(node)
        fault.delay = fault.delay or self._delay
        return fault

    def recover(self) -> None:
        """Answer at once what is unanswered, and everything from now on."""
        with self.lock:
            self.slow = {}
            self.every = (0.0, 0.0)
            for connection in self._connections:
                connection.silent_until = 0.0
                connection.output = deque((0.0, data) for _, data in connection.output)

    def drop(self, number: int, node: int = 1) -> None:
        """Close one of the connections that have carried batches, without responses to its requests."""
        with self.lock:
            connection = [carrier for carrier in self.carriers if carrier.node == node][number]
            connection.output = deque([(0.0, None)])

    def connection_of(self, partition: int) -> int:
        """Return on which connection a batch of the partition came last."""
        with self.lock:
            return next(number for number, partitions in reversed(self.arrived) if partition in partitions)


def warm_up(rig: Rig, partitions: int) -> None:
    """Let the sender learn how long the broker usually takes."""
    for _ in range(WARM_UP):
        one_round(rig, range(partitions))


def one_round(rig: Rig, partitions, index: int = 0) -> None:
    """Send a batch to each partition and wait for all results."""
    for partition in partitions:
        rig.send(index, partition, records=1)
    rig.settle(30)


def until_apart(rig: Rig, slow: int, others, seconds: float = 0.15) -> None:
    """Make a partition slow until its batches go by the slow connection, and those of the others by the first one."""
    rig.broker.slow = {slow: seconds}

    def apart() -> bool:
        one_round(rig, [slow, *others])
        return rig.broker.connection_of(slow) == SLOW and all(rig.broker.connection_of(p) == FIRST for p in others)

    run_until(rig.engine, lambda: apart() and apart(), 60)


def acknowledged(rig: Rig, index: int, slot: int) -> bool:
    rig.listen()
    return slot in rig.heard[index]
