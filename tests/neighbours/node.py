"""Runs as one broker of a cluster in a process: answers at once, checks nothing, and can be made sick.

Arguments: its number from 1, how many brokers there are, partitions of the topic `t`. It prints its port, and reads the
ports of all brokers in one line. Any other topic that a client asks for has three partitions. Partition i is led by
broker 1 + i % brokers. Further lines of standard input:

    hang    Produce requests are never answered
    short   they are answered with NOT_ENOUGH_REPLICAS, except for the partition of the measured front-end
    well    neither; connections with unanswered requests are closed
"""

import sys
import time
import uuid
from typing import Any

from kfake.cluster import Node, Request, Topic, View
from kfake.scripted_broker import Fault, ScriptedBroker

from cyproducer.codes import NOT_ENOUGH_REPLICAS

TOPIC = "t"
BYTES_PER_S = 100e6
WITHOUT_TOPIC_IDS = 12  # version of Produce


class OneOfMany(ScriptedBroker):
    """Broker `number` of `count`."""

    def __init__(self, number: int, count: int, partitions: int) -> None:
        super().__init__(topic=TOPIC, partitions=0, nodes=1, produce_version=WITHOUT_TOPIC_IDS)
        self.number = number
        self.count = count
        self.ends: dict[tuple[str, int], int] = {}
        self.state = "well"
        self._of_topic = self._leaders_of(partitions)
        self._of_others = self._leaders_of(3)

    def _leaders_of(self, partitions: int) -> list[tuple[int, int]]:
        return [(1 + index % self.count, 1) for index in range(partitions)]

    def view_of(self, node: int, name: str) -> View:
        return None, self._of_topic if name == TOPIC else self._of_others

    def topic_of(self, asked: dict[str, Any], has_id: bool) -> Topic:
        return self.topics.setdefault(asked["name"], Topic(asked["name"], uuid.uuid4(), []))

    def take_fault(self, node: int) -> Fault:
        return Fault(hang="lost") if self.state == "hang" else Fault()

    def result_of(self, request: Request, topic: Topic | None, item: dict[str, Any]) -> tuple[int, int, list[int]]:
        assert topic is not None
        place = topic.name, item["index"]
        if self.state == "short" and place != (TOPIC, self.count - 1):
            return NOT_ENOUGH_REPLICAS, -1, []
        time.sleep(len(item["records"]) / BYTES_PER_S)
        self.ends[place] = offset = self.ends.get(place, -1) + 1
        return 0, offset, []


def main() -> None:
    number, count, partitions = map(int, sys.argv[1:])
    with OneOfMany(number, count, partitions) as node:
        print(node.ports[0], flush=True)
        ports = [int(port) for port in sys.stdin.readline().split()]
        node.nodes = {number: Node(number, "127.0.0.1", port) for number, port in enumerate(ports, 1)}
        for line in sys.stdin:
            node.state = line.strip()
            if node.state == "well":
                node.drop_connections()


if __name__ == "__main__":
    main()
