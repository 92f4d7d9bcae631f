"""Keeps what the brokers of a Kafka cluster know, and decides about batches by Kafka's rules.

A driver derives from Cluster. It owns the sockets, the time and the faults.
"""

import uuid
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from support.record_twin import Record

from cyproducer.codes import (
    CORRUPT_MESSAGE,
    INVALID_RECORD,
    MESSAGE_TOO_LARGE,
    NOT_LEADER_OR_FOLLOWER,
    UNKNOWN_TOPIC_OR_PARTITION,
    UNSUPPORTED_VERSION,
)
from cyproducer.protocol.codec import decode_request, encode_response
from cyproducer.protocol.schema import SUPPORTED
from kfake import answers
from kfake.codes import API_VERSIONS, FIND_COORDINATOR, METADATA, PRODUCE
from kfake.coordinator import Coordinators, Transactional
from kfake.partition_log import ChecksumError, LogBatch, Partition, parse, wrong_timestamp
from kfake.telemetry import Telemetry

View = tuple[uuid.UUID | None, list[tuple[int, int]]]
"""What a node says about a topic: its id, and of each partition the leader (-1: none) and the leader epoch."""


@dataclass(slots=True)
class Request:
    """A request that a node has got."""

    api: int
    version: int
    correlation_id: int
    body: dict[str, Any]
    node: int


class Topic:
    """A topic as the controller sees it. A topic that is created again has another id."""

    def __init__(self, name: str, topic_id: uuid.UUID, partitions: list[Partition]) -> None:
        self.name = name
        self.id = topic_id
        self.partitions = partitions
        self.exists = True


class Node:
    """One broker. `up`: it accepts connections."""

    def __init__(self, number: int, host: str, port: int) -> None:
        self.number = number
        self.host = host
        self.port = port
        self.up = True


