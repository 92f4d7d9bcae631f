"""Compares the model of a partition's log with a real Kafka: the same batches must get the same answers."""

import random
import socket
import time
from dataclasses import dataclass

import pytest
from probe.native import RecordBatchBuilder

from cyproducer.protocol.codec import decode_response, encode_request
from kfake.partition_log import PartitionLog, parse

PRODUCE, INIT_PRODUCER_ID = 0, 22
PRODUCE_VERSION, PRODUCER_ID_VERSION = 7, 1
RETRIABLE = (3, 5, 6, 7, 56)  # the broker has just started


@dataclass(frozen=True)
class Step:
    """A batch of `count` records under an epoch and a sequence; or a restart of the broker."""

    epoch: int = 0
    first: int = 0
    count: int = 1
    restart: bool = False


RESTART = Step(restart=True)
#: By the rule that they show.
SCRIPTS = {
    "in order": [Step(first=0, count=2), Step(first=2), Step(first=3, count=3)],
    "a duplicate gets its old offset": [Step(first=0, count=2), Step(first=2), Step(first=0, count=2), Step(first=2)],
    "a gap is out of order": [Step(first=0), Step(first=2), Step(first=1)],
    "another count is no duplicate": [Step(first=0, count=2), Step(first=0, count=1), Step(first=0, count=3)],
    "five batches are remembered": [*(Step(first=n) for n in range(6)), *(Step(first=n) for n in range(6))],
    "a new epoch begins at 0": [Step(first=0), Step(1, 1), Step(1, 0), Step(1, 1)],
    "an old epoch is fenced": [Step(first=0), Step(1, 0), Step(0, 1), Step(0, 0)],
    "a duplicate of an old epoch is fenced": [Step(first=0), Step(first=1), Step(1, 0), Step(0, 1)],
    "an unknown producer may begin anywhere": [Step(first=7), Step(first=8), Step(first=7), Step(first=0)],
    "a restart leaves the last batch": [
        *(Step(first=n) for n in range(4)), RESTART, *(Step(first=n) for n in (3, 2, 0, 4, 4)),
    ],
    "a restart keeps the epoch": [Step(2, 0), RESTART, Step(1, 0), Step(2, 0), Step(3, 1), Step(3, 0)],
}  # fmt: skip


class RealLog:
    """Partition 0 of a topic of the real Kafka, under one producer id."""

    def __init__(self, kafka, topic: str) -> None:
        self.kafka = kafka
        self.topic = topic
        self._connection: socket.socket | None = None
        self._number = 0
        body = {"transactional_id": None, "transaction_timeout_ms": 60_000, "producer_id": -1, "producer_epoch": -1}
        deadline = time.monotonic() + 30
        while (answer := self._ask(INIT_PRODUCER_ID, PRODUCER_ID_VERSION, body))["error_code"]:
            assert time.monotonic() < deadline, answer
            time.sleep(0.05)
        self.producer_id = answer["producer_id"]

    def _ask(self, api: int, version: int, body: dict) -> dict:
        if self._connection is None:
            host, port = self.kafka.bootstrap_servers.split(",")[0].split(":")
            self._connection = socket.create_connection((host, int(port)), 30)
        self._number += 1
        self._connection.sendall(encode_request(api, version, self._number, "model", body))
        with self._connection.makefile("rb") as stream:
            size = int.from_bytes(stream.read(4), "big")
            return decode_response(api, version, stream.read(size))[1]

    def append(self, records: bytes) -> tuple[int, int]:
        partition = {"index": 0, "records": records}
        body = {"acks": -1, "timeout_ms": 20_000, "topic_data": [{"name": self.topic, "partition_data": [partition]}]}
        deadline = time.monotonic() + 60
        while True:
            answer = self._ask(PRODUCE, PRODUCE_VERSION, body)["responses"][0]["partition_responses"][0]
            if answer["error_code"] not in RETRIABLE:
                return answer["error_code"], answer["base_offset"]
            assert time.monotonic() < deadline, answer
            time.sleep(0.05)

    def restart(self) -> None:
        self.close()
        self.kafka.restart(1)

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


@pytest.fixture
def real(kafka, new_topic):
    log = RealLog(kafka, new_topic(1))
    yield log
    log.close()


def play_both(steps: list[Step], real: RealLog) -> None:
    complaints: list[str] = []
    model = PartitionLog(complaints, forgot=True)
    for number, step in enumerate(steps):
        if step.restart:
            real.restart()
            model.restart(1)
            continue
        records = batch_of(step, real.producer_id, number)
        assert model.append(parse(records)) == real.append(records), f"step {number} of {steps}"
    assert complaints == []


def batch_of(step: Step, producer_id: int, number: int) -> bytes:
    builder = RecordBatchBuilder(65_536)
    for index in range(step.count):
        # the present time: the state of a producer expires by the timestamps of its records
        builder.append(int(time.time() * 1000), None, b"%d-%d" % (number, index))
    return bytes(builder.build(producer_id=producer_id, producer_epoch=step.epoch, base_sequence=step.first))


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_model_answers_as_kafka(name, real):
    play_both(SCRIPTS[name], real)


@pytest.mark.parametrize("seed", range(4))
def test_the_model_answers_as_kafka_to_random_batches(seed, real):
    """Sequences around the next one, with a new epoch now and then."""
    chance = random.Random(seed)
    steps = []
    epoch = following = 0
    for _ in range(60):
        if chance.random() < 0.08:
            epoch += 1
            following = 0
        first = max(0, following + chance.choice((0, 0, 0, -1, -2, -6, 1)))
        step = Step(max(0, epoch - (chance.random() < 0.1)), first, chance.choice((1, 1, 2, 3)))
        steps.append(step)
        if step.first == following and step.epoch == epoch:
            following += step.count
    play_both(steps, real)
