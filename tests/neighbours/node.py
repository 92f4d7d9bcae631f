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
from typing import Any

from support.scripted_broker import NOT_ENOUGH_REPLICAS, Fault, ScriptedBroker

TOPIC = "t"
BYTES_PER_S = 100e6


class Node(ScriptedBroker):
    """Broker `number` of `count`."""

    def __init__(self, number: int, count: int, partitions: int) -> None:
        super().__init__(topic=TOPIC, partitions=0, nodes=1, keep_values=False)
        self.number = number
        self.count = count
        self.ends: dict[tuple[str, int], int] = {}
        self.all_ports: list[int] = []
        self.state = "well"
        self._of_topic = self._leaders(partitions)
        self._of_others = self._leaders(3)

    def _leaders(self, partitions: int) -> list[dict[str, Any]]:
        return [
            {
                "error_code": 0,
                "partition_index": index,
                "leader_id": 1 + index % self.count,
                "leader_epoch": 1,
                "replica_nodes": [],
                "isr_nodes": [],
            }
            for index in range(partitions)
        ]

    def _metadata(self, body: dict[str, Any]) -> dict[str, Any]:
        brokers = [
            {"node_id": 1 + index, "host": "127.0.0.1", "port": port} for index, port in enumerate(self.all_ports)
        ]
        topics = [
            {
                "error_code": 0,
                "name": item["name"],
                "partitions": self._of_topic if item["name"] == TOPIC else self._of_others,
            }
            for item in body["topics"] or ()
        ]
        return {"brokers": brokers, "cluster_id": "neighbours", "controller_id": 1, "topics": topics}

    def _take_fault(self, node: int) -> Fault:
        return Fault(hang="lost") if self.state == "hang" else Fault()

    def _result_of(self, node: int, topic: str, item: dict[str, Any], fault: Fault) -> tuple[int, int]:
        place = topic, item["index"]
        if self.state == "short" and place != (TOPIC, self.count - 1):
            return NOT_ENOUGH_REPLICAS, -1
        time.sleep(len(item["records"]) / BYTES_PER_S)
        self.ends[place] = offset = self.ends.get(place, -1) + 1
        return 0, offset


def main() -> None:
    number, count, partitions = map(int, sys.argv[1:])
    with Node(number, count, partitions) as node:
        print(node.ports[0], flush=True)
        node.all_ports = [int(port) for port in sys.stdin.readline().split()]
        for line in sys.stdin:
            node.state = line.strip()
            if node.state == "well":
                node.drop_connections()


if __name__ == "__main__":
    main()