class Cluster:
    """Nodes, topics and coordinators. `complaints` gets what a correct producer never sends.

    `answers`: the function that answers each API. `met`: how often each rule was met.
    """

    first_leader_epoch = 0

    def __init__(self) -> None:
        self.nodes: dict[int, Node] = {}
        self.topics: dict[str, Topic] = {}
        self.complaints: list[str] = []
        self.met: Counter[str] = Counter()
        self.answers = dict(answers.ANSWERS)
        self.coordinators: Coordinators | None = None  # None: ApiVersions does not contain their requests
        self.telemetry: Telemetry | None = None  # None: ApiVersions does not contain its requests
        self.versions_most = {api: SUPPORTED[api][1] for api in (PRODUCE, METADATA, FIND_COORDINATOR)}
        self.apis_left_out: set[int] = set()  # APIs that ApiVersions does not contain
        self.producer_ids = 0  # how many were requested
        self.producer_epoch = 0  # of a new producer id
        self.largest = 1 << 30  # bytes of a batch
        self.refuses: Callable[[Record], bool] | None = None  # for which records a batch is refused
        self.refusal = INVALID_RECORD  # the error code of such a batch
        self.refused = 0  # how many batches
        self.says: str | None = None  # the message of an error of a partition
        #: From Produce v10 on, NOT_LEADER_OR_FOLLOWER names this (leader, leader epoch) of the partition; None:
        #: nothing.
        self.names_leader: Callable[[Partition], tuple[int, int]] | None = None
        self.checks_timestamps = False  # of each record of a batch: slow for large ones
        self.expects_corruption = False  # a wrong CRC gets an error response but is not a complaint

    # ------------------------------------------------------------ what a driver decides

    def view_of(self, node: int, name: str) -> View | None:
        """Return what a node knows of a topic."""
        topic = self.topics.get(name)
        if topic is None or not topic.exists:
            return None
        return topic.id, [(partition.leader, partition.leader_epoch) for partition in topic.partitions]

    def error_of(self, request: Request) -> int:
        """Return the error code for a response, or for one topic or partition of it; not for one of Produce."""
        return 0

    def fault_of(self, request: Request, partition: Partition, batch: LogBatch) -> tuple[int, bool] | None:
        """Return the error code for a batch, and whether it is appended all the same; None: no fault."""
        return None

    def throttle_of(self, request: Request) -> int:
        """Return the ms for which the client must be silent."""
        return 0

    def names_bad_records(self) -> bool:
        """Return whether a refusal says which records of the batch are refused."""
        return True

    def omits(self, request: Request, index: int) -> bool:
        """Return whether the response to a Produce request lacks this partition."""
        return False

    def appended(self, partition: Partition, batch: LogBatch, acks: int) -> None:
        """Decide which replicas have a batch that was appended, or that the log has had before."""
        partition.commit()

    # ------------------------------------------------------------ topics

    def add_topic(self, name: str, topic_id: uuid.UUID, leaders: list[int]) -> None:
        """Create a topic, or create it again: then it has none of the producers of the former one."""
        forgot = name in self.topics
        self.topics[name] = Topic(name, topic_id, [])
        for leader in leaders:
            self.add_partition(name, leader, forgot)

    def add_partition(self, name: str, leader: int, forgot: bool = False) -> None:
        """Give a topic one more partition."""
        partitions = self.topics[name].partitions
        partitions.append(Partition(len(partitions), leader, self.first_leader_epoch, self.complaints, forgot))

    def topic_of(self, asked: dict[str, Any], has_id: bool) -> Topic | None:
        """Return the topic that a part of a Produce request is for."""
        if not has_id:
            return self.topics.get(asked["name"])
        return next((t for t in self.topics.values() if t.id == asked["topic_id"] and t.exists), None)

    def leads(self, node: int, topic: Topic | None, index: int) -> Partition | int:
        """Return the partition if the node leads it, else an error code."""
        if topic is None or not topic.exists or not 0 <= index < len(topic.partitions):
            return UNKNOWN_TOPIC_OR_PARTITION
        partition = topic.partitions[index]
        return partition if partition.leader == node else NOT_LEADER_OR_FOLLOWER

    def address_of(self, number: int) -> tuple[str, int]:
        node = self.nodes.get(number)
        return ("127.0.0.1", 0) if node is None else (node.host, node.port)

    def write_markers(self, found: Transactional, how: str, epoch: int) -> None:
        """End a transaction in its partitions."""
        for name, index in sorted(found.partitions):
            if self.topics[name].exists:
                self.topics[name].partitions[index].end_transaction(found.producer_id, epoch, how)

    # ------------------------------------------------------------ requests

    def decode(self, node: int, frame: bytes) -> Request | None:
        """Return the request of a frame; None after a complaint."""
        try:
            api, version, correlation_id, _, body = decode_request(frame)
        except Exception as error:
            self.complaints.append(f"undecodable request: {error}")
            return None
        return Request(api, version, correlation_id, body, node)

    def answer(self, request: Request) -> dict[str, Any] | bytes | None:
        """Return the body of the response, or its bytes; None: there is none."""
        return self.answers[request.api](self, request)

    def respond(self, request: Request) -> bytes | None:
        """Handle a request and return the response; None: there is none."""
        answer = self.answer(request)
        if not isinstance(answer, dict):
            return answer
        is_unsupported = request.api == API_VERSIONS and answer["error_code"] == UNSUPPORTED_VERSION
        answer["throttle_time_ms"] = self.throttle_of(request)
        return encode_response(request.api, 0 if is_unsupported else request.version, request.correlation_id, answer)

    # ------------------------------------------------------------ batches

    def result_of(self, request: Request, topic: Topic | None, item: dict[str, Any]) -> tuple[int, int, list[int]]:
        """Append a batch. Return the error code, the offset, and which of its records are refused."""
        partition = self.leads(request.node, topic, item["index"])
        if isinstance(partition, int):
            return partition, -1, []
        try:
            batch = parse(item["records"])
        except ValueError as error:
            if not (self.expects_corruption and isinstance(error, ChecksumError)):
                self.complaints.append(str(error))
            return CORRUPT_MESSAGE, -1, []
        assert topic is not None
        code, offset = self._check_transaction(request, topic.name, partition, batch), -1
        if not code:
            code, offset = self._append(request, partition, batch, item["records"])
        return code, -1 if code else offset, self._bad_records(batch) if code == self.refusal else []

    def _bad_records(self, batch: LogBatch) -> list[int]:
        return [index for index, record in enumerate(batch.records) if self.refuses(record)] if self.refuses else []

    def _check_transaction(self, request: Request, name: str, partition: Partition, batch: LogBatch) -> int:
        """Return the error code of a batch that belongs to no open transaction, or to another one."""
        transactional_id = request.body["transactional_id"]
        if batch.transactional != (transactional_id is not None):
            self.complaints.append(
                f"a batch with transactional {batch.transactional} in a request of {transactional_id}"
            )
        if not batch.transactional or self.coordinators is None or partition.is_in_transaction(batch):
            return 0
        key = name, partition.index
        code = self.coordinators.transactions.verify(
            transactional_id, batch.producer_id, batch.epoch, request.version, key
        )
        self.met[f"refused by the coordinator {code}"] += code != 0
        return code

    def _append(self, request: Request, partition: Partition, batch: LogBatch, records: bytes) -> tuple[int, int]:
        """Append a batch: first come the leader's errors, then the limits, then the records, then the sequence."""
        code, is_appended = self.fault_of(request, partition, batch) or (0, True)
        if not is_appended:
            return code, -1
        if len(records) > self.largest or self._bad_records(batch):
            self.refused += 1
            return MESSAGE_TOO_LARGE if len(records) > self.largest else self.refusal, -1
        self.complaints += wrong_timestamp(records, batch) if self.checks_timestamps else []
        refused, offset = partition.append(batch)
        if refused:
            self.met[f"refused {refused}"] += 1
            return refused, -1
        if code:
            self.met["appended, then an error"] += 1
            return code, -1
        self.appended(partition, batch, request.body["acks"])
        return 0, offset
